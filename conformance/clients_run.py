"""`make conformance-clients`: drivers of other languages against a local cluster of real nodes.

Owns how the programs of `conformance/clients` are made and run. Invariant: a language whose tools are not
installed is left out by name, never counted as held; results go to `build/conformance/results-clients.json`,
and with `--write-docs` to `docs/reference/conformance-clients.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.clients import CHECKS
from conformance.environment import BUILD, ROOT, wall_in, walled
from conformance.suite_run import make_cluster

SOURCES: Final = Path(__file__).resolve().parent / "clients"
MADE: Final = BUILD / "clients"
PAGE: Final = ROOT / "docs" / "reference" / "conformance-clients.md"
_MAKE_TIMEOUT_S: Final = 600
_RUN_TIMEOUT_S: Final = 180


class Client(NamedTuple):
    """`tools`: what must be installed to make it; `make` are commands, run in `folder`; then `run`."""

    name: str
    tools: tuple[str, ...]
    folder: Path
    make: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]


class Result(NamedTuple):
    """`problem` is empty when the program ended well and all of CHECKS held."""

    name: str
    version: str
    checks: tuple[str, ...]
    problem: str = ""
    left_out: bool = False


def clients() -> tuple[Client, ...]:
    """In the order of the page."""
    venv, node, go, java = (MADE / name for name in ("venv", "node", "go", "java"))
    python = str(venv / "bin" / "python")
    wheels = (
        (sys.executable, "-m", "venv", str(venv)),
        (python, "-m", "pip", "--quiet", "install", "-r", str(SOURCES / "requirements.txt")),
    )
    classpath = "java/classpath.txt"
    java_make = (
        (
            "mvn",
            "-q",
            "-B",
            "-f",
            "java/pom.xml",
            "dependency:build-classpath",
            "-Dmdep.outputFile=classpath.txt",
        ),
        ("sh", "-c", f'javac -cp "$(cat {classpath})" -d java/classes java/Check.java'),
    )
    java_run = ("sh", "-c", f'exec java -cp "java/classes:$(cat {classpath})" Check "$@"', "check")
    return (
        Client("Rust", (), MADE, wheels, (python, str(SOURCES / "rust.py"))),
        Client("C++", (), MADE, (), (python, str(SOURCES / "cpp.py"))),
        Client("Node", ("node", "npm"), node, (("npm", "install", "--silent"),), ("node", "check.js")),
        Client("Go", ("go",), go, (("go", "build", "-o", "check", "."),), ("./check",)),
        Client("Java", ("mvn", "javac", "java"), java.parent, java_make, java_run),
    )


def make(client: Client) -> None:
    """Fetch its driver and build it. CalledProcessError."""
    for command in client.make:
        subprocess.run(command, cwd=client.folder, check=True, timeout=_MAKE_TIMEOUT_S)


def missing(client: Client) -> str:
    return next((tool for tool in client.tools if shutil.which(tool) is None), "")


def run(client: Client, addresses: list[str]) -> Result:
    """The outcome of its program against a cluster."""
    tool = missing(client)
    if tool:
        return Result(client.name, "", (), f"{tool} is not installed", left_out=True)
    try:
        ended = subprocess.run(
            [*client.run, *addresses],
            cwd=client.folder,
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Result(client.name, "", (), f"no end after {_RUN_TIMEOUT_S} s")
    return read(client.name, ended.returncode, ended.stdout, ended.stderr)


def read(name: str, code: int, told: str, errors: str) -> Result:
    """The result that a program's output means."""
    lines = told.splitlines()
    version = next((line.partition(" ")[2] for line in lines if line.startswith("version ")), "")
    checks = tuple(line.partition(" ")[2] for line in lines if line.startswith("check "))
    absent = [check for check in CHECKS if check not in checks]
    problem = ""
    if code != 0:
        problem = next((line for line in reversed(errors.splitlines()) if line.strip()), f"exit code {code}")
    elif absent:
        problem = f"not checked: {', '.join(absent)}"
    return Result(name, version, checks, problem)


def page(results: list[Result]) -> str:
    lines = [
        "# Drivers of other languages",
        "",
        "What small programs with these drivers find against a local cluster of 3 nodes.",
        "`make conformance-clients ARGS=--write-docs` makes this page.",
        "",
        "| client | driver | holds | problem |",
        "| --- | --- | --- | --- |",
    ]
    for one in results:
        problem = one.problem.replace("|", "\\|") or "none"
        lines.append(f"| {one.name} | {one.version or '-'} | {', '.join(one.checks) or '-'} | {problem} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these clients; all by default")
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    wanted = [one for one in clients() if not arguments.names or one.name.lower() in arguments.names]
    if not walled():
        _prepare()
    if not wall_in():
        print("no namespaces here: 127.0.0.1:9042 must be free", flush=True)
    cluster = make_cluster(3, "conformance-clients")
    try:
        addresses = [node.address for node in cluster.file.nodes]
        results = [run(client, addresses) for client in wanted]
    finally:
        cluster.destroy()
    for one in results:
        told = "left out" if one.left_out else "failed" if one.problem else "held"
        print(f"{one.name}: {told}: {one.problem or ', '.join(one.checks)} ({one.version or '-'})")
    document: dict[str, Any] = {"clients": [one._asdict() for one in results]}
    (BUILD / "results-clients.json").write_text(json.dumps(document, indent=1) + "\n")
    if arguments.write_docs:
        PAGE.write_text(page(results))
    return 1 if any(one.problem and not one.left_out for one in results) else 0


def _prepare() -> None:
    """Make every client whose tools are there, before the network is shut off."""
    shutil.copytree(SOURCES, MADE, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    os.makedirs(MADE / "java" / "classes", exist_ok=True)
    for client in clients():
        if not missing(client):
            print(f"making {client.name}", flush=True)
            make(client)


if __name__ == "__main__":
    sys.exit(main())
