"""Changes of counters that a replica remembers by their ids: each is added once, and they have a bound."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.coordination import counters
from lockstep.coordination.counters import CounterLeader, CounterRequest
from lockstep.values.errors import LockstepError, Overloaded, WriteTimeout
from lockstep.values.ids import Consistency

from .clusters import upsert
from .support import real_runtime, run

TIMEOUT = WriteTimeout(Consistency.ONE, 0, 1, "COUNTER")


class Leader(CounterLeader):
    """Counts nothing, and ends as it is told."""

    def __init__(self) -> None:
        internode = SimpleNamespace(register=lambda *_: None)
        context: Any = SimpleNamespace(runtime=real_runtime(), internode=internode)
        super().__init__(context, None, None)  # type: ignore[arg-type]
        self.counted: list[bytes] = []
        self.ends: LockstepError | None = None

    async def _count(self, request: CounterRequest) -> None:
        self.counted.append(request.mutation.mutation_id)
        await asyncio.sleep(0)
        if self.ends is not None:
            raise self.ends

    def asked(self, number: int) -> CounterRequest:
        change = upsert(1, b"a", b"x", 1, number)
        return CounterRequest(1, 1, change, Consistency.ONE, 1000.0, self.incarnation)


def test_a_change_that_comes_again_is_counted_once_and_has_the_same_outcome() -> None:
    async def test() -> None:
        leader = Leader()
        first, again = await asyncio.gather(leader.count(leader.asked(1)), leader.count(leader.asked(1)))
        assert first.counted and again.counted and len(leader.counted) == 1
        leader.ends = TIMEOUT
        ends = await asyncio.gather(
            *(leader.count(leader.asked(2)) for _ in range(2)), return_exceptions=True
        )
        assert ends == [TIMEOUT, TIMEOUT] and len(leader.counted) == 2
        with pytest.raises(WriteTimeout):
            await leader.count(leader.asked(2))
        assert len(leader.counted) == 2, "it may be added already"

    run(test)


def test_a_change_that_was_refused_may_be_counted_when_it_comes_again() -> None:
    async def test() -> None:
        leader = Leader()
        leader.ends = Overloaded("later")
        with pytest.raises(Overloaded):
            await leader.count(leader.asked(1))
        leader.ends = None
        assert (await leader.count(leader.asked(1))).counted and len(leader.counted) == 2

    run(test)


@pytest.mark.parametrize("ends", [None, TIMEOUT])
def test_the_ids_that_are_kept_have_a_bound_however_changes_end(
    ends: LockstepError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "COUNTER_IDS_KEPT_MAX", 3)

    async def test() -> None:
        leader = Leader()
        leader.ends = ends
        for number in range(5):
            await asyncio.gather(leader.count(leader.asked(number)), return_exceptions=True)
        assert len(leader._known) == 3
        await asyncio.gather(
            *(leader.count(leader.asked(number)) for number in (4, 0)), return_exceptions=True
        )
        assert len(leader.counted) == 6, "the newest are kept"

    run(test)


def test_another_process_counts_nothing_that_was_meant_for_this_one() -> None:
    async def test() -> None:
        leader = Leader()
        request = CounterRequest(1, 1, leader.asked(1).mutation, Consistency.ONE, 1000.0, 0)
        reply = await leader._receive(None, request)  # type: ignore[arg-type]
        assert (reply.counted, reply.incarnation, leader.counted) == (False, leader.incarnation, [])

    run(test)
