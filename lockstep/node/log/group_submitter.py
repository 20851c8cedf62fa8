"""Getting a submission to the leader of a Raft group: members are asked in turns until it is settled.

Invariants: what is submitted keeps one id over all attempts, so it is applied at most once; when the deadline
passes and some attempt may have been appended, OutcomeUnknown is raised, never a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from lockstep.internode.handshake import Address
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import (
    HandshakeRefused,
    InvalidRequest,
    LeadershipLost,
    LockstepError,
    NodeExcluded,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerTimeout,
    PeerUnreachable,
    Rejected,
)

R = TypeVar("R")

#: One attempt at one member; an election takes about as long.
ATTEMPT_TIMEOUT_MS: Final = 2000
#: What settles a submission.
_SETTLED = (Rejected, OutcomeUnknown, InvalidRequest)
#: What says that a member appended nothing.
_NOTHING_DONE = (NotLeader, PeerUnreachable, HandshakeRefused, Overloaded, NodeExcluded)


class Group(msgspec.Struct, frozen=True):
    """What differs between the groups.

    `name` and the hints are for people; `effect` says what may have happened. `pause_ms` is (least, most)
    between rounds over all members: well below an election, and no busy loop. `leaderless_ms`: how long
    members are asked while none leads and none has appended anything; 0: until the deadline.
    """

    name: str
    effect: str
    hint: str
    unreachable_hint: str
    pause_ms: tuple[int, int]
    leaderless_ms: int = 0


class GroupSubmitter:
    """`members()` gives the addresses to ask, the likeliest leader first."""

    def __init__(self, runtime: Runtime, group: Group, members: Callable[[], Sequence[Address]]) -> None:
        self._runtime = runtime
        self._group = group
        self._members = members

    async def settle(
        self, ask: Callable[[Address, int], Awaitable[R | None]], timeout_ms: int
    ) -> tuple[R, Address]:
        """(the answer that settles it, who gave it).

        `ask(address, limit_ms)` makes one attempt; None: this member gave no answer that settles it. What it
        raises is told apart by what it means for the outcome. OutcomeUnknown: some attempt may have been
        appended. PeerUnreachable: nothing was done.
        """
        begin_s = self._runtime.clock.monotonic_s()
        deadline_s = begin_s + timeout_ms / 1000
        attempts = _Attempts()
        while (left_ms := self.left_ms(deadline_s)) > 0:
            if attempts.leaderless and 0 < self._group.leaderless_ms <= timeout_ms - left_ms:
                break
            for address in self._members():
                found = await self._attempt(ask, address, attempts, deadline_s)
                if found is not None:
                    return found, address
                if self.left_ms(deadline_s) <= 0:
                    break
            else:
                low, high = self._group.pause_ms
                await asyncio.sleep((low + self._runtime.random.below(high - low)) / 1000)
        waited_ms = int((self._runtime.clock.monotonic_s() - begin_s) * 1000)
        raise attempts.verdict(self._group, min(waited_ms, timeout_ms))

    def left_ms(self, deadline_s: float) -> int:
        return int((deadline_s - self._runtime.clock.monotonic_s()) * 1000)

    async def _attempt(
        self,
        ask: Callable[[Address, int], Awaitable[R | None]],
        address: Address,
        attempts: _Attempts,
        deadline_s: float,
    ) -> R | None:
        limit_ms = max(1, min(ATTEMPT_TIMEOUT_MS, self.left_ms(deadline_s)))
        try:
            return await ask(address, limit_ms)
        except _SETTLED:
            raise
        except LeadershipLost as error:
            attempts.unknown(error)
        except _NOTHING_DONE as error:
            attempts.nothing_done(error)
        except LockstepError as error:
            # Whatever went wrong there, it may have been after the append.
            attempts.unknown(error)
        except TimeoutError:
            attempts.unknown(PeerTimeout(f"this member did not commit within {limit_ms} ms"))
        return None


class _Attempts:
    """What is known of a submission after some attempts."""

    def __init__(self) -> None:
        self._maybe_appended = False
        self._last: LockstepError | None = None
        #: Whether no attempt found anyone who leads, or who may have led.
        self.leaderless = True

    def nothing_done(self, error: LockstepError) -> None:
        self._last = error
        if isinstance(error, Overloaded):
            self.leaderless = False

    def unknown(self, error: LockstepError) -> None:
        self._maybe_appended = True
        self.leaderless = False
        self._last = error

    def verdict(self, group: Group, waited_ms: int) -> LockstepError:
        if self._maybe_appended:
            return OutcomeUnknown(
                f"no {group.name} answered within {waited_ms} ms; {group.effect}", hint=group.hint
            )
        return PeerUnreachable(
            f"nothing was changed, as no {group.name} was found within {waited_ms} ms: {self._last}",
            hint=group.unreachable_hint,
        )
