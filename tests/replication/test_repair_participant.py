"""A participant of repairs, asked without a network: digests, rows, and what it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.internode import verbs
from lockstep.replica import repair_participant
from lockstep.replica.messages import About, AskRows, AskTree, Mend, Mended, Note, Noted, Tree
from lockstep.replica.repair_participant import RepairParticipant, ReplicaTimes
from lockstep.replica.session_guards import SessionGuards
from lockstep.storage.store import Family
from lockstep.values.errors import CorruptFile, LockstepError, NotReplica, Overloaded, SessionClosed
from lockstep.values.limits import STREAM_ESTIMATE_PAIRS
from lockstep.values.rows import Mutation, Partition, ReadCommand, ReadResult, Row
from lockstep.values.tokens import Range

from .clusters import TABLE_ID, ScriptedInternode, Wire, key_of, make_cluster, read_range, upsert
from .support import real_runtime, run

LEAVES = (Range(0, 10), Range(10, 20))
NOW_US = 1_000_000


class Unchanged:
    """What was asked of the notes on ranges that repairs made equal."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.marks: list[Any] = []

    def watch(self, session: str, table: int, ranges: tuple[Range, ...]) -> None:
        self.asked.append(("watch", session, table, ranges))

    def parts(self, table: int, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        return ranges[:1]

    def equal(self, session: str, table: int, ranges: tuple[Range, ...]) -> list[Any]:
        self.asked.append(("equal", session, table, ranges))
        return self.marks

    def forget(self, session_open: Any) -> None:
        self.asked.append(("forget", session_open("s"), session_open("gone")))


class Engine:
    def __init__(self) -> None:
        self.trees = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: LockstepError | None = None
        self.applied: list[tuple[Mutation, bool]] = []
        self.records: list[tuple[Family, Any]] = []
        self.durable: list[int] = []
        self.unchanged = Unchanged()

    async def leaf_digests(self, table_id: int, leaves: Sequence[Range], before_s: int) -> bytes:
        self.trees += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return f"{table_id} {len(leaves)} {before_s}".encode()

    async def read(self, command: ReadCommand) -> ReadResult:
        return ReadResult(tuple(Partition(1, key_of(1), rows=(Row(b"a"), Row(b"b"))) for _ in range(2)))

    def apply(self, mutation: Mutation, *, by_repair: bool) -> int:
        self.applied.append((mutation, by_repair))
        return len(self.applied)

    def write_records(self, family: Family, batch: Any) -> int:
        self.records.append((family, batch))
        return 77

    async def synced(self, sequence: int) -> None:
        self.durable.append(sequence)

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]:
        assert pairs_max == STREAM_ESTIMATE_PAIRS
        return tokens.right - tokens.left, 1


class Clinic:
    """Node 1, which holds tokens up to 100; session `s` is open."""

    def __init__(self) -> None:
        cluster = make_cluster(5, [(100, [1, 2], [1, 2], 1), (200, [2, 3], [2, 3], 1)], sessions=["s"])
        self.engine = Engine()
        self.guards = SessionGuards(lambda: cluster)
        self.internode = ScriptedInternode(Wire(), 1, lambda: 5)
        self.caught_up: list[tuple[int, Any]] = []
        self.oldest_us: int | None = None
        self.stamp_us = NOW_US
        runtime = msgspec.structs.replace(
            real_runtime(),
            clock=SimpleNamespace(wall_us=lambda: NOW_US, monotonic_s=lambda: 0.0),  # type: ignore[arg-type]
        )
        self.participant = RepairParticipant(
            runtime,
            self.internode,  # type: ignore[arg-type]
            self.engine,  # type: ignore[arg-type]
            self.guards,
            lambda: cluster,
            self._catch_up,
            lambda: 1,
            ReplicaTimes(lambda: self.oldest_us, self._stamp),
        )

    async def _catch_up(self, epoch: int, source: Any) -> None:
        self.caught_up.append((epoch, source))

    async def _stamp(self) -> int:
        return self.stamp_us


