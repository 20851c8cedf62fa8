"""Carries out the effects of rounds on the event loop; the contract is that of `coordination.round`.

Invariant: nothing is carried out of what an event asked for once its round has ended, but for the end itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from lockstep.quorum.round import Ask, Check, Effects, End, Ended, Learn, Retry, Round


class Driven(Protocol):
    """A request that has a round. `retry` is the timer of its next `again`, if there is one."""

    @property
    def round(self) -> Round[Any]: ...

    retry: asyncio.TimerHandle | None

    def ask(self, asked: Ask) -> None: ...

    def again(self) -> None:
        """The time of a `Retry` is over."""

    def check(self) -> None:
        """Enough have answered, as far as the round knows."""

    def finish(self, end: End) -> None: ...


def again_after(request: Driven, delay_s: float, told: Callable[[], None]) -> None:
    """Have the round's `again` come after a while unless it is to come anyway; `told` hears when it comes."""
    if request.round.waits():
        request.retry = asyncio.get_running_loop().call_later(delay_s, _again, request, told)


def _retry(request: Driven, effect: Retry) -> None:
    request.retry = asyncio.get_running_loop().call_later(effect.after_ms / 1000, _again, request)


def _again(request: Driven, told: Callable[[], None] | None = None) -> None:
    request.retry = None
    if told is not None:
        told()
    request.again()


_CARRIED: Final[Mapping[type, Callable[[Any, Any], None]]] = {
    Retry: _retry,
    Learn: lambda request, effect: request.learn(effect),
    Check: lambda request, effect: request.check(),
}


def carry_out(request: Driven, effects: Effects) -> None:
    for effect in effects:
        if type(effect) is Ended:
            request.finish(effect.end)
        elif request.round.end is None:
            if type(effect) is Ask:
                request.ask(effect)
            else:
                _CARRIED[type(effect)](request, effect)
