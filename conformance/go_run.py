"""`make conformance-go`: integration tests of programs in Go, unchanged, against a cluster of real nodes.

Owns which suites are run and how. Invariant: sources are fetched whole by their module's version and only
compiled; every test that ends counts, and one that the suite skips is no passed one. Results go to
`build/conformance/results-go.json`, and with `--write-docs` to `docs/reference/conformance-go.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.environment import BUILD, ROOT, wall_in, walled
from conformance.suite_run import make_cluster

MADE: Final = BUILD / "go"
PAGE: Final = ROOT / "docs" / "reference" / "conformance-go.md"
NODES: Final = 3
_MAKE_TIMEOUT_S: Final = 1200
_RUN_TIMEOUT_S: Final = 600
#: What tests want that is nothing of a node's.
_WANTED: Final = {
    "TestDocker": "starts a container of Cassandra",
    "TestWriteFailure": "wants nodes that fail all writes of a keyspace, by an option of the JVM",
    "TestSchemaEvents": "makes functions in Java",
}
_ENDED: Final = re.compile(r"^( *)--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


class Suite(NamedTuple):
    """`module` at `version`, of which `package` is tested; `arguments` and `environment` are of the tests."""

    name: str
    module: str
    version: str
    package: str
    tags: str = ""
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


class Result(NamedTuple):
    """Tests without their subtests, by what became of them; `failed` with what each said first."""

    suite: str
    version: str
    passed: int
    skipped: int
    failed: tuple[tuple[str, str], ...]


def suites(addresses: list[str]) -> tuple[Suite, ...]:
    hosts = ",".join(addresses)
    gocql = (
        "-proto=5",
        "-gocql.timeout=30s",
        "-rf=3",
        f"-clusterSize={NODES}",
        "-autowait=1000ms",
        f"-cluster={hosts}",
        "-gocql.cversion=5.0.6",
    )
    return (
        Suite(
            "gocql",
            "github.com/apache/cassandra-gocql-driver/v2",
            "v2.1.2",
            ".",
            "cassandra integration gocql_debug",
            gocql,
        ),
        Suite(
            "Temporal, persistence",
            "go.temporal.io/server",
            "v1.29.1",
            "./common/persistence/tests",
            arguments=("-test.run=TestCassandra",),
            environment=(("CASSANDRA_SEEDS", addresses[0] if addresses else ""),),
        ),
    )


def _place(suite: Suite) -> Path:
    return MADE / suite.module.replace("/", "_")


def make(suite: Suite) -> None:
    """Fetch its sources and compile its tests. CalledProcessError."""
    place = _place(suite)
    place.mkdir(parents=True, exist_ok=True)
    wanted = f"{suite.module}@{suite.version}"
    fetched = subprocess.run(
        ["go", "mod", "download", "-json", wanted], capture_output=True, check=True, timeout=_MAKE_TIMEOUT_S
    )
    source = place / suite.version
    if not source.exists():
        partial = place / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(json.loads(fetched.stdout)["Dir"], partial, copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(partial):
            Path(folder).chmod(0o755)
        partial.rename(source)
    command = ["go", "test", "-c", "-tags", suite.tags, "-o", str(place / "tests"), suite.package]
    subprocess.run(command, cwd=source, check=True, timeout=_MAKE_TIMEOUT_S)


def run(suite: Suite) -> Result:
    place = _place(suite)
    limit = f"-test.timeout={_RUN_TIMEOUT_S}s"
    ended = subprocess.run(
        [str(place / "tests"), "-test.v", limit, *suite.arguments],
        cwd=place / suite.version / suite.package,
        env={**os.environ, **dict(suite.environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    (place / "output.txt").write_text(ended.stdout)
    return read(suite, ended.stdout, ended.returncode)


def read(suite: Suite, told: str, code: int) -> Result:
    """The result that the output of `-test.v` means; a program that ended too early has failed."""
    ends = [(word, name) for indent, word, name in _ENDED.findall(told) if not indent]
    failed = tuple(
        (name, _WANTED.get(name) or _first_words(told, name)) for word, name in ends if word == "FAIL"
    )
    if code not in (0, 1) or (code and not failed):
        words = next((line for line in told.splitlines() if line.startswith("panic: ")), f"exit code {code}")
        failed = (*failed, ("the program itself", words[:200]))
    counts = [sum(word == wanted for word, _ in ends) for wanted in ("PASS", "SKIP")]
    return Result(suite.name, suite.version, counts[0], counts[1], failed)


def _first_words(told: str, name: str) -> str:
    """What a test said first, on the lines behind the one that says that it runs."""
    _, _, behind = told.partition(f"=== RUN   {name}\n")
    said = (line.strip() for line in behind.splitlines())
    return next((line[:200] for line in said if re.match(r"\S+_test\.go:\d+: \S", line)), "")


def page(results: list[Result]) -> str:
    return "\n".join(_lines(results)) + "\n"


def _lines(results: list[Result]) -> Iterator[str]:
    yield "# Programs in Go"
    yield ""
    yield f"What the integration tests of these programs find, unchanged, against {NODES} local nodes."
    yield "`make conformance-go ARGS=--write-docs` makes this page. Subtests count with their test."
    yield ""
    yield "| suite | version | passed | failed | skipped by itself |"
    yield "| --- | --- | --- | --- | --- |"
    for one in results:
        yield f"| {one.suite} | {one.version} | {one.passed} | {len(one.failed)} | {one.skipped} |"
    for one in results:
        if one.failed:
            yield ""
            yield f"## {one.suite}: failed"
            yield ""
            yield from (
                f"- `{name}`: {words.replace('|', ' ') or 'says nothing'}" for name, words in one.failed
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    if shutil.which("go") is None:
        print("error: go is not installed", file=sys.stderr)
        return 2
    if not walled():
        for suite in suites([]):
            print(f"making the tests of {suite.name} {suite.version}", flush=True)
            make(suite)
    if not wall_in():
        print("warning: no namespaces of its own; the ports must be free", file=sys.stderr)
    cluster = make_cluster(NODES, "go")
    try:
        results = [run(suite) for suite in suites(list(cluster.contact_points))]
    finally:
        cluster.destroy()
    (BUILD / "results-go.json").write_text(json.dumps([one._asdict() for one in results], indent=2))
    text = page(results)
    print(text)
    if arguments.write_docs:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
