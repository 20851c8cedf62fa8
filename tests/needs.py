"""What tests need of the machine, told from what they import, and what a machine lacks.

Owns: the markers `needs_*` and `pure`. A test module needs what it, the test helpers it imports or the
fixtures of its folder reach for. A test whose machine lacks something ends as an error of its set-up that
names what is missing; a test that fails tells of the product.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lockstep.node.configuration import StorageSection
from lockstep.values.errors import ConfigurationError
from tests.house.sources import ROOT
from tests.house.tidy import IMPURE_MODULES, PURE_ROOMS

#: Nodes refuse writes below their reserve; a test writes less than as much again.
FREE_BYTES_MIN = 2 * StorageSection().reserve_bytes
#: Files and connections of some nodes in one process.
OPEN_FILES_MIN = 1024
#: What a test of pure code does not import itself; it may read a clock, or a file that lies beside it.
OUTSIDE = ("asyncio", "multiprocessing", "socket", "subprocess", "threading")


class MachineLacks(Exception):
    """Nothing is wrong with the product: this machine cannot run the test."""


class Need(NamedTuple):
    """`modules` (imported, or the folder they are in) and `programs` are what tests with this need name;
    `lacks` says what is missing here."""

    meaning: str
    modules: tuple[str, ...]
    programs: tuple[str, ...]
    lacks: Callable[[], str]


def _no_disk() -> str:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return f"{tempfile.gettempdir()} has {free >> 20} MiB free" if free < FREE_BYTES_MIN else ""


def _no_addresses() -> str:
    import resource

    for address in ("127.0.0.1", "127.0.1.1", "127.64.0.1"):
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError as error:
                return f"no port can be listened at on {address}: {error.strerror}"
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"at most {files} files may be open (ulimit -n)" if files < OPEN_FILES_MIN else ""


def _no_processes() -> str:
    try:
        ended = subprocess.run([sys.executable, "-c", "import lockstep"], timeout=60, check=False).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no process can be started: {error}"
    return f"lockstep is not installed for {sys.executable}" if ended else ""


def _no_spark() -> str:
    try:
        import pyspark  # noqa: F401

        from lockstep.spark.java import find_java

        find_java(os.environ)
    except (ImportError, ConfigurationError) as error:
        return str(error)
    return ""


def _no_cqlsh() -> str:
    place = Path(sys.executable).with_name("cqlsh")
    return "" if place.exists() else f"no {place} (make setup)"


def _no_openssl() -> str:
    return "" if shutil.which("openssl") else "no openssl on the PATH"


NEEDS = {
    "needs_disk": Need(
        "keeps files in the directory for temporary ones",
        ("lockstep.storage.store", "lockstep.storage.engine", "lockstep.runtime.real", "lockstep.local"),
        (),
        _no_disk,
    ),
    "needs_addresses": Need(
        "listens on loopback addresses",
        ("socket", "lockstep.runtime.real", "lockstep.local.clusters", "lockstep.testing"),
        (),
        _no_addresses,
    ),
    "needs_processes": Need(
        "starts processes",
        ("subprocess", "lockstep.local.clusters", "lockstep.local.processes", "lockstep.testing"),
        (),
        _no_processes,
    ),
    "needs_spark": Need("runs PySpark on a Java runtime", ("pyspark", "tests.spark"), (), _no_spark),
    "needs_cqlsh": Need("runs cqlsh", (), ("cqlsh",), _no_cqlsh),
    "needs_openssl": Need("makes certificates by openssl", (), ("openssl",), _no_openssl),
}
_IMPORT: Final = re.compile(
    r"^[ ]*(?:import ([\w., ]+)|from (\.*)([\w.]*) import (\([^)]*\)|[^\n(]+))", re.MULTILINE
)
_FIXTURE: Final = re.compile(r"@pytest\.fixture[^\n]*\ndef (\w+)")
PURE = "pure"
MARKERS = {name: need.meaning for name, need in NEEDS.items()} | {
    PURE: "reaches code without I/O, clock and randomness only, and needs nothing"
}


@functools.cache
def markers_of(path: Path) -> tuple[str, ...]:
    """Of the test module at `path`."""
    reached, text = _reached(path)
    reached |= {f"tests.{path.parent.name}"}
    found = tuple(
        name
        for name, need in NEEDS.items()
        if any(_within(module, need.modules) for module in reached)
        or ("subprocess" in reached and any(f'"{program}"' in text for program in need.programs))
    )
    rooms = {module for module in reached if module.startswith("lockstep.")}
    outside = any(_within(module, OUTSIDE) for module in reached)
    return found or ((PURE,) if rooms and not outside and _pure(rooms) else ())


def is_pure(path: Path) -> bool:
    return markers_of(path) == (PURE,)


@functools.cache
def missing(need: str) -> str:
    """What this machine lacks of a need; "" when it has it."""
    return NEEDS[need].lacks()


def demand(markers: tuple[str, ...]) -> None:
    for need in markers:
        if need in NEEDS and (what := missing(need)):
            raise MachineLacks(f"{need}: {what}")


# -- what a module reaches ------------------------------------------------------------------------------


def _within(module: str, names: tuple[str, ...]) -> bool:
    return f"{module}.".startswith(_beginnings(names))


@functools.cache
def _beginnings(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


@functools.cache
def _place(module: str) -> Path | None:
    """The file of a module; None for a folder, and for a name within a module."""
    place = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return place if place.exists() else None


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    """Dotted names; `from a import b` gives both a and a.b. By the text: trees of 500 files take seconds."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found: set[str] = set()
    for plain, dots, tail, listed in _IMPORT.findall(_text(path)):
        above = package[: len(package) - len(dots) + 1] if dots else ()
        base = ".".join([*above, *([tail] if tail else [])])
        names = [name.split()[0] for name in (plain or listed.strip("()")).split(",") if name.strip()]
        found |= set(names) if plain else {base, *(f"{base}.{name}" for name in names)}
    return frozenset(found)


