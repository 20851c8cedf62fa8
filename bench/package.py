"""`make package`: the wheel, installed into an environment of its own, starts three nodes that serve CQL.

Everything runs outside the checkout, with the installed `lockstep` alone; only the driver that asks is this
environment's. Prints how long each step takes. Usage: python bench/package.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from cassandra import ConsistencyLevel
from cassandra.cluster import Cluster
from cassandra.query import SimpleStatement

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "package"
FIRST_ADDRESS = "127.0.66.1"
NAME = "package"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def run(title: str, command: Sequence[str | Path], **settings: object) -> str:
    """Its output; its time goes to stdout."""
    began_s = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **settings)  # type: ignore[call-overload]
    print(f"{title}: {time.perf_counter() - began_s:.1f} s", flush=True)
    return str(done.stdout)


def install() -> Path:
    """The `bin` of a fresh environment that holds the wheel and what it needs, at the pinned versions."""
    shutil.rmtree(BUILD, ignore_errors=True)
    built = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(BUILD / "dist"), str(ROOT))
    run("build the wheel", (sys.executable, *_PIP, *built))
    venv.create(BUILD / "venv", with_pip=True)
    python = BUILD / "venv" / "bin" / "python"
    (made,) = (BUILD / "dist").glob("*.whl")
    pinned = ("--constraint", str(ROOT / "requirements" / "base.lock"))
    run("install it", (python, *_PIP, "install", *pinned, str(made)))
    return python.parent


def check(bin_: Path, home: Path) -> None:
    """Three nodes of the installed version answer at QUORUM."""
    environment = {"PATH": f"{bin_}{os.pathsep}{os.defpath}", "HOME": str(home), "LOCKSTEP_HOME": str(home)}
    where = {"cwd": home, "env": environment}
    found = run("import it", (bin_ / "python", "-c", "import lockstep; print(lockstep.__file__)"), **where)
    assert Path(found.strip()).is_relative_to(BUILD), f"{found.strip()} is not the installed one"
    lockstep = bin_ / "lockstep"
    run("start three nodes", (lockstep, "cluster", "create", NAME, "--first-address", FIRST_ADDRESS), **where)
    try:
        status = (lockstep, "status", "--host", f"{FIRST_ADDRESS}:7080")
        print(run("ask for the status", status, **where).splitlines()[0])
        ask()
    finally:
        run("destroy them", (lockstep, "cluster", "destroy", NAME), **where)


def ask() -> None:
    driver = Cluster([FIRST_ADDRESS])
    try:
        session = driver.connect()
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 3}"
        session.execute(f"CREATE KEYSPACE installed WITH replication = {replication}")
        session.execute("CREATE TABLE installed.t (k int PRIMARY KEY, v text)")
        session.execute("INSERT INTO installed.t (k, v) VALUES (1, 'kept')")
        read = SimpleStatement("SELECT v FROM installed.t", consistency_level=ConsistencyLevel.QUORUM)
        assert session.execute(read).one().v == "kept"
        assert len(driver.metadata.all_hosts()) == 3
    finally:
        driver.shutdown()


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        check(install(), Path(home))
    print("the installed package serves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
