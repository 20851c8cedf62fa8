"""Whose log goes on after a majority was lost, who votes from then on, and when there is no plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import LINEAGE, Reset
from lockstep.metadata.lineage import KINDS as RESET_KINDS
from lockstep.metadata.lineage import ResetCluster, former_of, links_of
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import LogEntry, seal
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import Initialize, SetExtension
from lockstep.recovery.plan import (
    Drawn,
    ResetPlan,
    Survey,
    Wish,
    ahead_of,
    check_against,
    make_plan,
    require_sound,
    source_of,
)
from lockstep.values import codec
from lockstep.values.errors import PreconditionError, Rejected
from tests.metadata.histories import History, founder, registry

DRAWN = Drawn("attempt-1", "cluster-2", b"e" * 16, 5_000)
_REGISTRY = registry(RESET_KINDS)


def history(nodes: int = 5, voters: tuple[int, ...] = (1, 2, 3), places: str = "") -> History:
    """`places`: data centre and rack of each node, a letter and a digit each."""
    made = History(_REGISTRY)
    found = tuple(
        founder(
            number,
            (number * 10,),
            dc=f"dc-{places[2 * number - 2]}" if places else "dc1",
            rack=places[2 * number - 1] if places else "r1",
        )
        for number in range(1, nodes + 1)
    )
    made.submit(Initialize("cluster-1", "test", found, voters=voters))  # type: ignore[arg-type]
    made.submit(SetExtension("a", b"1"))
    return made


def survey(cluster: ClusterMetadata, node: int, **changed: Any) -> Survey:
    made = Survey(
        node=node,
        cluster_id=cluster.identity.cluster_id,
        epoch=cluster.epoch,
        hash=cluster.hash,
        log_epoch=cluster.epoch,
        log_term=1,
        raft_index=10,
        raft_term=1,
    )
    return msgspec.structs.replace(made, **changed)


def following(cluster: ClusterMetadata, count: int, term: int) -> list[LogEntry]:
    """Entries behind a value, as a leader of that term appended them."""
    entries: list[LogEntry] = []
    epoch, previous = cluster.epoch, cluster.hash
    for number in range(count):
        kind, body = _REGISTRY.encode(SetExtension("b", b"%d" % number))
        entry = seal(
            epoch=epoch + 1,
            entry_id=(900 + number).to_bytes(16, "big"),
            kind=kind,
            body=body,
            actor="test",
            commit_time_us=1,
            term=term,
            previous_hash=previous,
        )
        entries.append(entry)
        epoch, previous = entry.epoch, entry.hash
    return entries


def applied(cluster: ClusterMetadata, entries: tuple[LogEntry, ...]) -> ClusterMetadata:
    for entry in entries:
        cluster = apply_entry(cluster, entry, _REGISTRY)
    return cluster


def test_the_plan_gives_another_id_to_what_is_left() -> None:
    cluster = history().now
    plan = make_plan(cluster, [survey(cluster, 4), survey(cluster, 5)], (), Wish(actor="operator"), DRAWN)
    require_sound(plan)
    assert (plan.participants, plan.absent, plan.voters, plan.management) == ((4, 5), (1, 2, 3), (4,), (4,))
    assert (plan.raft_index, plan.raft_term) == (11, 2)
    assert plan.lost == "entries above epoch 2, if there are any: only nodes 1, 2, 3 could know of them"
    after = applied(cluster, plan.entries)
    assert after.identity.lineage == ("cluster-1", "cluster-2") and after.identity.cluster_name == "test"
    assert tuple(after.voters) == (4,) and after.service.recovery_generation == 1
    (repaired,) = after.parts[LINEAGE]
    assert (repaired.kind, repaired.epoch, repaired.hash) == ("reset", cluster.epoch, cluster.hash)
    links = links_of(after.identity, after.parts[LINEAGE])
    assert links[1].previous_hash == links[0].hash
    assert [one.cluster_id for one in former_of(after.identity, after.parts[LINEAGE])] == ["cluster-1"]
    again = codec.decoder(ResetPlan).decode(codec.encode(plan))
    assert again == plan and again.digest == plan.digest


def test_26_freshness_is_term_and_then_epoch() -> None:
    cluster = history().now
    low = survey(cluster, 4, log_term=4, log_epoch=900)
    high = survey(cluster, 5, log_term=5, log_epoch=100)
    assert source_of([low, high]) is high and source_of([high, low]) is high
    same = survey(cluster, 1, log_term=5, log_epoch=100)
    assert source_of([high, same]) is same, "the lower id among equals, whoever answers first"
    assert ahead_of([survey(cluster, 4, epoch=7), survey(cluster, 5, epoch=8)]).node == 5


def test_3_entries_that_only_some_had_are_kept_everywhere() -> None:
    cluster = history().now
    tail = following(cluster, 2, term=3)
    answers = [
        survey(cluster, 3),
        survey(cluster, 4, log_epoch=tail[-1].epoch, log_term=3, raft_index=12),
        survey(cluster, 5, log_epoch=tail[-1].epoch, log_term=3, raft_index=12),
    ]
    plan = make_plan(cluster, answers, tail, Wish(size=3), DRAWN)
    assert plan.source == 4 and plan.voters == (3, 4, 5) and plan.raft_term == 4
    assert [one.epoch for one in plan.entries] == [3, 4, 5]
    after = applied(cluster, plan.entries)
    assert after.epoch == 5 and after.parts[LINEAGE][0].hash == tail[-1].hash
    for own in answers:
        check_against(plan, own)
    assert plan.digest != make_plan(cluster, answers[:2], tail, Wish(), DRAWN).digest


def test_a_tail_that_does_not_fit_is_no_plan() -> None:
    cluster = history().now
    tail = following(cluster, 2, term=3)
    told = survey(cluster, 4, log_epoch=tail[-1].epoch, log_term=3)
    for wrong in ((), tail[:1], tail[1:]):
        with pytest.raises(PreconditionError, match="does not go on where"):
            make_plan(cluster, [told, survey(cluster, 5)], wrong, Wish(), DRAWN)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"cluster_id": "cluster-9"}, "and cluster-1 is repaired"),
        ({"node": 1}, "takes no part"),
        ({"leader": 2}, "knows a leader"),
        ({"epoch": 3}, "is at epoch 3"),
        ({"hash": b"x" * 32}, "the plan begins at 2"),
        ({"log_term": 2, "log_epoch": 3}, "a fresher log"),
        ({"log_epoch": 3}, "a fresher log"),
    ],
)
def test_reality_that_moved_is_refused(changed: dict[str, Any], text: str) -> None:
    cluster = history().now
    plan = make_plan(cluster, [survey(cluster, 4), survey(cluster, 5)], (), Wish(), DRAWN)
    check_against(plan, survey(cluster, 4))
    with pytest.raises(Rejected, match=text):
        check_against(plan, survey(cluster, **({"node": 4} | changed)))


@pytest.mark.parametrize(
    ("nodes", "changed", "wish", "text"),
    [
        ((2, 3, 4), {}, Wish(), "2 of 3 voters answer"),
        ((4, 5), {"leader": 2}, Wish(), "node 2 leads it"),
        ((4, 5), {"cluster_id": "other"}, Wish(), "another incarnation"),
        ((4, 5), {}, Wish(size=4), "odd number"),
        ((4, 5), {}, Wish(size=9), "up to 7"),
        ((4, 5), {}, Wish(size=-1), "odd number"),
        ((4, 5), {}, Wish(size=3), "2 of those that answer may vote"),
        ((4, 5), {}, Wish(management=(4, 4)), "each node once"),  # type: ignore[arg-type]
        ((4, 5), {}, Wish(management=(3,)), "do not answer"),  # type: ignore[arg-type]
    ],
)
def test_4_what_makes_no_sense_is_refused(
    nodes: tuple[int, ...], changed: dict[str, Any], wish: Wish, text: str
) -> None:
    cluster = history().now
    with pytest.raises(PreconditionError, match=text):
        make_plan(cluster, [survey(cluster, node, **changed) for node in nodes], (), wish, DRAWN)


def test_26_voters_spread_over_places_and_one_of_the_freshest_is_in() -> None:
    cluster = history(7, (1, 2, 3), "a1a1a1a1a2b1b2").now
    tail = following(cluster, 1, term=2)
    fresh = {"log_epoch": tail[0].epoch, "log_term": 2}
    answers = [survey(cluster, 3), survey(cluster, 4, **fresh), *(survey(cluster, n) for n in (5, 6, 7))]
    plan = make_plan(cluster, answers, tail, Wish(size=3), DRAWN)
    assert plan.voters == (4, 5, 6), "the freshest, another data centre, another rack"
    assert make_plan(cluster, answers, tail, Wish(size=1), DRAWN).voters == (4,)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_equal_answers_give_equal_plans(data: st.DataObject) -> None:
    cluster = history(6, (1, 2, 3)).now
    here = data.draw(st.lists(st.sampled_from([3, 4, 5, 6]), unique=True, min_size=1))
    answers = [
        survey(
            cluster, node, raft_index=data.draw(st.integers(0, 50)), raft_term=data.draw(st.integers(0, 9))
        )
        for node in here
    ]
    plan = make_plan(cluster, answers, (), Wish(), DRAWN)
    mixed = make_plan(cluster, data.draw(st.permutations(answers)), (), Wish(), DRAWN)
    assert plan == mixed and len(plan.voters) % 2 == 1 and {*plan.voters} <= {*here}
    assert plan.raft_term > max(one.raft_term for one in answers)
    assert plan.raft_index > max(one.raft_index for one in answers)


def test_a_group_with_a_majority_takes_no_reset_entry() -> None:
    made = history()
    repaired = Reset("cluster-2", "reset", "x", made.now.epoch, made.now.hash, 1)
    refusal = made.tried(ResetCluster(repaired, (1,)))  # type: ignore[arg-type]
    assert refusal is not None and "is not repaired" in refusal.message


@pytest.mark.parametrize(
    ("changed", "voters", "text"),
    [
        ({"cluster_id": "cluster-1"}, (4,), "is not a new one"),
        ({"cluster_id": ""}, (4,), "is not a new one"),
        ({"epoch": 1}, (4,), "the log is at 2"),
        ({}, (), "at least"),
        ({}, (5, 4), "ascending"),
        ({}, (9,), "no node 9"),
        ({}, tuple(range(1, 9)), "at most 7"),
    ],
)
def test_the_entry_refuses_what_would_break_the_lineage(
    changed: dict[str, Any], voters: tuple[int, ...], text: str
) -> None:
    cluster = history().now
    repaired = Reset("cluster-2", "reset", "x", cluster.epoch, cluster.hash, 1)
    entry = ResetCluster(msgspec.structs.replace(repaired, **changed), voters)  # type: ignore[arg-type]
    with pytest.raises(Rejected, match=text):
        entry.apply(cluster, cluster.epoch + 1)
    assert EntryKind.RESET_CLUSTER == 70