@functools.cache
def _reached(path: Path) -> tuple[frozenset[str], str]:
    """(imported modules, text) of a test module, of the helpers it imports, and of its folder's fixtures."""
    ahead = [path, *_fixtures(path)]
    seen = set(ahead)
    while ahead:
        more = set(_helpers(_imports(ahead.pop()))) - seen
        seen |= more
        ahead.extend(more)
    return frozenset[str]().union(*map(_imports, seen)), "".join(map(_text, sorted(seen)))


def _helpers(names: frozenset[str]) -> Iterator[Path]:
    for name in names:
        if name.startswith("tests.") and (place := _place(name)) is not None:
            yield place


def _fixtures(path: Path) -> Iterator[Path]:
    """The folder's conftest, where a function of the module asks for one of its fixtures."""
    place = path.with_name("conftest.py")
    if place.exists():
        offered = "|".join(_FIXTURE.findall(_text(place))) or "none"
        if re.search(rf"\bdef test_\w+\([^)]*\b(?:{offered})\b", _text(path)):
            yield place


def _pure(modules: set[str]) -> bool:
    """Whether each of these and of those they import is in a pure room, or imports nothing that is impure."""
    ahead, seen = list(modules), set(modules)
    while ahead:
        more = _imported_by(ahead.pop())
        if more is None:
            return False
        ahead.extend(more - seen)
        seen |= more
    return True


@functools.cache
def _imported_by(module: str) -> frozenset[str] | None:
    """Modules of the product, of which it depends whether one is pure; None where it is not by itself."""
    place = _place(module)
    # A name within a module is imported with the module itself.
    if module.split(".")[1] in PURE_ROOMS or place is None:
        return frozenset()
    names = _imports(place)
    if any(_within(name, IMPURE_MODULES) for name in names):
        return None
    return frozenset(name for name in names if name.startswith("lockstep."))
