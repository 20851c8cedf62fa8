"""The verdict on a cluster from the metadata value, who is alive and what nodes report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.metadata.transformations import Initialize
from lockstep.schema.model import Replication
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.health import View, findings, level_of, verdict
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.conditions import CONDITIONS, Condition, Level
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING
from tests.metadata.histories import History, SetKeyspaces, founder, simple, started
from tests.topology.drills import register

FULL = Condition("DISK_FULL", since_us=1)


def cluster(factor: int = 3) -> ClusterMetadata:
    return started([(100,), (200,), (300,)], ("ks", simple(factor))).now


def said(
    alive: Sequence[int],
    reported: Mapping[int, Sequence[Condition]] | None = None,
    *,
    factor: int = 3,
    own: int = 1,
) -> tuple[Level, str]:
    found = findings(cluster(factor), View(own, frozenset(alive), reported or {}))
    return level_of(found), verdict(found, own, running=False)


def test_a_cluster_is_healthy_only_without_findings() -> None:
    assert said([1, 2, 3]) == (Level.HEALTHY, "healthy: every range has all its replicas")
    assert said([1, 2]) == (Level.DEGRADED, "degraded: node 3 is down; every range has a quorum")
    level, text = said([1])
    assert level is Level.UNAVAILABLE
    assert text.startswith("unavailable: no quorum for some ranges of ks; nodes 2, 3 are down")
    assert said([1, 2], factor=1)[0] is Level.UNAVAILABLE


def test_keyspaces_of_which_the_same_is_said_share_a_sentence() -> None:
    """Else they push out of the verdict what is wrong with the metadata group."""
    now = started([(100,), (200,), (300,)], *((name, simple(3)) for name in ("a", "b", "c", "d"))).now
    found = findings(now, View(1, frozenset((1,)), {}))
    assert level_of(found) is Level.UNAVAILABLE
    text = verdict(found, 1, running=False)
    assert text.startswith("unavailable: no quorum for some ranges of a, b, c, d; nodes 2, 3 are down")


def test_what_a_node_lost_that_nobody_else_has_is_as_bad_for_all() -> None:
    lost = Condition("RANGE_LOST", "k.t (0, 9]", since_us=1)
    for own in (1, 2):
        level, text = said([1, 2, 3], {2: [lost]}, own=own)
        name = "this node" if own == 2 else "node 2"
        assert level is Level.UNAVAILABLE
        assert text == f"unavailable: {name} lost k.t (0, 9], of which no other replica exists"
    detail = "3 of 16 ranges are filled; it lacks k.t"
    lacking = Condition("RANGE_LACKING", "all of it", since_us=1, detail=detail)
    level, text = said([1, 2, 3], {2: [lacking]})
    assert level is Level.DEGRADED, "others fill it"
    assert text.endswith(
        f"node 2 lost a part of its store (all of it) and is filled from other replicas: {detail}"
    )


def test_full_disks_count_for_writes_only() -> None:
    assert said([1, 2, 3], {2: [FULL]})[0] is Level.DEGRADED
    level, text = said([1, 2], {2: [FULL]})
    assert level is Level.UNAVAILABLE and "no quorum takes writes for some ranges of ks" in text


def witnessed(**factors: tuple[int, int]) -> ClusterMetadata:
    """Three nodes in data centre a and two in b, with so many replicas, and so many of these witnesses."""
    counts = [(dc, count) for dc, pair in factors.items() for count in (-pair[1], pair[0]) if count]
    setting = Replication("NetworkTopologyStrategy", tuple(sorted(counts)))
    founders = tuple(founder(number, (100 * number,), "aaabb"[number - 1]) for number in range(1, 6))
    history = History()
    history.submit(Initialize("cluster-1", "test", founders))
    history.submit(SetKeyspaces((("ks", setting),)))
    return history.now


def test_witnesses_make_a_quorum_and_show_no_data() -> None:
    now = witnessed(a=(3, 1), b=(2, 2))
    for down in ((1, 2), (1, 3), (2, 3)):
        found = findings(now, View(4, frozenset({1, 2, 3, 4, 5} - {*down}), {}))
        codes = [one.condition.code for one in found if one.node == 0]
        assert "NO_QUORUM" in codes, f"of some range {down} are the two that have its data"
    assert level_of(findings(now, View(1, frozenset((1, 2, 3)), {}))) is Level.DEGRADED


def test_a_full_journal_counts_for_writes_of_ranges_of_which_the_node_is_a_witness() -> None:
    now, laden = witnessed(a=(3, 1)), [Condition("WITNESS_JOURNAL_FULL", since_us=1)]
    assert level_of(findings(now, View(1, frozenset(range(1, 6)), {2: laden}))) is Level.DEGRADED
    found = findings(now, View(1, frozenset((1, 2, 4, 5)), {2: laden}))
    assert [one.condition.code for one in found if one.node == 0] == ["NO_WRITE_QUORUM"]
    every = dict.fromkeys((1, 2, 3), laden)
    assert level_of(findings(now, View(1, frozenset(range(1, 6)), every))) is Level.DEGRADED
    untouched = started([(100,), (200,), (300,)], ("ks", simple(3))).now
    assert level_of(findings(untouched, View(1, frozenset((1, 2)), {1: laden, 2: laden}))) is Level.DEGRADED


def test_what_stops_one_node_is_unavailable_there_and_a_degraded_cluster_elsewhere() -> None:
    stopped = {2: [Condition("METADATA_STOPPED", detail="an unknown kind")]}
    assert said([1, 2, 3], stopped, own=2) == (
        Level.UNAVAILABLE,
        "unavailable: this node serves no more: an unknown kind",
    )
    assert said([1, 2, 3], stopped)[0] is Level.DEGRADED


def test_a_verdict_tells_at_most_three_things_and_whether_quorums_hold() -> None:
    names = {code: CONDITIONS[code].withholds for code in ("NODE_DRAINED", "DISK_FULL", "NODE_DOWN")}
    assert names == {"NODE_DRAINED": "nothing", "DISK_FULL": "writes", "NODE_DOWN": "everything"}
    drained, full = [Condition("NODE_DRAINED")], [FULL]
    assert said([1, 2, 3], {2: drained})[1] == ("degraded: node 2 was drained and serves no clients"), (
        "it is a replica as before, so nothing is to be said of quorums"
    )
    assert said([1, 2, 3], {2: drained, 3: full})[1].endswith("is full; every range has a quorum")
    four = {1: drained, 2: [*drained, Condition("NODE_OVERLOADED")], 3: drained}
    level, text = said([1, 2, 3], four)
    assert level is Level.DEGRADED and text.count(";") == 3 and text.endswith("; 1 more")
    three = said([1, 2, 3], {1: drained, 2: drained, 3: drained})[1]
    assert three.count(";") == 2 and "more" not in three and three.startswith("degraded: this node was")
    assert verdict((), 1, running=True) == (
        "healthy: every range has all its replicas; topology changes are running"
    )
    assert verdict((), 1, running=False) == "healthy: every range has all its replicas"


def test_a_leaderless_group_is_not_told_where_it_has_no_majority() -> None:
    leaderless = {2: [Condition("METADATA_NO_LEADER")]}
    assert cluster().voters == (1,)

    def codes(alive: Sequence[int]) -> set[str]:
        view = View(2, frozenset(alive), leaderless)
        return {one.condition.code for one in findings(cluster(), view)}

    assert codes([1, 2, 3]) == {"METADATA_NO_LEADER"}
    assert codes([2, 3]) == {"METADATA_NO_MAJORITY", "NODE_DOWN"}


def test_a_finding_says_which_command_comes_next() -> None:
    hint = findings(cluster(), View(1, frozenset((1, 2)), {}))[0]
    assert (hint.hint, hint.kind.code) == ("start it; its own log says why it ended", "NODE_DOWN")
    shut = started([(100,), (200,), (300,)], ("ks", simple(3)))
    shut.submit(ExcludeNodes((NodeId(3),), "late"))
    (excluded,) = findings(shut.now, View(1, frozenset((1, 2, 3)), {}))
    assert excluded.hint == "lockstep topology exclude 3 --undo, once it has caught up"


def test_a_condition_of_a_newer_release_is_not_healthy() -> None:
    level, text = said([1, 2, 3], {3: [Condition("LEAKS_OIL", "gasket")]})
    assert level is Level.DEGRADED and "LEAKS_OIL gasket" in text


def test_every_row_makes_a_sentence_and_says_what_to_do() -> None:
    for code, kind in CONDITIONS.items():
        assert kind.summary.format(node="node 1", subject="s", detail="d") and kind.at_risk, code
        assert kind.hint.format(id=1, subject="s"), code


# -- nobody is told healthy when it is not


def degraded_cluster() -> ClusterMetadata:
    history = started([(100,), (200,), (300,), (400,)], ("ks", simple(2)))
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    return history.now


def test_ranges_that_may_lack_writes_are_a_finding_until_they_are_repaired() -> None:
    now = degraded_cluster()
    (one,) = findings(now, View(1, frozenset((1, 2, 3)), {}))
    assert (one.condition.code, one.condition.subject, one.level) == ("RANGES_DEGRADED", "ks", Level.DEGRADED)
    assert one.condition.detail.startswith("2 ranges, where nodes 1, 2 may lack writes")
    assert findings(now.changed(DEGRADED.set(())), View(1, frozenset((1, 2, 3)), {})) == ()


def test_a_keyspace_of_which_nothing_is_degraded_is_no_finding() -> None:
    history = started([(100,), (200,), (300,), (400,)], ("ks", simple(2)), ("whole", simple(3)))
    group = history.now.schema.by_name["ks"].group
    now = history.now.changed(DEGRADED.set((Degraded(group, FULL_RING, 2, (NodeId(1),)),)))
    found = findings(now, View(1, frozenset((1, 2, 3, 4)), {}))
    assert [one.condition.subject for one in found] == ["ks"]


def test_a_newcomer_that_died_a_drained_and_a_silent_node_are_findings() -> None:
    history = started([(100,), (200,), (300,)], ("ks", simple(3)))
    history.submit(register(4, "dc1", "r1"))
    history.submit(EnqueueRequest(Bootstrap(NodeId(4), (400,)), actor="node 4"))
    everyone = frozenset((1, 2, 3))
    (joiner,) = findings(history.now, View(1, everyone, {}))
    assert (joiner.condition.code, joiner.node) == ("JOINER_DOWN", 4)
    plain = cluster()
    (silent,) = findings(plain, View(1, everyone, {}, frozenset((2,))))
    assert (silent.condition.code, silent.node) == ("NODE_NOT_SERVING", 2)
    drained = {2: (Condition("NODE_DRAINED"),)}
    assert [one.condition.code for one in findings(plain, View(1, everyone, drained, frozenset((2,))))] == [
        "NODE_DRAINED"
    ]


def test_a_frozen_metadata_is_a_finding() -> None:
    history = started([(100,), (200,), (300,)], ("ks", simple(3)))
    history.submit(SetService(ServiceWish.FREEZE, text="upgrade"))
    (one,) = findings(history.now, View(1, frozenset((1, 2, 3)), {}))
    assert one.sentence(1) == "the metadata is frozen: upgrade"


def level_by_hand(now: ClusterMetadata, view: View) -> Level:
    """The slow twin: every key of every keyspace is asked for, and everything that can be wrong is listed."""
    out, full, wrong = set[int](), set[int](), bool(now.degraded or now.service.frozen)
    own_serves = True
    for info in now.directory.nodes:
        codes = {condition.code for condition in view.reported.get(info.id, ())}
        if info.state is NodeState.LEFT:
            continue
        shut_out = any(one.node == info.id for one in now.excluded)
        stopped = "METADATA_STOPPED" in codes and info.id in view.alive
        if info.id not in view.alive or shut_out or stopped:
            wrong = True
            out.add(info.id)
            own_serves = own_serves and info.id != view.own
        elif codes or info.id in view.not_serving:
            wrong = True
            if "DISK_FULL" in codes:
                full.add(info.id)
    if 2 * len([v for v in now.voters if v in view.alive]) <= len(now.voters):
        wrong = True
    for keyspace in now.schema.keyspaces:
        for token in range(50, 500, 100):
            replicas = now.placements.ring(keyspace.group).group_for(token).reads
            for gone in (out, out | full):
                if len([one for one in replicas if one not in gone]) < len(replicas) // 2 + 1:
                    return Level.UNAVAILABLE
    if not own_serves:
        return Level.UNAVAILABLE
    return Level.DEGRADED if wrong else Level.HEALTHY


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_the_level_is_that_of_a_slow_twin_for_any_state(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    factor = data.draw(st.integers(1, count))
    history = started([(100 * n,) for n in range(1, count + 1)], ("ks", simple(factor)), ("one", simple(1)))
    if count > 2 and data.draw(st.booleans()):
        history.tried(ForceRemove(NodeId(count), "its disk burnt"))
    if data.draw(st.booleans()):
        history.tried(ExcludeNodes((NodeId(data.draw(st.integers(1, count))),), "suspect"))
    if data.draw(st.integers(0, 4)) == 0:
        history.submit(SetService(ServiceWish.FREEZE, text="upgrade"))
    nodes = st.sets(st.integers(1, count), max_size=count)
    alive = frozenset(range(1, count + 1)) - data.draw(nodes.filter(lambda down: 1 not in down))
    reported = {
        node: tuple(Condition(code) for code in sorted(data.draw(st.sets(st.sampled_from(REPORTED)))))
        for node in sorted(alive & data.draw(nodes))
    }
    view = View(1, alive, reported, frozenset(alive & data.draw(nodes)))
    found = findings(history.now, view)
    assert level_of(found) is level_by_hand(history.now, view), found
    assert verdict(found, 1, running=False).startswith(level_of(found).word)


#: Of each severity, and one that this release does not know.
REPORTED = ("DISK_FULL", "METADATA_STOPPED", "NODE_DRAINED", "OPERATION_STUCK", "LEAKS_OIL")
