"""The checkers of the metadata service object to what they must, and to nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.consensus.configuration import Configuration, encode_configuration
from lockstep.consensus.messages import Entry, EntryKind
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.conflicts import TABLE, Held, Scope, wanted_of
from lockstep.metadata.groups.service import SERVICE, MembershipChange, Service
from lockstep.metadata.log.entries import LogEntry, seal
from lockstep.metadata.log.registry import EntryKind as LogEntryKind
from lockstep.sim.checkers.consensus import CommittedMonitor, meet
from lockstep.sim.checkers.log import _check_change, check_entry
from lockstep.sim.checkers.violation import Violation
from lockstep.values.ids import NodeId


def configured(index: int, voters: tuple[int, ...], learners: tuple[int, ...] = (), **more: Any) -> Entry:
    data = encode_configuration(Configuration(voters, more.get("outgoing", ()), learners))
    return Entry(index, 1, EntryKind.CONFIGURATION, data)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Configuration((1, 2, 3)), Configuration((1, 2, 3)), True),
        (Configuration((1, 2, 3)), Configuration((1, 2, 3, 4)), True),
        (Configuration((1, 2, 3)), Configuration((1, 4, 5)), False),
        (Configuration((1, 2, 3)), Configuration((1, 2, 3, 4, 5)), False),
        (Configuration((1, 2, 3)), Configuration((4, 5, 6), (1, 2, 3)), True),
        (Configuration((1,)), Configuration((2,)), False),
    ],
)
def test_quorums_of_neighbouring_configurations_meet(
    one: Configuration, other: Configuration, expected: bool
) -> None:
    assert meet(one, other) is expected
    assert meet(other, one) is expected


def monitor() -> CommittedMonitor:
    return CommittedMonitor(lambda member: None)


def test_members_that_commit_the_same_pass() -> None:
    seen = monitor()
    entries = [configured(1, (1,)), configured(2, (1,), (2,)), configured(3, (1, 2))]
    seen.committed("n1.1", entries, None)
    seen.committed("n2.1", entries, None)
    assert [index for index, _ in seen.configurations] == [1, 2, 3]


def test_another_entry_at_one_index_is_refused() -> None:
    seen = monitor()
    seen.committed("n1.1", [Entry(1, 1, EntryKind.NORMAL, b"a")], None)
    with pytest.raises(Violation, match="RFT-1"):
        seen.committed("n2.1", [Entry(1, 2, EntryKind.NORMAL, b"b")], None)


@pytest.mark.parametrize(
    "entries",
    [
        [configured(1, (1,)), configured(2, (1, 2))],
        [configured(1, (1, 2, 3)), configured(2, (1, 4, 5), (4, 5))],
    ],
)
def test_a_vote_without_learning_and_quorums_apart_are_refused(entries: list[Entry]) -> None:
    with pytest.raises(Violation, match="RFT-2"):
        monitor().committed("n1.1", entries, None)


RUNNING = MembershipChange(7, (NodeId(4),), (NodeId(1),))


@pytest.mark.parametrize(
    ("voters", "change", "message"),
    [
        ((1, 2, 3), msgspec.structs.replace(RUNNING, id=9), "begins while"),
        ((1, 2, 3, 4), msgspec.structs.replace(RUNNING, index=2), "goes from sub-step"),
        ((1, 2, 3), msgspec.structs.replace(RUNNING, index=1), "without its effect"),
        ((1, 2, 3), None, "without its effect"),
    ],
)
def test_a_change_that_does_not_go_step_by_step_is_refused(
    voters: tuple[int, ...], change: MembershipChange | None, message: str
) -> None:
    with pytest.raises(Violation, match=message):
        _check_change(Service((1, 2, 3), change=RUNNING), Service(voters, change=change))  # type: ignore[arg-type]


def test_a_step_and_a_cancelled_change_pass() -> None:
    before = Service((1, 2, 3), change=RUNNING)  # type: ignore[arg-type]
    moved = msgspec.structs.replace(RUNNING, index=1)
    _check_change(before, Service((1, 2, 3, 4), change=moved))  # type: ignore[arg-type]
    cancelled = msgspec.structs.replace(RUNNING, cancelled=True)
    _check_change(Service((1, 2, 3), change=cancelled), Service((1, 2, 3)))  # type: ignore[arg-type]


def entry(kind: LogEntryKind) -> LogEntry:
    return seal(
        epoch=1,
        entry_id=bytes(16),
        kind=kind,
        body=b"",
        actor="",
        commit_time_us=0,
        term=1,
        previous_hash=bytes(32),
    )


def test_a_freeze_lets_nothing_but_the_service_itself_pass() -> None:
    frozen: ClusterMetadata = empty_cluster().changed(SERVICE.set(Service(frozen="why")))
    check_entry(empty_cluster(), entry(LogEntryKind.SET_EXTENSION))
    check_entry(frozen, entry(LogEntryKind.SET_SERVICE))
    with pytest.raises(Violation, match="CMS-2"):
        check_entry(frozen, entry(LogEntryKind.SET_EXTENSION))


@pytest.mark.parametrize("kind", list(LogEntryKind))
def test_a_freeze_is_judged_by_the_table_of_conflicts(kind: LogEntryKind) -> None:
    """But for what never comes through the group."""
    frozen: ClusterMetadata = empty_cluster().changed(SERVICE.set(Service(frozen="why")))
    is_free = TABLE[wanted_of(kind), Held.FREEZE].scope is Scope.NEVER
    if is_free and kind is not LogEntryKind.RESET_CLUSTER:
        check_entry(frozen, entry(kind))
    else:
        with pytest.raises(Violation, match="CMS-2"):
            check_entry(frozen, entry(kind))
