"""Which hints are kept, for how long, and how many leave in one message; and which host an address is of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.handoff.hint_delivery import _portion
from lockstep.handoff.hint_store import Hint, HintStore, Stored
from lockstep.handoff.hints import (
    DISABLED,
    EXPIRED,
    FULL,
    FULL_FOR_NODE,
    GIVEN_UP_EARLY_S,
    REFUSED,
    WINDOW,
    HintPolicy,
    Hints,
)
from lockstep.internode.own_side import conflict
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.round import Target
from lockstep.values.errors import DiskRefused
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import HINTS_AT_ONCE_MAX, HINTS_HANDED_BYTES_MAX, PURGE_AGE_S_MIN

from .clusters import upsert, whole_ring
from .support import RecordingProbes
from .test_owed_records import Records

NOW_US = 1_000_000_000_000
VALUE = b"v" * 100
THREE = Target(NodeId(3), ("n3", 1), "dc1")


class Keeper:
    """Hints over a map, at a clock that stands still. `silent_s` is of node 3."""

    def __init__(self, policy: HintPolicy = HintPolicy(), silent_s: float | None = 0.0) -> None:  # noqa: B008
        self.records = Records()
        self.now_us = NOW_US
        clock = SimpleNamespace(wall_us=lambda: self.now_us)
        self.probes = RecordingProbes()
        self.spawned: list[str] = []
        runtime: Any = SimpleNamespace(
            clock=clock, probes=self.probes, tasks=SimpleNamespace(spawn=self._spawn)
        )
        cluster = whole_ring(5, [1, 2, 3])
        plans = PlanBook(lambda: cluster, lambda: 1)
        self.hints = Hints(runtime, HintStore(self.records), plans, lambda node: silent_s, policy)

    def _spawn(self, work: Any, name: str) -> None:
        work.close()
        self.spawned.append(name)

    def left(self, number: int, **more: Any) -> tuple[int, str]:
        """How many are kept, and why others are not."""
        before = dict(self.hints.dropped)
        left = self.hints.leave(upsert(1, b"a", VALUE, 1, number), 5, [THREE], **more)
        reasons = [reason for reason, count in self.hints.dropped.items() if count > before[reason]]
        assert left.whole == (not reasons) and not left.unmarked
        return left.kept, "".join(reasons)


def test_hints_are_kept_up_to_the_bytes_that_are_allowed() -> None:
    for policy, reason in (
        (HintPolicy(bytes_max=300), FULL),
        (HintPolicy(bytes_per_node_max=300), FULL_FOR_NODE),
    ):
        keeper = Keeper(policy)
        assert keeper.left(1) == (1, "")
        keeper.hints.store.bytes = keeper.hints.store.pending[NodeId(3)].bytes = 200
        assert keeper.left(2) == (1, ""), "just as many"
        keeper.hints.store.bytes = keeper.hints.store.pending[NodeId(3)].bytes = 201
        assert keeper.left(3) == (0, reason)
        assert keeper.left(4, forced=True) == (0, reason), "room is needed for what is owed too"


def test_settings_and_windows_refuse_hints_but_not_what_is_owed() -> None:
    second = HintPolicy(window_ms=1000)
    for keeper, reason in (
        (Keeper(HintPolicy(enabled=False)), DISABLED),
        (Keeper(second, silent_s=1.001), WINDOW),
    ):
        assert keeper.left(1) == (0, reason)
        assert keeper.left(2, forced=True) == (1, "")
    for silent_s in (1.0, None):
        assert Keeper(second, silent_s).left(1) == (1, "")


def test_a_node_for_which_hints_wait_for_longer_than_the_window_gets_no_more() -> None:
    keeper = Keeper(HintPolicy(window_ms=1000))
    assert keeper.left(1) == (1, "")
    keeper.now_us += 1_000_000
    assert keeper.left(2) == (1, "")
    keeper.now_us += 1
    assert keeper.left(3) == (0, WINDOW)


def test_what_is_left_is_told_counted_and_made_durable() -> None:
    keeper = Keeper()
    told: list[bool] = []
    keeper.hints.on_left = lambda: told.append(True)
    assert keeper.left(1) == (1, "")
    assert (keeper.hints.left, told, keeper.spawned) == (1, [True], ["hints.sync"])
    assert keeper.probes.reached == ["hints.left"]
    assert keeper.left(2) == (1, "") and keeper.spawned == ["hints.sync"], "one is under way"
    assert keeper.hints.oldest_us() == NOW_US
    assert keeper.left(3, made_us=NOW_US - 5) == (1, "") and keeper.hints.oldest_us() == NOW_US - 5
    assert keeper.left(4, made_us=NOW_US + 5) == (1, "")
    assert max(pending.newest_us for pending in keeper.hints.store.pending.values()) == NOW_US


def test_a_store_that_takes_no_hint_gets_a_mark_or_the_node_is_named() -> None:
    keeper = Keeper()
    writes = keeper.records.write_records
    refusals = [DiskRefused("full")]

    def refused(*batch: Any) -> int:
        if refusals:
            raise refusals.pop()
        return writes(*batch)

    keeper.records.write_records = refused  # type: ignore[method-assign]
    assert keeper.left(1) == (0, REFUSED)
    assert [mark.node for mark in keeper.hints.store.marks()] == [3]
    refusals.extend([DiskRefused("full"), DiskRefused("full")])
    left = keeper.hints.leave(upsert(1, b"a", VALUE, 1, 2), 5, [THREE])
    assert (left.kept, left.whole, left.unmarked, left.sequence) == (0, False, (NodeId(3),), 0)


def test_what_is_late_is_given_up_before_its_grace_time_ends_and_not_while_it_is_young() -> None:
    keeper = Keeper()

    def is_late(gc_grace_s: int, age_us: int) -> bool:
        return keeper.hints.is_late(gc_grace_s, NOW_US - age_us)

    long_s = 10 * PURGE_AGE_S_MIN
    life_us = (long_s - GIVEN_UP_EARLY_S) * 1_000_000
    assert (is_late(long_s, life_us), is_late(long_s, life_us + 1)) == (False, True)
    short_s = min(5, PURGE_AGE_S_MIN - GIVEN_UP_EARLY_S)
    assert (is_late(short_s, short_s * 1_000_000), is_late(short_s, short_s * 1_000_000 + 1)) == (False, True)


def test_a_mark_is_of_the_range_of_the_write_and_counts_once() -> None:
    keeper = Keeper()
    hint = Hint(NOW_US - 7, 5, 10, upsert(1, b"a", VALUE))
    (mark,) = keeper.hints.expired(NodeId(3), hint)
    assert (mark.node, mark.reason, mark.since_us, mark.newest_us, mark.count) == (
        3,
        EXPIRED,
        NOW_US - 7,
        NOW_US - 7,
        1,
    )
    assert keeper.hints.dropped[EXPIRED] == 1 and keeper.probes.reached == ["hints.expired"]
    plan = keeper.hints.plans.write_plan(mark.table_id, 1, Consistency.ONE)
    assert (mark.left, mark.right) == (plan.range.left, plan.range.right)
    gone = msgspec.structs.replace(hint.mutation, table_id=mark.table_id + 1)
    (mark,) = keeper.hints.marks_of(EXPIRED, NodeId(3), gone, 1)
    assert (mark.left, mark.right) == (gone.token - 1, gone.token), "there are no ranges any more"


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([1] * (HINTS_AT_ONCE_MAX + 1), HINTS_AT_ONCE_MAX),
        ([HINTS_HANDED_BYTES_MAX + 1, 1], 1),
        ([HINTS_HANDED_BYTES_MAX - 1, 1, 1], 2),
        ([], 0),
    ],
)
def test_a_message_has_as_many_hints_as_fit_and_one_at_the_least(sizes: list[int], count: int) -> None:
    hint = Hint(1, 5, 10, upsert(1, b"a", VALUE))
    page = [Stored(b"%d" % at, size, hint) for at, size in enumerate(sizes)]
    assert _portion(page) == page[:count]


class Link:
    """A connection, as far as it is judged."""

    def __init__(self, host: str, port: int, heard_s: float = 10.0) -> None:
        self.peer = SimpleNamespace(endpoint=("n1", port), address="n1", port=port, host_id=host)
        self.heard_s = heard_s
        self.closed = ""

    def close(self, why: str) -> None:
        self.closed = why


@pytest.mark.parametrize(
    ("host", "port", "heard_s", "refused"),
    [
        ("a", 1, 10.0, ""),
        ("b", 2, 10.0, ""),
        ("b", 1, 5.1, "address n1:1 is in use by host b"),
        ("a", 2, 5.1, "host a is in use at n1:2"),
        ("b", 1, 5.0, ""),
        ("a", 2, 5.0, ""),
    ],
)
def test_who_came_first_stays_unless_it_was_silent(
    host: str, port: int, heard_s: float, refused: str
) -> None:
    theirs: Any = SimpleNamespace(endpoint=("n1", 1), address="n1", port=1, host_id="a")
    unknown: Any = SimpleNamespace(peer=None)
    known: Any = Link(host, port, heard_s)
    new: Any = Link("a", 1)
    found = conflict([unknown, new, known], new, theirs, 5.0)
    assert (found or "").startswith(refused) and (found is None) == (not refused)
    is_in_the_way = (host == "a") != (port == 1)
    assert bool(known.closed) == (is_in_the_way and not refused) and not new.closed
