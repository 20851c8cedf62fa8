"""Clocks that differ: the node that is off says so, warns its clients, and is not let in anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.server.metrics.exposition import clock_samples
from lockstep.testing import SimulatedCluster
from lockstep.values.errors import PreconditionError
from tests.node.support import Town


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(3, seed=5) as made:
        made.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        made.execute("CREATE TABLE k.t (a int PRIMARY KEY, b int)")
        yield made


def codes(cluster: SimulatedCluster, name: str) -> dict[str, str]:
    return {one.code: one.detail for one in cluster._sim.nodes[name].context.conditions.current()}


def measured_by(cluster: SimulatedCluster, name: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("lockstep_clock_"), dict(sample.labels).get("node", "")): sample.value
        for sample in clock_samples(cluster._sim.nodes[name].services)
    }


@pytest.mark.parametrize(("skew_s", "words"), [(0.7, "0.7 s ahead of"), (-3.0, "3.0 s behind")])
def test_one_wrong_clock_finds_itself_wrong_and_no_other(
    cluster: SimulatedCluster, skew_s: float, words: str
) -> None:
    cluster.advance(3)
    assert [codes(cluster, name) for name in cluster.nodes] == [{}, {}, {}]
    cluster.skew_clock("n2", skew_s)
    cluster.advance(3)
    assert codes(cluster, "n2")["CLOCK_SKEW"] == f"{words} the other nodes'"
    assert "CLOCK_SKEW" not in codes(cluster, "n1") | codes(cluster, "n3")
    seen, own = measured_by(cluster, "n1"), measured_by(cluster, "n2")
    (other,) = [node for (what, node), value in seen.items() if what == "offset_seconds" and abs(value) > 0.5]
    assert abs(seen["offset_seconds", other] - skew_s) <= seen["offset_error_seconds", other] + 0.01 < 0.1
    assert abs(own["skew_seconds", ""] - skew_s) < 0.1
    cluster.skew_clock("n2", -skew_s)
    cluster.advance(3)
    assert "CLOCK_SKEW" not in codes(cluster, "n2")


def test_less_than_the_bound_is_nothing(cluster: SimulatedCluster) -> None:
    cluster.skew_clock("n2", 0.4)
    cluster.advance(3)
    assert [codes(cluster, name) for name in cluster.nodes] == [{}, {}, {}]


def test_timestamps_ahead_of_a_clock_that_was_set_back_are_told_until_it_is_there(
    cluster: SimulatedCluster,
) -> None:
    cluster.skew_clock("n1", 8)
    for _ in range(2):
        cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 1)", node="n1")
        cluster.advance(1)
    cluster.skew_clock("n1", -8)
    cluster.advance(2)
    assert set(codes(cluster, "n1")) == {"CLOCK_SET_BACK"}
    assert measured_by(cluster, "n1")["stamps_ahead_seconds", ""] > 4
    cluster.advance(8)
    assert codes(cluster, "n1") == {}


@pytest.mark.parametrize(("skew_s", "warned"), [(12, True), (-12, True), (9, False)])
def test_a_node_far_off_has_a_warning_for_its_clients(
    cluster: SimulatedCluster, skew_s: float, warned: bool
) -> None:
    cluster.skew_clock("n2", skew_s)
    cluster.advance(3)
    warnings = [cluster._sim.nodes[name].log.clocks.warning for name in cluster.nodes]
    assert [bool(warning) for warning in warnings] == [False, warned, False]
    how = "12 s ahead of" if skew_s > 0 else "12 s behind"
    assert not warned or f"clock of this coordinator is {how} the other nodes'" in warnings[1]


@pytest.mark.parametrize("skew_s", [-11.0, 3600.0])
def test_a_newcomer_with_a_clock_far_off_does_not_join(skew_s: float) -> None:
    with Town() as town:
        town.found()
        town.process(4).jump_wall(skew_s)
        town.start(4)
        town.until(lambda: "n4" in town.ended)
        error = town.ended["n4"]
        assert isinstance(error, PreconditionError)
        assert "this node's clock is" in error.message and "not let in" in error.message
        assert len(town.newest.directory.nodes) == 3
        town.process(4).jump_wall(-skew_s)
        town.start(4)
        town.until(lambda: town.ready(4))


def test_one_member_with_a_wrong_clock_keeps_nobody_out() -> None:
    with Town() as town:
        town.found()
        town.process(1).jump_wall(60)
        town.start(4)
        town.until(lambda: town.ready(4))
        town.wait(3)
        (told,) = town.node(1).context.conditions.current()
        assert told.code == "CLOCK_SKEW" and told.detail.startswith("60 s ahead")
        assert not town.node(4).context.conditions.current(), "it is the member that is wrong"
