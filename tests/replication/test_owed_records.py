"""What a node keeps for others: logged batches, and word to replicas of tables with views."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.handoff.batch_store import BatchKept, BatchStore, ForgetBatch, KeepBatch, batch_key
from lockstep.handoff.hint_store import DroppedHints, HintStore, all_marks, decode_mark, mark_key
from lockstep.handoff.view_log import BaseSettled, BaseWrites
from lockstep.internode import verbs
from lockstep.quorum.round import Target
from lockstep.storage.store import Batch, Family, Pair
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile, Overloaded
from lockstep.values.ids import NodeId
from lockstep.values.limits import BASE_SETTLED_MAX, BATCH_LOG_BYTES_MAX, BATCH_LOG_PAGE, HINTS_PAGE
from lockstep.values.rows import Mutation

from .clusters import ScriptedInternode, Wire
from .support import real_runtime, run

REPLAY_AFTER_MS = 2000
OWN = ("n1", 1)


class Records:
    """A store of records that is a map; what is written is durable once `synced` was awaited."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}
        self.sequence = self.durable = 0
        self.error: CorruptFile | None = None

    def write_records(self, family: Family, batch: Batch) -> int:
        for operation in batch:
            assert operation[1][:1] == family.value
            if operation[0] == "put":
                self.pairs[operation[1]] = operation[2]
            else:
                del self.pairs[operation[1]]
        self.sequence += 1
        return self.sequence

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]:
        return sorted(pair for pair in self.pairs.items() if lower <= pair[0] < upper)[:count]

    async def synced(self, sequence: int) -> None:
        if self.error is not None:
            raise self.error
        self.durable = max(self.durable, sequence)


def batch(number: int, made_us: int, size: int = 1) -> KeepBatch:
    mutation = Mutation(1, number, b"k" * size, b"id", made_us)
    return KeepBatch(number.to_bytes(16, "big"), made_us, (mutation,))


def size_of(one: KeepBatch) -> int:
    return len(batch_key(one.created_us, one.batch_id)) + len(encode(one))


class Keeper:
    """A batch store over `records`, and what it answers to others."""

    def __init__(self, records: Records, hints: Any = None) -> None:
        self.records = records
        self.internode = ScriptedInternode(Wire(), 1, lambda: 1)
        self.store = BatchStore(
            real_runtime(),
            self.internode,  # type: ignore[arg-type]
            records,
            writes=None,  # type: ignore[arg-type]
            hints=hints,
            own_id=lambda: 1,
            replay_after_ms=REPLAY_AFTER_MS,
        )

    def told(self, one: ForgetBatch) -> list[Any]:
        answers: list[Any] = []
        decode, handler = self.internode.fast[verbs.BATCH_FORGET]
        handler(self.internode.peer, decode.decode(encode(one)), answers.append)
        return answers


def test_a_batch_is_kept_durably_until_its_coordinator_says_that_it_is_done() -> None:
    async def test() -> None:
        keeper = Keeper(Records())
        late, early = batch(1, 900), batch(2, 100)
        assert keeper.store.oldest_us() is None and len(keeper.store) == 0
        for one in (late, early):
            await keeper.store.keep(one)
            assert keeper.records.durable == keeper.records.sequence
        assert (len(keeper.store), keeper.store.oldest_us()) == (2, 100)
        assert keeper.store.bytes == size_of(late) + size_of(early)
        await keeper.store.keep(late)
        assert keeper.store.bytes == size_of(late) + size_of(early), "the same once more"
        assert keeper.told(ForgetBatch(early.batch_id, 101)) == [BatchKept(early.batch_id)]
        assert len(keeper.store) == 2, "another one"
        assert keeper.told(ForgetBatch(early.batch_id, 100)) == [BatchKept(early.batch_id)]
        assert (len(keeper.store), keeper.store.oldest_us(), keeper.store.bytes) == (1, 900, size_of(late))
        assert list(keeper.records.pairs) == [batch_key(900, late.batch_id)]
        assert keeper.told(ForgetBatch(early.batch_id, 100)), "said twice"
        keeper.store.forget(ForgetBatch(late.batch_id, 900))
        assert (len(keeper.store), keeper.store.bytes, keeper.records.pairs) == (0, 0, {})

    run(test)


