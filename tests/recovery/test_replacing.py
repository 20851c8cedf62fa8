"""Plans that take entries out of the log: what is refused, and what a plan comes to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import IDENTITY, LINEAGE, Identity
from lockstep.recovery.plan import Drawn, ResetPlan, Survey, require_sound
from lockstep.recovery.replacing import (
    Cut,
    Held,
    Put,
    begun,
    counted_on,
    edited,
    packed,
    plan_cut,
    plan_put,
    problem_with,
    unpacked,
)
from lockstep.values.errors import CorruptFile, PreconditionError
from lockstep.values.ids import NodeId
from tests.recovery.support import REGISTRY, founded, history

DRAWN = Drawn("attempt", "new", b"e" * 16, 7)
VOTERS = tuple(map(NodeId, (1, 2, 3)))


def held(before: ClusterMetadata, node: int, **changed: Any) -> Held:
    """Of a broken node that has applied what was before the entry, and has that one in its log."""
    survey = Survey(
        node=node,
        cluster_id=before.identity.cluster_id,
        epoch=before.epoch,
        hash=before.hash,
        log_epoch=before.epoch + 1,
        log_term=3,
        raft_index=9,
        raft_term=4,
    )
    of_survey = {name: changed.pop(name) for name in tuple(changed) if name in Survey.__struct_fields__}
    made = Held(
        msgspec.structs.replace(survey, **of_survey),
        broken="it cannot be applied",
        committed=before.epoch + 1,
        voters=VOTERS,
        hash_before=before.hash,
        value_before=True,
        entries=(),
    )
    return msgspec.structs.replace(made, **changed)


def plan(before: ClusterMetadata, told: list[Held], *, committed: bool = True) -> ResetPlan:
    cut = Cut(before.epoch + 1, "operator", committed)
    return plan_cut(before, told, (), cut, DRAWN, REGISTRY, [(before.epoch, before.hash)])


def test_a_plan_goes_on_where_the_entry_was() -> None:
    before = founded()
    made = plan(before, [held(before, node) for node in VOTERS])
    require_sound(made)
    _, after = begun(made, REGISTRY)
    assert after.identity.lineage == (*before.identity.lineage, "new") and after.epoch == before.epoch + 2
    assert tuple(after.voters) == VOTERS and made.raft_term == 5 and made.raft_index == 10
    assert after.parts[LINEAGE][-1].hash == before.hash


def test_epochs_that_were_shown_do_not_come_again() -> None:
    before = founded()
    shown = before.epoch + 4
    told = [held(before, 1), held(before, 2, epoch=shown, log_epoch=shown), held(before, 3)]
    made = plan(before, told)
    assert made.base_epoch == shown and made.base_hash not in {before.hash}
    _, after = begun(made, REGISTRY)
    assert after.epoch == shown + 2


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"cluster_id": "other"}, "another incarnation"),
        ({"hash_before": b"another"}, "different entries at epoch"),
    ],
)
def test_nodes_of_another_history_take_no_part(changed: dict[str, Any], text: str) -> None:
    before = founded()
    with pytest.raises(PreconditionError, match=text):
        plan(before, [held(before, 1), held(before, 2), held(before, 3, **changed)])


def test_voters_of_now_decide_whether_the_group_lives_not_those_of_then() -> None:
    """Before the entry there was one voter, and it can apply every entry; of three it is no majority."""
    before = founded()
    assert tuple(before.voters) == (1,)
    told = [held(before, 1, broken=""), held(before, 2), held(before, 3)]
    assert plan(before, told).voters == VOTERS
    told[1] = held(before, 2, broken="")
    with pytest.raises(PreconditionError, match="2 of 3 voters can apply"):
        plan(before, told)


def test_what_is_committed_takes_a_word_of_its_own() -> None:
    before = founded()
    told = [held(before, node) for node in VOTERS]
    with pytest.raises(PreconditionError, match="are committed"):
        plan(before, told, committed=False)
    uncommitted = [held(before, node, committed=before.epoch) for node in VOTERS]
    assert plan(before, uncommitted, committed=False).lost.startswith("entries")


def test_there_has_to_be_an_entry() -> None:
    before = founded()
    told = [held(before, node, committed=before.epoch, log_epoch=before.epoch) for node in VOTERS]
    with pytest.raises(PreconditionError, match="there is no entry"):
        plan(before, told)


@pytest.mark.parametrize(
    ("changed", "broken", "text"),
    [
        ({}, True, None),
        ({"cluster_id": "other"}, True, "is of cluster other"),
        ({"node": 9}, True, "takes no part"),
        ({"epoch": 99}, True, "applied epoch 99"),
        ({"log_term": 8}, True, "a fresher log"),
        ({"leader": 1}, True, None),
        ({"leader": 1}, False, "knows a leader"),
    ],
)
def test_who_is_not_as_planned_takes_no_part(changed: dict[str, Any], broken: bool, text: str | None) -> None:
    before = founded()
    made = plan(before, [held(before, node) for node in VOTERS])
    survey = msgspec.structs.replace(held(before, 2).survey, **changed)
    found = problem_with(made, survey, broken=broken)
    assert found is None if text is None else text in (found or "")


def test_a_plan_that_was_changed_on_its_way_is_refused() -> None:
    before = founded()
    made = plan(before, [held(before, node) for node in VOTERS])
    for changed in (
        msgspec.structs.replace(made, value=made.value[:-9] + b"123456789"),
        msgspec.structs.replace(made, value=packed(counted_on(before, before.epoch + 3))),
    ):
        with pytest.raises(CorruptFile):
            begun(changed, REGISTRY)
    assert unpacked(made.value, REGISTRY).hash == before.hash


def put(value: ClusterMetadata, current: ClusterMetadata, told: list[Held], **wish: Any) -> ResetPlan:
    return plan_put(value, current, told, Put("load", "operator", **wish), DRAWN, REGISTRY)


def test_what_is_brought_comes_above_every_known_epoch() -> None:
    current = founded(more=3)
    old = founded()
    told = [held(current, node) for node in VOTERS]
    made = put(old, current, told)
    assert made.base_epoch == current.epoch + 1, "also above what is only in a log"
    _, after = begun(made, REGISTRY)
    assert after.extensions.by_name["a"] == old.extensions.by_name["a"]
    assert not made.hashes and after.identity.lineage == ("cluster-1", "new")


def test_what_a_node_has_goes_on_where_it_is() -> None:
    current = founded()
    told = [held(current, node) for node in VOTERS]
    made = put(current, current, told, voters=(NodeId(2),))
    assert (made.base_epoch, made.base_hash, made.voters) == (current.epoch, current.hash, (2,))
    told[1] = held(current, 2, epoch=current.epoch + 1)
    with pytest.raises(PreconditionError, match="node 2 has applied more"):
        put(current, current, told, voters=(NodeId(2),))


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"nodes": (9,)}, "nodes 9 do not answer"),
        ({"voters": (3,), "nodes": (1, 2)}, "nodes 3 do not answer"),
    ],
)
def test_who_is_named_has_to_be_there(wish: dict[str, Any], text: str) -> None:
    current = founded()
    with pytest.raises(PreconditionError, match=text):
        put(current, current, [held(current, node) for node in VOTERS], **wish)


def test_metadata_of_another_cluster_are_refused() -> None:
    current = founded()
    other = current.changed(IDENTITY.set(Identity("x", "test", ("x",))))
    other = counted_on(other, other.epoch + 1)
    with pytest.raises(PreconditionError, match="which this one never was"):
        put(other, current, [held(current, node) for node in VOTERS])


def test_an_entry_is_left_out_and_those_behind_it_are_applied_again() -> None:
    made = history(more=3)
    base, entries = empty_cluster(REGISTRY.parts), made.entries
    last = entries[-1].epoch
    whole = edited(base, entries, REGISTRY, up_to=last, without=frozenset())
    assert whole.hash == made.now.hash
    value = edited(base, entries, REGISTRY, up_to=last, without=frozenset({3}))
    assert value.epoch == last - 1 and len(value.extensions.by_name) == len(whole.extensions.by_name) - 1
    with pytest.raises(PreconditionError, match="entry 2 cannot follow"):
        edited(base, entries, REGISTRY, up_to=last, without=frozenset({1}))
    with pytest.raises(PreconditionError, match="there is no entry 99"):
        edited(base, entries, REGISTRY, up_to=last, without=frozenset({99}))
