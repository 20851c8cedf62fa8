"""Requests that are carried out once, whatever became of the first copy."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.coordination import once
from lockstep.coordination.once import Attempt, Attempts, Once
from lockstep.values.errors import PeerTimeout, Unavailable
from lockstep.values.ids import Consistency

from .support import run

HOST, PEER = "host", ("127.0.0.2", 7000)


class Work:
    def __init__(self) -> None:
        self.done = 0
        self.refuses = False

    async def __call__(self) -> int:
        await asyncio.sleep(0)
        if self.refuses:
            raise Unavailable(Consistency.QUORUM, 2, 1)
        self.done += 1
        return self.done


def test_what_was_refused_is_not_carried_out_by_a_later_copy() -> None:
    async def test() -> None:
        receiver, work = Once[int](5), Work()
        work.refuses = True
        with pytest.raises(Unavailable):
            await receiver.carry_out(HOST, Attempt(1, 1, 5), work)
        work.refuses = False
        with pytest.raises(PeerTimeout):
            await receiver.carry_out(HOST, Attempt(1, 1, 5), work)
        assert work.done == 0
        assert await receiver.carry_out(HOST, Attempt(2, 1, 5), work) == 1

    run(test)


def test_a_copy_of_what_is_under_way_ends_as_that_does() -> None:
    async def test() -> None:
        receiver, work = Once[int](5), Work()
        asked = Attempt(1, 1, 5)
        found = await asyncio.gather(*(receiver.carry_out(HOST, asked, work) for _ in range(2)))
        assert found == [1, 1]
        with pytest.raises(PeerTimeout):
            await receiver.carry_out(HOST, asked, work)
        work.refuses, asked = True, Attempt(2, 1, 5)
        ends = await asyncio.gather(
            *(receiver.carry_out(HOST, asked, work) for _ in range(2)), return_exceptions=True
        )
        assert [type(end) for end in ends] == [Unavailable, Unavailable] and work.done == 1

    run(test)


def test_copies_of_another_process_s_requests_are_not_carried_out() -> None:
    receiver = Once[int](5)
    assert receiver.take(HOST, Attempt(1, 1, 5)) and receiver.take(HOST, Attempt(1, 2, 5))
    assert not receiver.take(HOST, Attempt(2, 1, 5)), "its sender started again since"
    assert receiver.take("another", Attempt(1, 1, 5))
    assert not receiver.is_meant(Attempt(1, 1, 4)) and receiver.is_meant(Attempt())


def test_numbers_of_a_peer_are_dense_and_name_the_start_that_it_told() -> None:
    sender = Attempts(3)
    assert sender.next(PEER) == Attempt(1, 3, 0)
    sender.told(PEER, 7)
    assert sender.next(PEER) == Attempt(2, 3, 7)
    assert sender.next(("127.0.0.3", 7000)) == Attempt(1, 3, 0)


def test_the_numbers_that_are_remembered_have_a_bound_and_are_not_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(once, "NUMBERS_APART_MAX", 2)
    receiver = Once[int](5)
    for number in (1, 3, 5, 7):
        assert receiver.take(HOST, Attempt(number, 1, 5))
    assert len(receiver._taken[HOST][1].runs) <= 4
    assert not any(receiver.take(HOST, Attempt(number, 1, 5)) for number in (1, 3, 5, 7))
    assert not receiver.take(HOST, Attempt(2, 1, 5)), "it is long overdue"
    assert receiver.take(HOST, Attempt(6, 1, 5))


def test_an_older_sender_that_numbers_nothing_is_served_as_ever() -> None:
    async def test() -> None:
        receiver, work = Once[int](5), Work()
        assert [await receiver.carry_out(HOST, Attempt(), work) for _ in range(2)] == [1, 2]

    run(test)
