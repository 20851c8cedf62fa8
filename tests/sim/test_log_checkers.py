"""The log's checkers reject planted histories, one for each rule."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import DIRECTORY
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.sim.checkers.log import LogMonitor, Submitted, check_submissions
from lockstep.sim.checkers.ownership import check_epoch, check_stale
from lockstep.sim.checkers.violation import Violation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, simple, started


def ids(entries: list[LogEntry]) -> list[tuple[int, bytes]]:
    return [(entry.epoch, entry.entry_id) for entry in entries]


def history() -> History:
    return started([(0,), (100,), (200,)], ("ks", simple(3)))


def monitor(seen: list[int] | None = None) -> LogMonitor:
    return LogMonitor(lambda before, after, label: seen.append(after.epoch) if seen is not None else None)


def apply(log: LogMonitor, label: str, cluster: ClusterMetadata) -> None:
    log.applied(label, cluster, state_digest(cluster))


def test_a_sound_history_passes_and_each_epoch_is_first_applied_once() -> None:
    values, firsts = history().values, list[int]()
    log = monitor(firsts)
    for label in ("n1.1", "n2.1", "n3.1"):
        for value in values:
            apply(log, label, value)
    apply(log, "n1.2", values[-1])
    assert firsts == [1, 2]


def test_an_epoch_that_goes_back_over_a_restart_is_refused() -> None:
    values, log = history().values, monitor()
    for value in values:
        apply(log, "n1.1", value)
    with pytest.raises(Violation, match=r"LOG-1: n1.2 is back at epoch 1, after 2"):
        apply(log, "n1.2", values[1])


def test_a_forgotten_node_may_begin_anew() -> None:
    values, log = history().values, monitor()
    for value in values:
        apply(log, "n1.1", value)
    log.forget("n1")
    apply(log, "n1.2", values[0])
    with pytest.raises(Violation, match=r"n1.2 applied 2 after 0"):
        apply(log, "n1.2", values[2])


def test_a_gap_within_an_incarnation_is_refused() -> None:
    values, log = history().values, monitor()
    for value in values:
        apply(log, "n1.1", value)
    apply(log, "n2.1", values[0])
    with pytest.raises(Violation, match=r"n2.1 applied 2 after 0"):
        apply(log, "n2.1", values[2])


def test_an_epoch_nobody_led_up_to_is_refused() -> None:
    values, log = history().values, monitor()
    with pytest.raises(Violation, match="nobody applied 1"):
        apply(log, "n1.1", values[2])


def test_two_entries_at_one_epoch_are_refused() -> None:
    values, log = history().values, monitor()
    for value in values:
        apply(log, "n1.1", value)
    other = msgspec.structs.replace(values[2], hash=bytes(32))
    for value in values[:2]:
        apply(log, "n2.1", value)
    with pytest.raises(Violation, match=r"n2.1 applied another entry at epoch 2"):
        apply(log, "n2.1", other)


def test_one_entry_with_two_states_is_refused() -> None:
    values, log = history().values, monitor()
    for value in values:
        apply(log, "n1.1", value)
    for value in values[:2]:
        apply(log, "n2.1", value)
    with pytest.raises(Violation, match=r"n2.1 has another state at epoch 2"):
        log.applied("n2.1", values[2], b"other")


def test_two_leaders_of_one_term_are_refused() -> None:
    log = monitor()
    log(0, "n1.1", "raft.role", {"group": 1, "role": "leader", "term": 3, "identity": 1})
    log(0, "n2.1", "raft.role", {"group": 1, "role": "leader", "term": 4, "identity": 2})
    with pytest.raises(Violation, match=r"n1.1 and n3.1 both lead term 3"):
        log(0, "n3.1", "raft.role", {"group": 1, "role": "leader", "term": 3, "identity": 3})


def submitted(entry_id: bytes, outcome: str, epoch: int = 0) -> Submitted:
    return Submitted(entry_id=entry_id, outcome=outcome, epoch=epoch)


def test_submissions_that_agree_with_the_log_pass() -> None:
    entries = history().entries
    ok = [submitted(entry.entry_id, "ok", entry.epoch) for entry in entries]
    check_submissions(ids(entries), [*ok, submitted(b"x", "unknown"), submitted(b"y", "rejected")])


@pytest.mark.parametrize(
    ("outcome", "epoch", "message"),
    [
        ("ok", 2, "acknowledged at epoch 2, found at 1"),
        ("rejected", 0, "rejected, but in the log at epoch 1"),
    ],
)
def test_submissions_that_contradict_the_log_are_refused(outcome: str, epoch: int, message: str) -> None:
    entries = history().entries
    with pytest.raises(Violation, match=message):
        check_submissions(ids(entries), [submitted(entries[0].entry_id, outcome, epoch)])


def test_an_acknowledged_submission_that_is_not_in_the_log_is_refused() -> None:
    with pytest.raises(Violation, match="acknowledged at epoch 2, found at None"):
        check_submissions(ids(history().entries), [submitted(b"lost", "ok", 2)])


def test_an_id_that_is_applied_twice_is_refused() -> None:
    entries = history().entries
    again = msgspec.structs.replace(entries[1], entry_id=entries[0].entry_id)
    with pytest.raises(Violation, match="one entry id at epochs 1 and 2"):
        check_submissions(ids([entries[0], again]), [])


def test_a_group_without_a_reader_is_refused() -> None:
    values = history().values
    ring = values[2].placements.rings[0]
    placed = ring.ranges[0]
    fewer = msgspec.structs.replace(
        placed.group, reads=placed.group.reads[:2], writes=placed.group.writes[:2]
    )
    broken_ring = ring.replaced([msgspec.structs.replace(placed, group=fewer)])
    broken = values[2].changed(PLACEMENTS.set(values[2].placements.with_rings((broken_ring,))))
    check_epoch(values[1], values[2])
    with pytest.raises(Violation, match="PLC-1"):
        check_epoch(values[1], broken)


def test_replicas_that_saw_nothing_let_a_stale_coordinator_win() -> None:
    values = history().values
    before = values[2]
    ring = before.placements.rings[0]
    moved = tuple(
        msgspec.structs.replace(
            placed,
            group=msgspec.structs.replace(
                placed.group,
                reads=(NodeId(4), NodeId(5), NodeId(6)),
                writes=(NodeId(4), NodeId(5), NodeId(6)),
                epoch=3,
            ),
        )
        for placed in ring.ranges
    )
    placements = before.placements.with_rings((ring.replaced(moved),))
    nodes = before.directory.nodes
    more = tuple(
        msgspec.structs.replace(nodes[0], id=NodeId(at), host_id=f"h{at}", address=f"10.1.0.{at}", tokens=())
        for at in (4, 5, 6)
    )
    directory = msgspec.structs.replace(before.directory, nodes=(*nodes, *more), next_node_id=7)
    after = msgspec.structs.replace(
        before.changed(PLACEMENTS.set(placements), DIRECTORY.set(directory)), epoch=3
    )
    everyone = {NodeId(at): 3 for at in range(1, 7)}
    check_stale([*values, after], everyone)
    with pytest.raises(Violation, match="PLC-4"):
        check_stale([*values, after], {**everyone, NodeId(1): 2, NodeId(2): 2})


def test_the_empty_value_is_where_every_history_begins() -> None:
    assert monitor().values[0].epoch == empty_cluster().epoch == 0
