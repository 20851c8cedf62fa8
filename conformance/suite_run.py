"""Owns one run: the cluster, one client process per test file, and the outcome of every test."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from conformance import reasons
from conformance.environment import BUILD, INSIDE, ROOT
from lockstep.local.clusters import JOIN_SECRET_BYTES, LocalCluster
from lockstep.local.processes import State

CLUSTER_NAME: Final = "conformance"
#: The suite's own setting for a server of the release that ours names in system.local.
CASSANDRA_VERSION: Final = "5.0.2"


#: The suite's tests name this rack, and count one token a node; its own clusters allow functions and have a
#: request handler that mirrors custom payloads.
_AS_EXPECTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "placement": {"rack": "r1", "num_tokens": 1},
    "functions": {"user_defined_functions_enabled": True},
    "testing": {"faults": True, "mirror_payloads": True},
}
#: Files whose tests configure their cluster, and how.
_CONFIGURED: Final = {
    "test_authentication.py": {
        "auth": {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
    }
}
#: Files whose tests assume a cluster that the suite has made, and do not say so.
_ASSUMES_LOCAL: Final = ("test_authentication_misconfiguration.py",)
#: Why the suite skips tests that stop nodes, or rely on their addresses, on a cluster that it did not make;
#: and what becomes of those that it forgets to skip.
_LOCAL_ONLY: Final = ("only runs against local", "'NoneType' object has no attribute 'nodes'")


class Outcome(NamedTuple):
    """What became of one test: `outcome` is passed, failed or skipped."""

    test: str
    outcome: str
    duration_s: float
    text: str
    reason: str = ""


class FileResult(NamedTuple):
    """The outcomes of a test file. `uncollected` says why pytest could not import it, "" when it could."""

    file: str
    outcomes: tuple[Outcome, ...]
    uncollected: str = ""
    nodes_left_down: tuple[str, ...] = ()

    def count(self, outcome: str) -> int:
        return sum(one.outcome == outcome for one in self.outcomes)


def make_cluster(
    nodes: int, name: str = CLUSTER_NAME, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> LocalCluster:
    """A fresh, running cluster at 127.0.0.1, 127.0.0.2, …, on the ports that the suite has fixed."""
    home = BUILD / "clusters"
    left_over = LocalCluster.open(name, home=home) if (home / name).exists() else None
    if left_over is not None:
        left_over.destroy()
    # Tests have nodes ask for passwords later on, which those do only with a secret of their own.
    secret = {"cluster": {"join_secret": secrets.token_hex(JOIN_SECRET_BYTES)}}
    chosen = {**_AS_EXPECTED, **secret, **(settings or {})}
    cluster = LocalCluster.create(name, nodes, home=home, settings=chosen)
    cluster.start()
    return cluster


class Clients(NamedTuple):
    """How the tests are run: interpreter, folder of the suite, filter as of pytest -k, times allowed."""

    python: Path
    suite: Path
    select: str
    test_timeout_s: int
    file_timeout_s: int
    protocol: int


def run_file(cluster: LocalCluster, clients: Clients, file: str, *, walled: bool) -> FileResult:
    """The outcomes of a file's tests.

    Tests that want a cluster of their own are run again with ours in its place, if `walled`: the suite
    ends processes by name when such a cluster cannot be had. Files of tests that configure theirs get one
    that is configured so, while ours stands still.
    """
    wanted = _CONFIGURED.get(Path(file).name)
    if wanted is not None:
        cluster.stop()
        configured = make_cluster(len(cluster.file.nodes), "configured", wanted)
        try:
            return _run(configured, clients, file, (file,), external=True)
        finally:
            configured.destroy()
            cluster.start()
    if walled and Path(file).name in _ASSUMES_LOCAL:
        return _run(cluster, clients, file, (file,), external=False)
    result = _run(cluster, clients, file, (file,), external=True)
    wanting = [
        one.test
        for one in result.outcomes
        if one.outcome != "passed" and any(text in one.text for text in _LOCAL_ONLY)
    ]
    if not wanting or not walled:
        return result
    again = _run(cluster, clients, file, wanting, external=False)
    newer = {one.test: one for one in again.outcomes}
    return result._replace(
        outcomes=tuple(newer.get(one.test, one) for one in result.outcomes),
        uncollected=result.uncollected or again.uncollected,
        nodes_left_down=result.nodes_left_down + again.nodes_left_down,
    )


def _run(
    cluster: LocalCluster, clients: Clients, file: str, tests: Sequence[str], *, external: bool
) -> FileResult:
    """Run tests of one file in a process of its own; those that it did not finish count as failed."""
    slug = file.removesuffix(".py").replace("/", "_") + ("" if external else "_local")
    record = BUILD / "records" / f"{slug}.jsonl"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    command = [str(clients.python), "-m", "pytest", *tests, "-p", "recorder", "-q", "-p", "no:cacheprovider"]
    command += ["--timeout", str(clients.test_timeout_s), "--tb=short"]
    command += ["-c", str(INSIDE / "pytest.ini"), "--rootdir", str(clients.suite)]
    if clients.select:
        command += ["-k", clients.select]
    settings = _settings(cluster)
    ending = ""
    with (record.with_suffix(".log")).open("wb") as output:
        try:
            subprocess.run(
                command,
                cwd=clients.suite,
                env=_environment(cluster, clients, record, external=external),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=clients.file_timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            ending = f"the file was ended after {clients.file_timeout_s} s"
    lost = tuple(name for name, state in cluster.states().items() if state is not State.RUNNING)
    if _settings(cluster) != settings:
        cluster.stop()
        for path, text in settings.items():
            path.write_text(text)
        cluster.start()
    elif lost:
        mend(cluster)
    lines = record.read_text().splitlines() if record.exists() else []
    outcomes, uncollected = read_record((json.loads(line) for line in lines), ending)
    if not lines:
        uncollected = uncollected or ending or f"pytest ended early: see {record.with_suffix('.log')}"
    return FileResult(file, outcomes, uncollected, lost)


def _settings(cluster: LocalCluster) -> dict[Path, str]:
    """The files that tests change when they configure their cluster, with their text."""
    paths = cluster.paths
    files = [paths.cluster_file, *(paths.configuration(node.name) for node in cluster.file.nodes)]
    return {file: file.read_text() for file in files}


def mend(cluster: LocalCluster) -> None:
    """Bring every node back that a test left stopped or paused."""
    for name, state in cluster.states().items():
        if state is State.PAUSED:
            cluster.resume(name)
    cluster.start()


def read_record(lines: Iterable[dict[str, Any]], ending: str) -> tuple[tuple[Outcome, ...], str]:
    """The outcomes that a record tells, in the order of collection, and what could not be collected.

    A failure in any phase makes the test failed. `ending` is the reason of tests begun and not finished.
    """
    collected: dict[str, Outcome | None] = {}
    uncollected = ""
    for line in lines:
        test = line["test"]
        if line["event"] == "collected":
            collected.setdefault(test, None)
        elif line["event"] == "uncollected":
            uncollected = line["text"]
        elif line["event"] == "finished":
            before = collected.get(test)
            if before is None or line["outcome"] == "failed":
                collected[test] = _judged(test, line["outcome"], line["duration_s"], line["text"])
    unfinished = ending or "the process of the tests ended before this test did"
    outcomes = (one or _judged(test, "failed", 0.0, unfinished) for test, one in collected.items())
    return tuple(outcomes), uncollected


def _judged(test: str, outcome: str, duration_s: float, text: str) -> Outcome:
    if outcome != "failed":
        return Outcome(test, outcome, duration_s, text)
    return Outcome(test, outcome, duration_s, text, reasons.judge(test, text))


def _environment(cluster: LocalCluster, clients: Clients, record: Path, *, external: bool) -> dict[str, str]:
    content = cluster.file
    return {
        **({"USE_CASS_EXTERNAL": "1"} if external else {}),
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(BUILD),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(INSIDE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOCKSTEP_HOME": str(cluster.paths.root.parents[1]),
        "PROTOCOL_VERSION": str(clients.protocol),
        "CASSANDRA_VERSION": CASSANDRA_VERSION,
        "CLUSTER_IP": content.first_address,
        "CCM_PATH": str(cluster.paths.root.parent),
        "CCM_NAME": cluster.name,
        "CONFORMANCE_ROOT": str(ROOT),
        "CONFORMANCE_CLUSTER": cluster.name,
        "CONFORMANCE_RECORD": str(record),
        "CONFORMANCE_LOCKSTEP": json.dumps([sys.executable, "-m", "lockstep.cli.main"]),
        "CONFORMANCE_DIRECTORY": str(cluster.paths.root),
        "CONFORMANCE_NODES": json.dumps([[node.name, node.address] for node in content.nodes]),
    }


def test_files(suite: Path, folder: str, wanted: Sequence[str]) -> list[str]:
    """The test files below `folder`, relative to the suite; `wanted` are parts of names, all when empty."""
    found = sorted((suite / folder).rglob("test_*.py"))
    names = [str(path.relative_to(suite)) for path in found]
    return [name for name in names if not wanted or any(part in name for part in wanted)]
