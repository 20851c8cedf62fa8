"""Who is told how a request between nodes ended: an object, a future, or two callbacks.

Invariant: a waiter hears exactly one of the two, never before the sending call has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from lockstep.values.errors import LockstepError


class Waiter(Protocol):
    """Told the end of a request; `context` is what the caller passed with it."""

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None: ...

    def failed(self, context: Any, error: LockstepError) -> None: ...


class FutureWaiter:
    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def failed(self, context: Any, error: LockstepError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class RawWaiter(FutureWaiter):
    """Waits for a reply and the raw bytes behind it: the future has the reply when `take` got all of them.

    `take` may be called in a thread. What comes when nobody waits any more is taken all the same.
    """

    __slots__ = ("reply", "take")

    def __init__(self, future: asyncio.Future[Any], take: Callable[[memoryview], None]) -> None:
        super().__init__(future)
        self.take = take
        self.reply: Any = None

    def ended(self, error: Exception | None) -> None:
        """All bytes were taken, or `error` came between."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(self.reply)
        else:
            self.future.set_exception(error)


class CallbackWaiter:
    __slots__ = ("_on_error", "_on_reply")

    def __init__(
        self, on_reply: Callable[[Any, int], None], on_error: Callable[[LockstepError], None]
    ) -> None:
        self._on_reply = on_reply
        self._on_error = on_error

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
        self._on_reply(reply, sender_epoch)

    def failed(self, context: Any, error: LockstepError) -> None:
        self._on_error(error)
