"""Values that contradict themselves: each thing that must hold of every value is noticed where it does not,
by the check of whole values and by the one of what an entry changed."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lockstep.metadata.access.roles import ACCESS, Role, access_of
from lockstep.metadata.cdc import GENERATIONS, Generation, packed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.directory import (
    DIRECTORY,
    EXCLUDED,
    FEATURE_STATE,
    Exclusion,
    FeatureState,
    NodeInfo,
    NodeState,
)
from lockstep.metadata.groups.service import SERVICE, MembershipChange
from lockstep.metadata.log.apply import completed
from lockstep.metadata.log.entries import seal
from lockstep.metadata.operations import OPERATIONS
from lockstep.metadata.requests import REQUESTS
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.transitions import NO_TRANSITIONS, TRANSITIONS, transitions_of
from lockstep.placement.placements import PlacedRange
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import History, simple, started
from tests.metadata.test_log import register

replace: Callable[..., Any] = msgspec.structs.replace
Break = Callable[[ClusterMetadata], ClusterMetadata]


def history() -> History:
    """Three nodes, one that joins under operation 1 and one that waits to leave."""
    made = started([(0,), (100,), (200,)], ("one", simple(1)), ("two", simple(2)))
    made.submit(register(7))
    made.submit(PrepareOperation(Bootstrap(NodeId(4), (50, 70))))
    made.submit(EnqueueRequest(Decommission(NodeId(3)), actor="test"))
    return made


VALUE = history().now


def node(number: int, **changed: Any) -> Break:
    """One node's entry is another one."""

    def broken(value: ClusterMetadata) -> ClusterMetadata:
        nodes = [replace(one, **changed) if one.id == number else one for one in value.directory.nodes]
        return value.changed(DIRECTORY.set(replace(value.directory, nodes=tuple(nodes))))

    return broken


def nodes(change: Callable[[tuple[NodeInfo, ...]], tuple[NodeInfo, ...]]) -> Break:
    return lambda v: v.changed(DIRECTORY.set(replace(v.directory, nodes=change(v.directory.nodes))))


def directory(**changed: Any) -> Break:
    return lambda v: v.changed(DIRECTORY.set(replace(v.directory, **changed)))


def service(**changed: Any) -> Break:
    return lambda v: v.changed(SERVICE.set(replace(v.service, **changed)))


def operations(**changed: Any) -> Break:
    """`changed(value)` gives each field of what runs."""
    return lambda v: v.changed(
        OPERATIONS.set(replace(v.running, **{name: of(v) for name, of in changed.items()}))
    )


def operation(**changed: Any) -> Break:
    return lambda v: v.changed(
        OPERATIONS.set(replace(v.running, running=(replace(v.operations[0], **changed), *v.operations[1:])))
    )


def moving(**changed: Any) -> Break:
    """The first transition is another one."""

    def broken(value: ClusterMetadata) -> ClusterMetadata:
        first, *others = value.transitions.listed()
        return value.changed(TRANSITIONS.set(transitions_of((replace(first, **changed), *others))))

    return broken


def ended(value: ClusterMetadata) -> ClusterMetadata:
    """Without what runs, but not without the request for it."""
    return value.changed(OPERATIONS.set(value.running.without(1)), TRANSITIONS.set(NO_TRANSITIONS))


def ring(change: Callable[[tuple[PlacedRange, ...]], tuple[PlacedRange, ...]]) -> Break:
    """The last ring has other ranges."""

    def broken(value: ClusterMetadata) -> ClusterMetadata:
        last = value.placements.rings[-1]
        return value.changed(
            PLACEMENTS.set(value.placements.with_rings((last.with_ranges(change(last.ranges)),)))
        )

    return broken


def generation(at_ms: int, published: int, tokens: bytes | None = None) -> Generation:
    return Generation(at_ms, "id", 0, 1, packed(array("q", [5])) if tokens is None else tokens, published)


def generations(*listed: Generation) -> Break:
    return lambda v: v.changed(GENERATIONS.set(listed))


def excluded(*nodes: int) -> Break:
    return lambda v: v.changed(EXCLUDED.set(tuple(Exclusion(NodeId(node), 1, "") for node in nodes)))


def change(index: int) -> MembershipChange:
    return MembershipChange(9, (NodeId(2),), (NodeId(1),), index=index)