def asked(session: str = "s", before_s: int = 3) -> AskTree:
    return AskTree(session, 4, TABLE_ID, LEAVES, before_s)


def test_a_tree_is_built_once_for_one_question_however_often_that_is_asked() -> None:
    async def test() -> None:
        clinic = Clinic()
        trees = await asyncio.gather(*(clinic.participant.tree(asked()) for _ in range(3)))
        assert trees == [Tree(True, b"1 2 3")] * 3 and clinic.engine.trees == 1
        assert clinic.participant.counts.trees == 1
        await clinic.participant.tree(asked())
        assert clinic.engine.trees == 2, "what was answered is not kept"

    run(test)


def test_a_tree_that_takes_long_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_participant, "REPAIR_TREE_WAIT_MS", 0)

    async def test() -> None:
        clinic = Clinic()
        clinic.engine.gate.clear()
        assert await clinic.participant.tree(asked()) == Tree(False)
        clinic.engine.gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        monkeypatch.setattr(repair_participant, "REPAIR_TREE_WAIT_MS", 1000)
        assert await clinic.participant.tree(asked()) == Tree(True, b"1 2 3") and clinic.engine.trees == 1

    run(test)


def test_trees_that_are_kept_have_a_bound_and_go_with_their_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_participant, "REPAIR_TREE_WAIT_MS", 0)
    monkeypatch.setattr(repair_participant, "REPAIR_TREES_KEPT_MAX", 2)

    async def test() -> None:
        clinic = Clinic()
        clinic.engine.gate.clear()
        for before_s in (1, 2):
            await clinic.participant.tree(asked(before_s=before_s))
        with pytest.raises(Overloaded):
            await clinic.participant.tree(asked())
        assert await clinic.participant.tree(asked(before_s=1)) == Tree(False), "of one that is kept"
        clinic.participant.forget_closed(lambda session: session == "s")
        with pytest.raises(Overloaded):
            await clinic.participant.tree(asked())
        clinic.participant.forget_closed(lambda session: False)
        assert await clinic.participant.tree(asked()) == Tree(False)
        assert clinic.engine.unchanged.asked == [("forget", True, False), ("forget", False, False)]
        clinic.engine.gate.set()

    run(test)


def test_what_the_store_says_of_a_tree_is_told_and_the_next_question_begins_anew() -> None:
    async def test() -> None:
        clinic = Clinic()
        clinic.engine.error = CorruptFile("f", 0, "damaged")
        with pytest.raises(CorruptFile):
            await clinic.participant.tree(asked())
        assert clinic.participant.counts.trees == 0
        clinic.engine.error = None
        assert (await clinic.participant.tree(asked())).ready

    run(test)


def test_nothing_is_answered_of_a_session_that_is_closed() -> None:
    async def test() -> None:
        clinic = Clinic()
        participant = clinic.participant
        for work in (
            participant.tree(asked("gone")),
            participant.rows(AskRows("gone", 4, read_range())),
            participant.mend(Mend("gone", 4, (upsert(1, b"a", b"x"),))),
            participant.note(Note("gone", 4, About.UNDELIVERED)),
        ):
            with pytest.raises(SessionClosed):
                await work
        assert not clinic.engine.applied and not clinic.engine.trees

    run(test)


def test_what_is_lacking_is_taken_durably_by_who_owns_it() -> None:
    async def test() -> None:
        clinic = Clinic()
        own = [upsert(token, b"a", b"x", 1, token) for token in (1, 2)]
        dropped = msgspec.structs.replace(own[0], table_id=TABLE_ID + 1)
        assert await clinic.participant.mend(Mend("s", 4, (own[0], dropped, own[1]))) == Mended(3)
        assert clinic.engine.applied == [(one, True) for one in own] and clinic.engine.durable == [2]
        assert clinic.participant.counts.changes_taken == 3 and not clinic.guards.any_held
        with pytest.raises(NotReplica, match="150"):
            await clinic.participant.mend(Mend("s", 4, (upsert(150, b"a", b"x"),)))
        assert not clinic.guards.any_held and len(clinic.engine.applied) == 2
        await clinic.participant.mend(Mend("s", 4, (own[0],)))
        assert clinic.participant.counts.changes_taken == 4, "those of all mends together"

    run(test)


