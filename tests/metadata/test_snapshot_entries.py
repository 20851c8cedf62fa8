"""The entries that bound the log: which snapshot is taken, and how much of the log may go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import empty_cluster
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.log.snapshot_entries import KINDS as SNAPSHOT_KINDS
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.transformations import KINDS, Initialize, SetExtension
from lockstep.values.errors import Rejected
from tests.metadata.histories import History, founder


def history() -> History:
    """A snapshot at epoch 3, and an entry after it."""
    made = History(Registry(KINDS, SNAPSHOT_KINDS))
    made.submit(Initialize("c", "n", (founder(1, (1,)),)))
    made.submit(SetExtension("a", b"1"))
    made.submit(TakeSnapshot("interval"))
    made.submit(SetExtension("a", b"2"))
    return made


def test_a_snapshot_is_of_the_value_before_its_entry_and_names_the_voters() -> None:
    made = history()
    service = made.values[3].service
    assert (service.snapshot_epoch, service.snapshot_voters) == (3, (1,))
    body = made.registry.decode(made.entries[2].kind, made.entries[2].body)
    assert body == TakeSnapshot("interval", -1, 2, state_digest(made.values[2]))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (TakeSnapshot("x", after=2), "the snapshot of epoch 3 was taken meanwhile"),
        (TakeSnapshot("x", after=0), "the snapshot of epoch 3 was taken meanwhile"),
        (TruncateLog(4), "cannot be truncated to epoch 4, beyond the latest snapshot, which is of epoch 3"),
    ],
)
def test_what_is_refused(wrong: Transformation, why: str) -> None:
    refusal = history().tried(wrong)
    assert refusal is not None and why in refusal.message


def test_two_proposals_for_one_interval_take_one_snapshot() -> None:
    made = history()
    made.submit(TakeSnapshot("interval", after=3))
    assert made.now.service.snapshot_epoch == 5
    refusal = made.tried(TakeSnapshot("by hand"))
    assert refusal is not None and "nothing changed since the snapshot of epoch 5" in refusal.message


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"base_epoch": 3}, "this snapshot is of epoch 3, not of epoch 4"),
        ({"digest": bytes(32)}, f"here and {bytes(32).hex()} where the snapshot was asked for"),
    ],
)
def test_a_node_that_holds_another_value_finds_out(changed: dict[str, Any], why: str) -> None:
    now = history().now
    sound = TakeSnapshot("x").prepared(now)
    assert sound.apply(now, 5).service.snapshot_epoch == 5
    with pytest.raises(Rejected) as refusal:
        msgspec.structs.replace(sound, **changed).apply(now, 5)
    assert why in refusal.value.message
    if "digest" in changed:
        assert state_digest(now).hex() in refusal.value.message
        assert refusal.value.hint == "this node's metadata differs: `lockstep metadata verify`"


def test_the_log_is_truncated_forwards_up_to_the_snapshot() -> None:
    made = history()
    made.submit(TruncateLog(1))
    assert made.now.service.truncated_epoch == 1
    refusal = made.tried(TruncateLog(1))
    assert refusal is not None and "is truncated to epoch 1 already" in refusal.message
    made.submit(TruncateLog(3))
    assert (made.now.service.truncated_epoch, made.now.service.snapshot_epoch) == (3, 3)
    fresh = History(made.registry)
    fresh.submit(Initialize("c", "n", (founder(1, (1,)),)))
    refusal = fresh.tried(TruncateLog(1))
    assert refusal is not None and "beyond the latest snapshot, of which is none" in refusal.message
    assert refusal.hint == "take one first: lockstep cms snapshot"


@pytest.mark.parametrize("entry", [TakeSnapshot("x"), TruncateLog(0)])
def test_there_is_nothing_to_bound_before_there_is_a_cluster(entry: Transformation) -> None:
    with pytest.raises(Rejected, match="not initialized"):
        entry.apply(empty_cluster(), 1)
