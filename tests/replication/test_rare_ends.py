"""How requests end that are late, over a limit, or of a table that changed meanwhile; and who is not told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.coordination import reads, writes
from lockstep.coordination.conditional import Conditionals
from lockstep.handoff import batch_store
from lockstep.internode.handshake import Hello, PeerInfo
from lockstep.internode.own_side import OwnSide
from lockstep.internode.serving import Services
from lockstep.metadata.schema_part import SCHEMA
from lockstep.quorum.plans import PlanBook
from lockstep.replica.backup_messages import BackupAction
from lockstep.replica.load_messages import LoadPhase
from lockstep.replica.messages import About, StreamNextFile
from lockstep.schema.model import Column, ColumnKind, KeyspaceHead, Table, keyspace_of, schema_of
from lockstep.streaming.stream_source import StreamService
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    NotReplica,
    Overloaded,
    SessionClosed,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId, mutation_id
from lockstep.values.limits import BATCH_REPLAY_ROUND_MS
from lockstep.values.rows import Cell, Mutation, Row
from lockstep.values.tokens import TOKEN_MAX

from .clusters import COLUMN, TABLE_ID, make_cluster, make_nodes, read_one, replication, upsert, whole_ring
from .support import run
from .test_owed_records import Keeper, Records, batch

QUORUM = Consistency.QUORUM
LOG_ID = TABLE_ID + 1
ID = mutation_id(1, 1, 1)


def stand_in(**named: Any) -> Any:
    return SimpleNamespace(**named)


# -- reads and writes


def test_no_more_reads_begin_than_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        _, nodes = make_nodes(1, whole_ring(5, [1]))
        monkeypatch.setattr(reads, "READS_IN_FLIGHT_MAX", 1)
        await nodes[0].coordinator.read(read_one(1), Consistency.ONE, 1000)
        monkeypatch.setattr(reads, "READS_IN_FLIGHT_MAX", 0)
        with pytest.raises(Overloaded, match="too many reads in flight"):
            await nodes[0].coordinator.read(read_one(1), Consistency.ONE, 1000)

    run(test)


def logged(change: Mutation, table_id: int = LOG_ID, column: int = COLUMN) -> Mutation:
    rows = (Row(b"a", None, None, (Cell(column, b"x", 5),)),)
    return msgspec.structs.replace(change, captured=Mutation(table_id, 7, b"stream", ID, 5, rows=rows))


def test_a_change_that_says_nothing_to_the_log_its_table_has_by_now_is_planned_again() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        node = nodes[0]
        node.coordinator.plans.write_plan(TABLE_ID, 1, QUORUM).log_id = LOG_ID
        for change in (upsert(1), logged(upsert(1), LOG_ID + 1)):
            with pytest.raises(ColumnsGone) as caught:
                await node.coordinator.write(change, QUORUM, 1000)
            assert not caught.value.begun and not node.engine.applied
        await node.coordinator.write(logged(upsert(1)), QUORUM, 1000)
        assert node.engine.applied

    run(test)


def test_columns_of_the_log_are_looked_for_as_those_of_the_table() -> None:
    cluster = whole_ring(5, [1])
    table = cluster.table(TABLE_ID)
    assert table is not None
    key = Column(1, "k", "blob", ColumnKind.PARTITION_KEY, 0)
    columns = (key, Column(COLUMN, "v", "blob", ColumnKind.REGULAR))
    log = Table(LOG_ID, "u2", "ks", "log", columns, epoch=1)
    head = KeyspaceHead("ks", replication({"": 3}), epoch=1, group=1)
    both = cluster.changed(SCHEMA.set(schema_of([keyspace_of(head, (table, log))], LOG_ID + 1)))
    has = [
        (both, upsert(1), True),
        (both, logged(upsert(1)), True),
        (both, logged(upsert(1), column=COLUMN + 5), False),
        (both, logged(upsert(1), LOG_ID + 1, COLUMN + 5), True),
        (cluster, logged(upsert(1), column=COLUMN + 5), True),
    ]
    for value, change, expected in has:
        assert writes._has_columns(value, change) is expected


def test_a_log_on_the_same_nodes_that_moved_later_is_written_with_its_table_at_its_epoch() -> None:
    cluster = make_cluster(6, [(0, [1, 2, 3], [1, 2, 3], 5), (TOKEN_MAX, [3, 1, 2], [3, 1, 2], 6)])
    book = PlanBook(lambda: cluster, lambda: 1)
    plain = book.write_plan(TABLE_ID, -5, QUORUM)
    change = Mutation(TABLE_ID, -5, b"k", ID, 5, captured=Mutation(TABLE_ID, 5, b"l", ID, 5))
    plan = book.plan_of(change, QUORUM)
    assert plan.also is None and plan.targets == plain.targets and plan.satisfied_by([NodeId(1), NodeId(2)])
    assert (plain.needs_epoch, plan.needs_epoch) == (5, 6)
    # The other way round the table's own plan says enough.
    back = Mutation(TABLE_ID, 5, b"k", ID, 5, captured=Mutation(TABLE_ID, -5, b"l", ID, 5))
    assert book.plan_of(back, QUORUM) is book.write_plan(TABLE_ID, 5, QUORUM)


# -- what a condition decided, and its log


@pytest.mark.parametrize(
    ("is_beside", "end", "told"),
    [
        (False, None, None),
        (True, None, None),
        (True, InvalidRequest("the log is gone"), None),
        (True, Overloaded("full"), "SIMPLE"),
        (True, WriteTimeout(QUORUM, 1, 2, "UNLOGGED"), "UNLOGGED"),
    ],
)
def test_what_was_decided_is_brought_to_the_log_or_told_as_not_finished(
    is_beside: bool, end: LockstepError | None, told: str | None
) -> None:
    begun: list[Any] = []
    reached: list[str] = []
    change = logged(upsert(1))

    async def begin(*given: Any) -> None:
        begun.append(given)
        if end is not None:
            raise end

    plan = stand_in(also=stand_in() if is_beside else None, required=2)
    shared = stand_in(
        plans=stand_in(plan_of=lambda mutation, _: plan), reach=reached.append, writes=stand_in(begin=begin)
    )
    asked = Conditionals._log_beside(
        stand_in(shared=shared),
        stand_in(left_ms=lambda: 7.0),
        change,
        QUORUM,
    )
    if told is None:
        asyncio.run(asked)
    else:
        with pytest.raises(WriteTimeout) as caught:
            asyncio.run(asked)
        error = caught.value
        assert (error.write_type, error.required, error.consistency) == (told, 2, QUORUM)
        assert error is end or (error.received, error.__cause__) == (0, end)
    assert begun == ([(change.captured, QUORUM, 7.0)] if is_beside else [])
    assert reached == ["conditional.log_beside"] * is_beside


def test_a_log_that_was_dropped_is_not_written() -> None:
    def plan_of(*_: Any) -> Any:
        raise InvalidRequest("gone")

    shared = stand_in(plans=stand_in(plan_of=plan_of))
    of: Any = stand_in(shared=shared)
    asyncio.run(Conditionals._log_beside(of, stand_in(), logged(upsert(1)), QUORUM))


# -- logged batches


def test_batches_are_replayed_page_by_page_and_in_the_next_round_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    class Ended(Exception):
        pass

    async def sleep(seconds: float) -> None:
        assert seconds == BATCH_REPLAY_ROUND_MS / 1000
        told.append("round")
        if told.count("round") == 4:
            raise Ended

    answers: Iterator[bool | LockstepError] = iter([True, True, False, Overloaded("busy"), True, False])

    async def replay_due() -> bool:
        answer = next(answers)
        told.append(f"{answer}")
        if isinstance(answer, LockstepError):
            raise answer
        return answer

    async def test() -> None:
        keeper = Keeper(Records())
        await keeper.store.keep(batch(1, 100))
        monkeypatch.setattr(keeper.store, "replay_due", replay_due)
        monkeypatch.setattr(batch_store, "asyncio", stand_in(sleep=sleep))
        with pytest.raises(Ended):
            await keeper.store._run()
        assert keeper.store.replay_failures == 1

    run(test)
    page, last = ["True"], ["False"]
    assert told == ["round", *page, *page, *last, "round", "busy", "round", *page, *last, "round"]


# -- nodes among each other


def greeting(node: int) -> Hello:
    return Hello(1, "c", "test", (b"l",), f"host-{node}", node, f"n{node}", 1)


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_dialer_that_is_blocked_hears_no_challenge(is_blocked: bool) -> None:
    sent: list[bytes] = []
    theirs, own = greeting(2), greeting(1)
    side: Any = stand_in(
        proofs=stand_in(lacking=lambda _: None, accept=lambda *_: own),
        hello=lambda: own,
        newest=stand_in(epoch=5),
        faults=stand_in(blocked_to=frozenset({theirs.endpoint} if is_blocked else ())),
    )
    connection: Any = stand_in(greetings=None, send=sent.append)
    assert OwnSide.challenged(side, connection, theirs)
    assert connection.greetings == (theirs, own) and bool(sent) is not is_blocked
    assert not OwnSide.challenged(side, connection, theirs), "only the first greeting is answered so"


def test_what_is_declared_for_sending_may_be_answered_later() -> None:
    services = Services()

    async def handler(_peer: PeerInfo, _request: int) -> str:
        return ""

    services.declare(200, int, str)
    services.register(200, int, str, handler)
    services.register(201, int, str, handler)
    assert services._services[200].handler is services._services[201].handler is handler
    with pytest.raises(AssertionError, match="declared once"):
        services.declare(201, int, str)


@pytest.mark.parametrize(("is_open", "error"), [(True, NotReplica), (False, SessionClosed)])
def test_a_file_that_never_comes_is_refused(is_open: bool, error: type[LockstepError]) -> None:
    asked: list[int] = []

    async def wait(number: int) -> None:
        asked.append(number)

    def require_session(session: str) -> None:
        if not is_open:
            raise SessionClosed(f"session {session} has ended")

    comes = {3: True, 9: False}
    build = stand_in(
        go_on=lambda: None, wait=wait, files={}, error=None, comes=lambda number: comes[number], numbered=3
    )
    source: Any = stand_in(
        _stream=lambda *_: stand_in(build=build, number=1),
        _release=lambda *_: None,
        _require_session=require_session,
    )

    def ask(number: int) -> Any:
        peer: Any = None
        return asyncio.run(StreamService._file(source, peer, StreamNextFile("s", 1, number, 0)))

    assert not ask(3).ready, "it is on its way: to be asked for again"
    with pytest.raises(error, match="goes on with file 3, not 9" if is_open else "session s has ended"):
        ask(9)
    assert asked == [3, 9]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (BackupAction, ["TAKE", "SEAL", "DISCARD", "OFFER", "LOAD"]),
        (LoadPhase, ["STAGE", "PREPARE", "TAKEN"]),
        (About, ["UNDELIVERED", "EXTENT", "EQUAL", "CHANGES"]),
    ],
)
def test_what_nodes_of_other_builds_read_keeps_its_number(kind: type[IntEnum], names: list[str]) -> None:
    assert {name: int(one) for name, one in kind.__members__.items()} == {
        name: number for number, name in enumerate(names, 1)
    }