def test_what_is_not_delivered_is_told_by_the_clock_that_dates_deletions() -> None:
    async def test() -> None:
        clinic = Clinic()
        note = Note("s", 4, About.UNDELIVERED)
        assert await clinic.participant.note(note) == Noted(-1, at_us=NOW_US)
        clinic.oldest_us, clinic.stamp_us = NOW_US - 50, NOW_US + 9
        assert await clinic.participant.note(note) == Noted(NOW_US - 50, at_us=NOW_US)
        clinic.stamp_us = NOW_US - 10
        assert await clinic.participant.note(note) == Noted(NOW_US - 60, at_us=NOW_US - 10)

    run(test)


@pytest.mark.parametrize(("count", "turns"), [(7, 0), (8, 1), (24, 3)])
def test_an_extent_of_many_ranges_gives_way(count: int, turns: int) -> None:
    async def test() -> None:
        clinic = Clinic()
        ranges = tuple(Range(at, at + 1) for at in range(count))
        seen = 0
        asked = asyncio.get_running_loop().create_task(
            clinic.participant.note(Note("s", 4, About.EXTENT, 7, ranges))
        )
        await asyncio.sleep(0)
        while not asked.done():
            seen += 1
            await asyncio.sleep(0)
        assert asked.result() == Noted(bytes=count) and seen == turns

    run(test)


def test_ranges_are_watched_measured_and_remembered_as_equal() -> None:
    async def test() -> None:
        clinic = Clinic()
        unchanged = clinic.engine.unchanged
        ranges = tuple(Range(at, at + 3) for at in range(0, 30, 3))
        assert await clinic.participant.note(Note("s", 4, About.EXTENT, 7, ranges)) == Noted(bytes=30)
        found = await clinic.participant.note(Note("s", 4, About.CHANGES, 7, ranges))
        assert found == Noted(bytes=30, changed=ranges[:1])
        assert unchanged.asked == [("watch", "s", 7, ranges)] * 2
        assert await clinic.participant.note(Note("s", 4, About.EQUAL, 7, ranges)) == Noted()
        assert unchanged.asked[-1] == ("equal", "s", 7, ranges) and not clinic.engine.records
        unchanged.marks = [("put", b"k", b"v")]
        await clinic.participant.note(Note("s", 4, About.EQUAL, 7, ranges))
        assert clinic.engine.records == [(Family.REPAIR, unchanged.marks)] and clinic.engine.durable == [77]

    run(test)


@pytest.mark.parametrize(
    ("verb", "request_", "kind"),
    [
        (verbs.REPAIR_TREE, asked(), Tree),
        (verbs.REPAIR_READ, AskRows("s", 4, read_range()), ReadResult),
        (verbs.REPAIR_WRITE, Mend("s", 4, ()), Mended),
        (verbs.REPAIR_NOTE, Note("s", 4, About.UNDELIVERED), Noted),
    ],
)
def test_who_is_asked_catches_up_first(verb: int, request_: Any, kind: type[Any]) -> None:
    async def test() -> None:
        clinic = Clinic()
        _, handler = clinic.internode.slow[verb]
        assert isinstance(await handler(clinic.internode.peer, request_), kind)
        assert clinic.caught_up == [(4, clinic.internode.peer.endpoint)]

    run(test)


def test_numbers_on_the_wire_stay_what_they_are_and_an_empty_answer_says_nothing() -> None:
    assert {about.name: about.value for about in About} == {
        "UNDELIVERED": 1,
        "EXTENT": 2,
        "EQUAL": 3,
        "CHANGES": 4,
    }
    empty = Noted()
    assert (empty.oldest_us, empty.bytes, empty.changed, empty.at_us) == (-1, 0, (), 0)
