"""What one request that takes ballots knows of its plan, its time and what it has to repair."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.coordination.ballot_rounds import Looked, Patience, Rounds
from lockstep.coordination.context import Terms
from lockstep.quorum.plans import PlanBook
from lockstep.replica.messages import Place
from lockstep.values.errors import (
    ColumnsGone,
    ConditionalUnknown,
    InvalidRequest,
    LockstepError,
    PeerUnreachable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, mutation_id
from lockstep.values.rows import Cell, Mutation, Partition, ReadResult, Row
from lockstep.values.tokens import TOKEN_MAX

from .clusters import COLUMN, TABLE_ID, key_of, make_cluster, read_one, whole_ring
from .support import run

TOKEN = 5
PLACE = Place(TABLE_ID, TOKEN, key_of(TOKEN))
Placed = tuple[int, list[int], list[int], int]


class Office:
    """A request at SERIAL under a cluster that may change."""

    def __init__(self, *, serial: Consistency = Consistency.SERIAL) -> None:
        self.cluster = whole_ring(5, [1, 2, 3])
        self.now_s = 100.0
        self.reached: list[str] = []
        self.replans = 0
        self.written: list[tuple[Mutation, Consistency, float]] = []
        self.error: LockstepError | None = None
        self.learned: list[tuple[int, Any]] = []
        self.runtime = SimpleNamespace(clock=SimpleNamespace(monotonic_s=lambda: self.now_s))
        self.plans = PlanBook(lambda: self.cluster, lambda: 1)
        self.context = SimpleNamespace(new_mutation_id=lambda: mutation_id(9, 1, 1), catch_up=self._catch_up)
        self.writes = SimpleNamespace(begin=self._begin)
        owner: Any = self
        counts: Any = SimpleNamespace()
        self.rounds = Rounds(owner, counts, PLACE, serial, Patience(1000.0, 400.0))

    def reach(self, label: str) -> None:
        self.reached.append(label)

    def _begin(
        self, mutation: Mutation, level: Consistency, timeout_ms: float, terms: Terms
    ) -> asyncio.Future[None]:
        self.written.append((mutation, level, timeout_ms))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is None:
            future.set_result(None)
        else:
            future.set_exception(self.error)
        return future

    async def _catch_up(self, epoch: int, source: Any) -> None:
        self.learned.append((epoch, source))

    def becomes(self, *placed: Placed) -> None:
        self.cluster = make_cluster(6, placed)


def test_a_plan_holds_until_something_that_matters_to_its_partition_changes() -> None:
    office = Office()
    plan = office.rounds.plan()
    assert not office.rounds.changed(plan)
    moved = [1, 2, 3, 4]
    office.becomes(
        (TOKEN - 1, [1, 2, 3], moved, 6), (TOKEN, [1, 2, 3], [1, 2, 3], 1), (TOKEN_MAX, [1, 2, 3], moved, 6)
    )
    assert not office.rounds.changed(plan) and office.replans == 0, "others moved"
    office.becomes(
        (TOKEN - 1, [1, 2, 3], [1, 2, 3], 1),
        (TOKEN, [1, 2, 3], moved, 6),
        (TOKEN_MAX, [1, 2, 3], [1, 2, 3], 1),
    )
    assert office.rounds.changed(plan)
    assert office.replans == 1 and office.reached == ["conditional.plan_changed"]


def test_who_votes_is_who_a_write_of_the_level_needs() -> None:
    for serial, level in (
        (Consistency.SERIAL, Consistency.QUORUM),
        (Consistency.LOCAL_SERIAL, Consistency.LOCAL_QUORUM),
    ):
        assert Office(serial=serial).rounds.plan().consistency is level


def test_a_table_that_changed_has_the_request_begun_anew_unless_it_has_proposed() -> None:
    office = Office()
    office.cluster = whole_ring(6, [1, 2, 3], table_epoch=6)
    with pytest.raises(ColumnsGone) as gone:
        office.rounds.plan()
    assert not gone.value.begun
    proposed: Any = "proposed"
    office.rounds.own = proposed
    assert office.rounds.plan().epoch == 6
    office.cluster = whole_ring(7, [1, 2, 3], tables=False)
    with pytest.raises(InvalidRequest):
        office.rounds.plan()


def test_what_the_answers_differ_in_is_written_before_it_is_told() -> None:
    async def test() -> None:
        office = Office()
        row = Row(b"a", cells=(Cell(COLUMN, b"x", 7),))
        whole = ReadResult((Partition(TOKEN, key_of(TOKEN), rows=(row,)),))
        plan = office.rounds.plan()
        await office.rounds.show(read_one(TOKEN), Looked(plan, [whole, whole], ()))
        assert office.written == []
        office.now_s += 0.25
        await office.rounds.made_good(read_one(TOKEN), Looked(plan, [whole, ReadResult(())], ()))
        [(mutation, level, timeout_ms)] = office.written
        assert (mutation.table_id, mutation.token, mutation.rows) == (TABLE_ID, TOKEN, (row,))
        assert (level, timeout_ms) == (Consistency.QUORUM, 750.0)
        assert office.reached == ["conditional.repaired"]
        for error in (WriteTimeout(level, 1, 2, "SIMPLE"), WriteFailure(level, 1, 2, 1, "SIMPLE")):
            office.error = error
            with pytest.raises(WriteTimeout) as late:
                await office.rounds.made_good(read_one(TOKEN), Looked(plan, [whole, ReadResult(())], ()))
            assert late.value.write_type == "CAS"
        office.error = PeerUnreachable("away")
        with pytest.raises(PeerUnreachable):
            await office.rounds.made_good(read_one(TOKEN), Looked(plan, [whole, ReadResult(())], ()))

    run(test)


def test_when_its_time_is_over_a_request_that_proposed_does_not_know_its_outcome() -> None:
    office = Office()
    office.rounds.required, office.rounds.contentions = 2, 3
    late = office.rounds.late(1)
    assert isinstance(late, WriteTimeout)
    assert (late.received, late.required, late.write_type) == (1, 2, "CAS") and "3 contention" in late.message
    proposed: Any = "proposed"
    office.rounds.own = proposed
    assert isinstance(office.rounds.late(1), ConditionalUnknown) and office.reached == ["conditional.unknown"]


def test_rounds_that_others_may_beat_have_less_time_than_all() -> None:
    office = Office()
    assert (office.rounds.left_ms(), office.rounds.contention_left_s()) == (1000.0, pytest.approx(0.4))
    office.now_s += 0.5
    assert (office.rounds.left_ms(), office.rounds.contention_left_s()) == (500.0, 0.0)
    office.now_s += 9.0
    assert office.rounds.left_ms() == 1.0, "what is asked last still has a moment"
    short = Patience(100.0, 400.0)
    owner: Any = office
    counts: Any = SimpleNamespace()
    assert Rounds(owner, counts, PLACE, Consistency.SERIAL, short).contention_left_s() == pytest.approx(0.1)