def test_what_was_kept_is_found_after_a_start_whatever_pages_it_fills() -> None:
    async def test() -> None:
        records = Records()
        batches = [batch(number, 1000 + number) for number in range(2 * BATCH_LOG_PAGE + 1)]
        records.pairs = {batch_key(one.created_us, one.batch_id): encode(one) for one in batches}
        keeper = Keeper(records)
        await keeper.store.load()
        assert (len(keeper.store), keeper.store.oldest_us()) == (len(batches), 1000)
        assert keeper.store.bytes == sum(map(size_of, batches))

    run(test)


def test_a_replay_goes_on_while_whole_pages_are_written() -> None:
    """A page a round, with a pause after each, would leave a backlog of minutes behind a long outage."""

    async def test() -> None:
        records = Records()
        batches = [batch(number, 1000 + number) for number in range(2 * BATCH_LOG_PAGE + 1)]
        records.pairs = {batch_key(one.created_us, one.batch_id): encode(one) for one in batches}
        tables_are_gone = SimpleNamespace(
            gc_grace_s=lambda _table_id: None,
            plans=SimpleNamespace(cluster=SimpleNamespace(directory=SimpleNamespace(by_id={}))),
        )
        keeper = Keeper(records, tables_are_gone)
        await keeper.store.load()
        assert [await keeper.store.replay_due() for _ in range(3)] == [True, True, False]
        assert (len(keeper.store), records.pairs) == (0, {})
        await keeper.store.keep(batch(1, 1))
        assert not await keeper.store.replay_due() and len(keeper.store) == 1, "its coordinator has its time"

    run(test)


def test_no_more_is_kept_than_there_is_room_for() -> None:
    async def test() -> None:
        keeper = Keeper(Records())
        one = batch(1, 100)
        keeper.store.bytes = BATCH_LOG_BYTES_MAX - size_of(one)
        put = ("put", batch_key(one.created_us, one.batch_id), encode(one))
        keeper.store.require_room([put])
        keeper.store.bytes += 1
        with pytest.raises(Overloaded, match="too many view updates"):
            keeper.store.require_room([put])
        with pytest.raises(Overloaded, match="too many logged batches"):
            await keeper.store.keep(one)
        assert not keeper.records.pairs
        keeper.store.bytes -= 1
        await keeper.store.keep(one)
        assert keeper.store.bytes == BATCH_LOG_BYTES_MAX

    run(test)


# -- marks of ranges that lack writes


def test_marks_are_found_after_a_start_and_may_be_newer_than_they_say() -> None:
    records = Records()
    first = DroppedHints(7, NodeId(2), 0, 1, "full", since_us=5, newest_us=9, count=1)
    assert HintStore(records).mark([first]) == records.sequence == 1
    assert decode_mark(*records.records(*all_marks(), 1)[0]) == first
    for at in range(1, HINTS_PAGE + 3):
        one = msgspec.structs.replace(first, left=at, right=at + 1)
        records.pairs[mark_key(one)] = encode(one)
    again = HintStore(records)
    asyncio.run(again.load(now_us=50))
    assert {(one.left, one.newest_us, one.since_us) for one in again.marks()} == {
        (at, 50, 5) for at in range(HINTS_PAGE + 3)
    }
    assert again.forget_marks(lambda mark: False) == 0
    assert again.forget_marks(lambda mark: mark.left > 0) == records.sequence == 2
    assert [one.left for one in again.marks()] == [0] and list(records.pairs) == [mark_key(first)]


# -- writes to tables with views


class Write:
    def __init__(self, number: int, nodes: tuple[int, ...], *, has_reached: bool = True) -> None:
        self.id = number.to_bytes(4, "big")
        self._targets = tuple(Target(NodeId(n), (f"n{n}", 1), "dc1") for n in nodes)
        self._has_reached = has_reached

    def reached(self) -> bool:
        return self._has_reached

    def settled_for(self) -> tuple[bytes, tuple[Target, ...]]:
        return self.id, self._targets


