"""A Java with Spark's classes at hand. Each runtime that tests start loads and checks thousands of them, a
third of its work until the first answer; from an archive it takes them as they are.

`python -m tests.quick_java` makes it under build/java: the archive, and a `bin/java` that starts the Java of
this machine with it. Tests use it as JAVA_HOME when it is there. Invariant: Java itself compares the archive
with the files it is of, and loads classes as ever when they differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parents[1] / "build" / "java"
_ARCHIVE: Final = "spark.jsa"
#: What Java keeps its own classes in; an archive of more goes on from it. Small runtimes lack it.
_BASE: Final = Path("lib", "server", "classes.jsa")
_LAUNCHER: Final = """#!/bin/sh
# Starts {java} with the archive. What it says of an archive that does not fit would be taken for an answer.
exec "{java}" -XX:SharedArchiveFile="{archive}" -Xshare:auto -Xlog:disable -Xlog:all=error:stderr "$@"
"""
#: Queries, rows from Python and files: what tests need most of. Java writes the archive as it ends.
_JOB: Final = """
import sys
from lockstep.spark.report import QUICK_JAVA_OPTIONS, local_session
options = f"{QUICK_JAVA_OPTIONS} -XX:ArchiveClassesAtExit={sys.argv[1]}"
session = local_session("archive", spark_driver_extraJavaOptions=options)
rows = session.createDataFrame([(1, "a"), (2, "b")], "a int, b string")
rows.groupBy("b").count().orderBy("b").collect()
rows.write.mode("overwrite").parquet(sys.argv[2])
session.read.parquet(sys.argv[2]).join(rows, "a").selectExpr("a + 1").collect()
session.stop()
"""
#: Fifteen seconds on an idle core; many times that on a machine that does something else.
_TIMEOUT_S: Final = 300


def quick_home(home: Path = HOME) -> Path | None:
    """What JAVA_HOME may be; None where nobody made it."""
    return home if (home / "bin" / "java").is_file() and (home / _ARCHIVE).is_file() else None


def launcher(java: Path, home: Path) -> Path:
    """`home`/bin/java, which starts `java` with the archive of `home`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_LAUNCHER.format(java=java, archive=home / _ARCHIVE))
    program.chmod(0o755)
    return program


def make(home: Path = HOME) -> str:
    """Make it; "" or why there is none."""
    from lockstep.spark.java import find_java
    from lockstep.values.errors import ConfigurationError

    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    try:
        java = find_java(environment).home / "bin" / "java"
    except ConfigurationError as error:
        return str(error)
    if not (java.resolve().parents[1] / _BASE).is_file():
        return f"{java} has no archive of its own classes"
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f"{_ARCHIVE}.part"
    partial.unlink(missing_ok=True)
    try:
        # The output ends when Java has: it holds the same pipe.
        done = subprocess.run(
            [sys.executable, "-c", _JOB, str(partial), str(home / "rows")],
            env=environment, timeout=_TIMEOUT_S, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return str(error)
    if done.returncode or not partial.is_file():
        return f"the archive was not made: {done.stdout}"
    partial.replace(home / _ARCHIVE)
    launcher(java.resolve(), home)
    return ""


if __name__ == "__main__":
    if why := make():
        print(f"tests of Spark start Java as it is: {why}")
