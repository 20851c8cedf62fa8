"""Requests that are carried out once, however often and however late they are delivered.

Who asks numbers what it asks of each peer, and says which start of the peer it means. Invariant: a number is
taken at most once, whatever became of it: what was refused is never carried out by a copy that comes later,
nor by the next process of the peer. The copy of what is under way ends as that does; any other copy has an
outcome that its sender does not wait for any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from lockstep.internode.handshake import Address
from lockstep.tracking.intervals import EMPTY, IntervalSet
from lockstep.values.errors import PeerTimeout
from lockstep.values.node_limits import NUMBERS_APART_MAX

T = TypeVar("T")


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`number` 0: the sender is of an older version, and numbers nothing. `start`: of the sender; `of_start`:
    of the receiver, as it was told last; 0: it was not."""

    number: int = 0
    start: int = 0
    of_start: int = 0


class Attempts:
    """Of one process, to all of its peers: numbers of each are dense."""

    def __init__(self, start: int) -> None:
        assert start > 0, "starts count from 1"
        self._start = start
        #: What was asked of each last, and its start; bounded by the nodes there are.
        self._numbers: dict[Address, int] = {}
        self._starts: dict[Address, int] = {}

    def next(self, peer: Address) -> Attempt:
        number = self._numbers[peer] = self._numbers.get(peer, 0) + 1
        return Attempt(number, self._start, self._starts.get(peer, 0))

    def told(self, peer: Address, start: int) -> None:
        """Nothing was done, for this is the peer's start."""
        self._starts[peer] = start


class Once(Generic[T]):
    """What peers asked of this process."""

    def __init__(self, start: int) -> None:
        self.start = start
        #: Start of each peer's process, by its host id, and the numbers that came from it.
        self._taken: dict[str, tuple[int, IntervalSet]] = {}
        self._under_way: dict[tuple[str, int, int], asyncio.Future[T]] = {}

    def is_meant(self, attempt: Attempt) -> bool:
        """Whether this process is; else the sender is told its start, and nothing is done."""
        return not attempt.number or attempt.of_start == self.start

    async def carry_out(self, host_id: str, attempt: Attempt, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` ends with, if this comes for the first time. PeerTimeout: it came before."""
        if not attempt.number:
            return await work()
        assert self.is_meant(attempt), "this process was asked"
        name = (host_id, attempt.start, attempt.number)
        earlier = self._under_way.get(name)
        if earlier is not None:
            return await asyncio.shield(earlier)
        if not self.take(host_id, attempt):
            raise PeerTimeout(f"request {attempt.number} of this peer's start {attempt.start} came before")
        outcome = self._under_way[name] = asyncio.get_running_loop().create_future()
        try:
            found = await work()
        except BaseException as error:
            if isinstance(error, Exception):
                outcome.set_exception(error)
                outcome.exception()  # whoever waits hears it; nobody has to
            else:
                outcome.cancel()
            raise
        else:
            outcome.set_result(found)
            return found
        finally:
            del self._under_way[name]

    def take(self, host_id: str, attempt: Attempt) -> bool:
        """Whether a number comes for the first time, as far as that is remembered: it never does later."""
        start, taken = self._taken.get(host_id, (0, EMPTY))
        if attempt.start > start:
            start, taken = attempt.start, EMPTY
        elif attempt.start < start or taken.contains(attempt.number):
            return False
        taken = taken.add(attempt.number)
        if len(taken.runs) > 2 * NUMBERS_APART_MAX:
            # Numbers between the first two were never sent, or are long overdue.
            taken = taken.union(IntervalSet((taken.runs[0], taken.runs[2])))
        self._taken[host_id] = start, taken
        return True