class Teller:
    def __init__(self) -> None:
        self.records = Records()
        self.here: list[bytes] = []
        self.sent: list[tuple[tuple[str, int], tuple[bytes, ...]]] = []
        internode = ScriptedInternode(Wire(), 1, lambda: 1)
        internode.send = self._send  # type: ignore[attr-defined]
        self.internode = internode
        hints = SimpleNamespace(store=HintStore(self.records))
        self.writes = BaseWrites(
            real_runtime(),
            internode,  # type: ignore[arg-type]
            hints,  # type: ignore[arg-type]
            OWN,
        )
        self.writes.listen(self.here.extend)

    def _send(self, address: tuple[str, int], verb: int, told: BaseSettled) -> None:
        assert verb == verbs.BASE_SETTLED
        self.sent.append((address, told.ids))

    def settles(self, write: Write, sequence: int = 0) -> None:
        self.writes.watch(write)(True, sequence)  # type: ignore[arg-type]


def test_every_replica_is_told_together_of_writes_that_settled() -> None:
    async def test() -> None:
        teller = Teller()
        one, two = Write(1, (1, 2)), Write(2, (2, 3))
        for write in (one, two):
            teller.settles(write)
        teller.settles(Write(3, (1, 2), has_reached=False))
        assert not teller.here and not teller.sent, "they are gathered for a moment"
        teller.writes._send_all()
        assert teller.here == [one.id]
        assert teller.sent == [(("n2", 1), (one.id, two.id)), (("n3", 1), (two.id,))]
        teller.writes._send_all()
        assert len(teller.sent) == 2, "once"
        for number in range(BASE_SETTLED_MAX - 1):
            teller.settles(Write(number, (2,)))
        assert len(teller.sent) == 2
        teller.settles(Write(99, (2,)))
        assert len(teller.sent[2][1]) == BASE_SETTLED_MAX, "there is no room for more"
        teller.writes.stop()

    run(test)


def test_hints_are_durable_before_a_replica_is_told() -> None:
    async def test() -> None:
        teller = Teller()
        owed = Write(1, (1, 2))
        teller.settles(owed, sequence=7)
        assert not teller.writes._gathered
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert teller.records.durable == 7
        teller.writes._send_all()
        assert teller.here == [owed.id] and teller.sent == [(("n2", 1), (owed.id,))]
        teller.records.error = CorruptFile("hints", 0, "damaged")
        teller.settles(owed, sequence=8)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not teller.writes._gathered, "nobody is told of what is not kept"
        teller.writes.stop()

    run(test)


def test_what_another_coordinator_says_is_passed_on() -> None:
    async def test() -> None:
        teller = Teller()
        decode, handler = teller.internode.fast[verbs.BASE_SETTLED]
        handler(teller.internode.peer, decode.decode(encode(BaseSettled((b"1", b"2")))), None)
        assert teller.here == [b"1", b"2"]

    run(test)


def test_what_is_adopted_is_due_after_its_time_and_wakes_who_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        keeper = Keeper(Records())
        replayed: list[bytes] = []

        async def replay(key: bytes) -> None:
            replayed.append(key)

        monkeypatch.setattr(keeper.store, "_replay", replay)
        monkeypatch.setattr(keeper.store, "_is_leaving", lambda: False)
        one = batch(1, 100)
        key = batch_key(100, one.batch_id)
        keeper.store.adopt(("put", key, encode(one)))
        assert keeper.store._wake.is_set()
        await keeper.store.replay_due()
        assert replayed == []
        due_s, size = keeper.store._kept[key]
        keeper.store._kept[key] = (due_s - REPLAY_AFTER_MS / 1000 - 1, size)
        await keeper.store.replay_due()
        assert replayed == [key]
        keeper.store._kept[key] = (due_s, size)
        await keeper.store.replay_due(everything=True)
        assert replayed == [key, key]

    run(test)
