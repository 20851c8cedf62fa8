"""The pytest plugin: fixtures that give tests clusters, and what failed tests say about theirs.

Owns: which cluster lives how long in a run.

Invariant: loading it costs a run without clusters nothing but this module; after a test, the shared cluster
is as it was before, and what the test itself made is gone. Short when all is well with the nodes (a line a
cluster); of a node that ended by itself, the end of its log; and what nodes said of errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lockstep.testing.clusters import Cluster
    from lockstep.testing.simulated import SimulatedCluster


class Kept:
    """The clusters of this run. `in_test` is set while the body of a test runs."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = []
        self.made_in_test: list[Cluster] = []
        self.in_test = False
        self.keep = ""
        self.tablets = False

    def make(self, **settings: Any) -> Cluster:
        from lockstep.testing.clusters import Cluster

        if self.keep:
            settings.setdefault("directory", os.path.join(self.keep, f"{os.getpid()}-{len(self.clusters)}"))
        if self.tablets:
            given = settings.get("settings") or {}
            chosen = {"mode_for_new_keyspaces": "enabled", **given.get("tablets", {})}
            settings["settings"] = {**given, "tablets": chosen}
        cluster = Cluster(**settings)
        self.clusters.append(cluster)
        if self.in_test:
            self.made_in_test.append(cluster)
        try:
            cluster.start()
        except BaseException:
            self.close(cluster)
            raise
        return cluster

    def close(self, cluster: Cluster) -> None:
        if cluster in self.clusters:
            self.clusters.remove(cluster)
        if cluster in self.made_in_test:
            self.made_in_test.remove(cluster)
        cluster.close()


_KEPT = pytest.StashKey[Kept]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep")
    group.addoption(
        "--lockstep-nodes", type=int, default=3, metavar="N", help="Nodes of the shared cluster (default: 3)."
    )
    group.addoption(
        "--lockstep-keep",
        default="",
        metavar="DIR",
        help="Keep data and logs of all clusters in this directory.",
    )
    group.addoption(
        "--lockstep-tablets",
        action="store_true",
        help="Keyspaces of all real clusters have tablets, unless they say otherwise.",
    )


def pytest_configure(config: pytest.Config) -> None:
    kept = config.stash[_KEPT] = Kept()
    kept.keep = (
        os.path.abspath(config.getoption("--lockstep-keep")) if config.getoption("--lockstep-keep") else ""
    )
    kept.tablets = config.getoption("--lockstep-tablets")


def pytest_unconfigure(config: pytest.Config) -> None:
    kept = config.stash.get(_KEPT, None)
    while kept is not None and kept.clusters:
        kept.close(kept.clusters[-1])


# ---- fixtures


@pytest.fixture(scope="session")
def lockstep_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster of three real nodes for the whole run, mended after every test that broke it."""
    kept = pytestconfig.stash[_KEPT]
    cluster = kept.make(nodes=pytestconfig.getoption("--lockstep-nodes"))
    yield cluster
    kept.close(cluster)


@pytest.fixture
def lockstep_keyspace(lockstep_cluster: Cluster) -> Iterator[str]:
    """The name of a new, empty keyspace of the shared cluster, for this test alone."""
    name = lockstep_cluster.create_keyspace()
    yield name
    lockstep_cluster.mend()
    lockstep_cluster.execute(f"DROP KEYSPACE IF EXISTS {name}")


@pytest.fixture
def lockstep_session(lockstep_cluster: Cluster, lockstep_keyspace: str) -> Iterator[Any]:
    """A session of the installed driver, connected to this test's keyspace."""
    session = lockstep_cluster.connect(lockstep_keyspace)
    yield session
    session.cluster.shutdown()


@pytest.fixture(scope="session")
def lockstep_cluster_factory(pytestconfig: pytest.Config) -> Callable[..., Cluster]:
    """Makes and starts clusters of a test's own, from the arguments of `Cluster`: `factory(nodes=5)`,
    `factory(dcs={"east": 3, "west": 3})`.

    One that is made in a test ends with the test, one that is made in a fixture ends with the run, unless
    either closes it before.
    """
    return pytestconfig.stash[_KEPT].make


@pytest.fixture
def lockstep_simulation() -> Iterator[Callable[..., SimulatedCluster]]:
    """Makes simulated clusters: `lockstep_simulation(nodes=3, seed=7)`; they end with the test."""
    made: list[SimulatedCluster] = []

    def make(nodes: int = 3, *, dcs: int = 1, seed: int = 1) -> SimulatedCluster:
        from lockstep.testing.simulated import SimulatedCluster

        made.append(SimulatedCluster(nodes, dcs=dcs, seed=seed))
        return made[-1].start()

    yield make
    for cluster in made:
        cluster.close()


# ---- around every test


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    kept = item.config.stash[_KEPT]
    kept.in_test = True
    yield
    kept.in_test = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Before the fixtures' own ends, so that these find a cluster that works."""
    kept = item.config.stash[_KEPT]
    while kept.made_in_test:
        kept.close(kept.made_in_test[-1])
    for cluster in kept.clusters:
        for node in cluster.ended_by_themselves():
            item.warn(pytest.PytestWarning(f"lockstep node {node.name} at {node.address} ended by itself"))
        cluster.mend()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    kept = item.config.stash[_KEPT]
    if report.failed and kept.clusters:
        for cluster in kept.clusters:
            report.sections += sections(cluster)


#: Of a node that ended by itself: its error or traceback is at the end.
DEAD_LINES = 40
#: Of what a running node complained of.
ERROR_LINES = 10


def sections(cluster: Cluster) -> list[tuple[str, str]]:
    """(title, text) for the report of a test."""
    where = f"lockstep cluster {cluster.nodes[0].address} to {cluster.nodes[-1].address}"
    dead = {node.name: node for node in cluster.ended_by_themselves()}
    states = ", ".join(
        f"{node.name} {'ENDED BY ITSELF' if node.name in dead else node.state.value}"
        for node in cluster.nodes
    )
    text = f"{states}\nlogs: {cluster.local.paths.root}/*/node.log" if cluster.keep else states
    found = [(where, text)]
    for node in cluster.nodes:
        if node.name in dead:
            found.append((f"lockstep {node.name}: end of its log", "\n".join(node.log_tail(DEAD_LINES))))
            continue
        errors = [line for line in node.log_tail(1000) if " error " in line or line.startswith("error[")]
        if errors:
            found.append((f"lockstep {node.name}: errors in its log", "\n".join(errors[-ERROR_LINES:])))
    return found