#: What is broken, and what is said of it.
BROKEN: list[tuple[str, Break]] = [
    ("nodes are sorted by id", nodes(lambda n: (n[1], n[0], *n[2:]))),
    ("nodes are sorted by id", nodes(lambda n: (n[0], *n))),
    ("node ids are never reused", directory(next_node_id=4)),
    ("host ids are unique", node(2, host_id="host-1")),
    ("host ids are unique", node(2, host_id="host-1", state=NodeState.LEFT, tokens=())),
    ("addresses are unique", node(2, address="10.0.0.1")),
    ("a token has one owner", node(2, tokens=(0,))),
    ("a token has one owner", node(2, tokens=(100, 100))),
    ("tokens of node 2 are sorted", node(2, tokens=(100, 90))),
    ("node 2 is left and has tokens", node(2, state=NodeState.LEFT)),
    ("node 2 asked for no tokens", node(2, num_tokens=0)),
    ("voters are sorted and unique", service(voters=(NodeId(2), NodeId(1)))),
    ("voters are sorted and unique", service(voters=(NodeId(1), NodeId(1)))),
    ("leaving nodes are sorted and unique", service(leaving=(NodeId(3), NodeId(2)))),
    ("leaving nodes are sorted and unique", service(leaving=(NodeId(3), NodeId(3)))),
    ("only what a snapshot holds is truncated", service(snapshot_epoch=3, truncated_epoch=4)),
    ("a change has steps", service(change=change(2))),
    ("a change has steps", service(change=change(-1))),
    ("a change has steps", service(change=MembershipChange(9, (), ()))),
    ("generations ascend", generations(generation(2, 1), generation(1, 1))),
    ("generations ascend", generations(generation(2, 1), generation(2, 1))),
    ("before an older one", generations(generation(1, 0), generation(2, 1))),
    ("whole tokens", generations(generation(1, 1, b""))),
    ("whole tokens", generations(generation(1, 1, b"123456789"))),
    ("is one placed range", moving(range=Range(0, 40))),
    ("is one placed range", moving(range=Range(10, 50))),
    ("is there", moving(group=9)),
    ("transitions are of operations that run", moving(operation_id=9)),
    ("operations are sorted by id", operations(running=lambda v: v.operations * 2)),
    (
        "operations and running requests match",
        ended,
    ),
    ("request ids are never reused", lambda v: v.changed(REQUESTS.set(replace(v.requests, next_id=1)))),
    ("sessions match operations", operation(session_id="another")),
    ("exactly the groups in use", lambda v: v.changed(PLACEMENTS.set(v.placements.without((2,))))),
    ("gap or overlap", ring(lambda ranges: ranges[1:])),
    ("have no replicas", ring(lambda ranges: ranges[:-1])),
    ("a ring has at least one range", ring(lambda ranges: ())),
    ("operation ids are never reused", operations(next_id=lambda v: v.operations[0].id)),
    ("sessions match operations", operations(sessions=lambda v: ())),
    ("enabled features are sorted", lambda v: v.changed(FEATURE_STATE.set(FeatureState(("b", "a"))))),
    ("enabled features are sorted", lambda v: v.changed(FEATURE_STATE.set(FeatureState(("a", "a"))))),
    ("sorted by node", excluded(3, 2)),
    ("sorted by node", excluded(3, 3)),
    (
        "degraded ranges are used",
        lambda v: v.changed(DEGRADED.set((Degraded(3, Range(0, 1), 1, ()),))),
    ),
]  # fmt: skip

#: The same of what costs too much to look at after every entry, or follows from how an entry is applied: only
#: whole values are checked for it.
BROKEN_AS_A_WHOLE: list[tuple[str, Break]] = [
    ("recent ids end at the epoch", lambda v: replace(v, epoch=v.epoch + 1)),
    ("memberships are sorted", lambda v: v.changed(ACCESS.set(access_of(
        [Role("a"), Role("b"), Role("c", member_of=("b", "a"))], [])))),
    ("which is not there", lambda v: v.changed(ACCESS.set(access_of([Role("c", member_of=("a",))], [])))),
    ("is a member of itself", lambda v: v.changed(ACCESS.set(access_of(
        [Role("a", member_of=("b",)), Role("b", member_of=("a",))], [])))),
]  # fmt: skip


@pytest.mark.parametrize(("why", "broken"), [*BROKEN, *BROKEN_AS_A_WHOLE])
def test_a_value_that_contradicts_itself_is_noticed(why: str, broken: Break) -> None:
    VALUE.validate()
    with pytest.raises(AssertionError) as found:
        broken(VALUE).validate()
    assert why in str(found.value)


@pytest.mark.parametrize(("why", "broken"), BROKEN)
def test_an_entry_that_breaks_what_it_changes_is_noticed(why: str, broken: Break) -> None:
    with pytest.raises(AssertionError) as found:
        changed_to(broken(VALUE))
    assert why in str(found.value)


def changed_to(value: ClusterMetadata) -> ClusterMetadata:
    """As if an entry made this of VALUE."""
    entry = seal(
        epoch=VALUE.epoch + 1, entry_id=b"e" * 16, kind=1000, body=b"", actor="", commit_time_us=0, term=1,
        previous_hash=VALUE.hash,
    )  # fmt: skip
    return completed(VALUE, value, entry)


def test_sessions_and_keyspaces_change_with_what_they_belong_to() -> None:
    with pytest.raises(AssertionError):
        changed_to(VALUE.changed(OPERATIONS.set(replace(VALUE.running, sessions=VALUE.sessions * 2))))
    other = started([(0,)], ("one", simple(1)), ("three", simple(3))).now
    with pytest.raises(AssertionError):
        changed_to(VALUE.changed(SCHEMA.set(other.schema)))


@pytest.mark.parametrize(
    "sound",
    [
        node(2, state=NodeState.LEFT, tokens=(), address="10.0.0.1"),
        node(4, replaces=NodeId(1), address="10.0.0.1", num_tokens=2),
        service(snapshot_epoch=3, truncated_epoch=3),
        service(change=change(0)),
        service(change=change(1)),
        service(leaving=(NodeId(2), NodeId(3))),
        generations(generation(1, 1), generation(2, 1), generation(3, 0), generation(4, 0)),
    ],
)
def test_what_only_looks_odd_is_accepted(sound: Break) -> None:
    sound(VALUE).validate()
    after = changed_to(sound(VALUE))
    assert after.epoch == VALUE.epoch + 1 and after.recent_ids.epoch_of(b"e" * 16) == after.epoch
