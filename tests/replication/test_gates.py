"""Conditional requests of one partition at one coordinator: one after another, in their order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstep.coordination import conditional
from lockstep.coordination.conditional import Conditionals, Gates
from lockstep.replica.messages import Place
from lockstep.values.errors import ConditionalUnknown, LockstepError, Overloaded, Unavailable, WriteTimeout
from lockstep.values.ids import Consistency

from .support import run

PLACE, OTHER = (1, b"a"), (1, b"b")
LONG_S = 60.0


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Street:
    """Who is in, and who has been."""

    def __init__(self) -> None:
        self.gates = Gates()
        self.inside: list[str] = []
        self.passed: list[str] = []
        self._may_leave: dict[str, asyncio.Event] = {}

    def come(
        self, name: str, place: tuple[int, bytes] = PLACE, timeout_s: float = LONG_S
    ) -> asyncio.Task[None]:
        self._may_leave[name] = asyncio.Event()
        return asyncio.create_task(self._pass(name, place, timeout_s))

    async def _pass(self, name: str, place: tuple[int, bytes], timeout_s: float) -> None:
        async with self.gates.passing(place, timeout_s):
            self.inside.append(name)
            await self._may_leave[name].wait()
            self.inside.remove(name)
            self.passed.append(name)

    def let_go(self, name: str) -> None:
        self._may_leave[name].set()

    async def leave(self, name: str) -> None:
        self.let_go(name)
        await turns()


def test_one_is_in_at_a_time_and_they_pass_in_their_order() -> None:
    async def test() -> None:
        street = Street()
        for name in "abc":
            street.come(name)
            await turns()
        street.come("d", OTHER)
        await turns()
        assert street.inside == ["a", "d"], "another partition has a gate of its own"
        for name in "abcd":
            await street.leave(name)
        assert street.passed == ["a", "b", "c", "d"] and not street.gates._waiting

    run(test)


def test_who_waits_for_too_long_is_told_and_keeps_nobody_waiting() -> None:
    async def test() -> None:
        street = Street()
        street.come("a")
        await turns()
        late = street.come("b", timeout_s=0.0)
        street.come("c")
        with pytest.raises(TimeoutError):
            await late
        await street.leave("a")
        assert street.inside == ["c"]
        await street.leave("c")
        assert not street.gates._waiting

    run(test)


def test_who_is_cancelled_when_its_turn_has_come_hands_it_on() -> None:
    async def test() -> None:
        street = Street()
        street.come("a")
        await turns()
        waiting, _ = street.come("b"), street.come("c")
        await turns()
        street.let_go("a")
        await asyncio.sleep(0)
        assert not street.inside, "the turn is given and not yet taken"
        waiting.cancel()
        await turns()
        assert waiting.cancelled() and street.inside == ["c"]
        await street.leave("c")
        assert not street.gates._waiting

    run(test)


def test_the_gate_is_left_also_by_who_fails() -> None:
    async def test() -> None:
        gates = Gates()
        with pytest.raises(ValueError, match="inside"):
            async with gates.passing(PLACE, LONG_S):
                raise ValueError("inside")
        assert not gates._waiting

    run(test)


class Request:
    """As the gates see it. `own` is what it proposed."""

    def __init__(self, number: int, own: object = None) -> None:
        self.place = Place(1, number, b"%d" % number)
        self.own = own
        self.serial, self.required = Consistency.SERIAL, 2
        self.voters: LockstepError | None = None

    def require_voters(self) -> None:
        if self.voters is not None:
            raise self.voters

    def contention_left_s(self) -> float:
        return LONG_S

    def late(self, received: int) -> WriteTimeout:
        return WriteTimeout(self.serial, received, self.required, "CAS")


def test_so_many_are_in_flight_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "CONDITIONAL_IN_FLIGHT_MAX", 2)

    async def test() -> None:
        shared: Any = None
        requests: Any = Conditionals(shared)
        for _ in range(2):
            gate = asyncio.Event()
            running = [asyncio.create_task(requests._passing(Request(at), gate.wait)) for at in range(2)]
            await turns()
            with pytest.raises(Overloaded):
                await requests._passing(Request(2), gate.wait)
            gate.set()
            assert await asyncio.gather(*running) == [True, True]
        hopeless = Request(3)
        hopeless.voters = Unavailable(Consistency.SERIAL, 2, 1)
        with pytest.raises(Unavailable):
            await requests._passing(hopeless, gate.wait)
        assert requests._requests == 0 and not requests._gates._waiting

    run(test)


@pytest.mark.parametrize(
    ("own", "error", "told"),
    [
        (None, Overloaded("nothing was done"), Overloaded),
        ("proposed", Overloaded("nothing was done"), ConditionalUnknown),
        ("proposed", WriteTimeout(Consistency.SERIAL, 0, 2, "CAS"), WriteTimeout),
        (None, TimeoutError(), WriteTimeout),
    ],
)
def test_what_was_proposed_may_be_decided_whatever_ends_the_request(
    own: object, error: Exception, told: type[Exception]
) -> None:
    async def test() -> None:
        shared: Any = None
        requests: Any = Conditionals(shared)

        async def fails() -> None:
            raise error

        with pytest.raises(told) as found:
            await requests._passing(Request(1, own), fails)
        assert type(found.value) is told and requests._requests == 0

    run(test)
