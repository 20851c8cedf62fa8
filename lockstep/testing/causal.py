"""A session of cassandra-driver (or scylla-driver) whose requests follow each other, at any level.

Owns: how a causal token goes from the answers of nodes into the requests that come later. Invariant: a
request that begins after another one has ended follows it, whatever nodes both were sent to. Nothing of a
driver is imported.
"""

from __future__ import annotations

import threading
from typing import Any

from lockstep.tracking import tokens
from lockstep.tracking.limits import CAUSAL_SPANS_MAX
from lockstep.tracking.tokens import TOKEN_KEY, Remembered, Span


class CausalSession:
    """Wraps a connected session: `execute` and `execute_async` take what the session's own take.

    Reads of partitions of tracked tables then show what was written and read before through this object, at
    ONE too. It remembers `ranges_max` ranges; `forgotten` counts those that it gave up, whose next reads
    follow nothing. What a failed request wrote is not followed.
    """

    def __init__(self, session: Any, *, ranges_max: int = CAUSAL_SPANS_MAX) -> None:
        self.session = session
        self._remembered = Remembered(ranges_max)
        # Answers are heard of in the driver's own thread.
        self._lock = threading.Lock()

    @property
    def forgotten(self) -> int:
        return self._remembered.forgotten

    @property
    def token(self) -> bytes:
        """For another process, whose session takes it by `follow`."""
        with self._lock:
            return tokens.encode(self._remembered.spans)

    def follow(self, token: bytes) -> None:
        """Follow what another session has seen as well. InvalidRequest when that is no token."""
        spans = tokens.decode(token)
        with self._lock:
            self._remembered.answered((), spans)

    def execute(self, query: Any, parameters: Any = None, **settings: Any) -> Any:
        return self.execute_async(query, parameters, **settings).result()

    def execute_async(self, query: Any, parameters: Any = None, **settings: Any) -> Any:
        """A future of the driver. What the request brought is followed by those that begin once its result
        was taken, by `result` or a callback; what a later page brought, once that was."""
        sent = self._sending()
        payload = {**(settings.pop("custom_payload", None) or {}), TOKEN_KEY: tokens.encode(sent)}
        future = self.session.execute_async(query, parameters, custom_payload=payload, **settings)
        return _Following(future, self, sent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def _sending(self) -> tuple[Span, ...]:
        """What a request that begins now is to follow."""
        with self._lock:
            sent = tokens.decode(tokens.encode(self._remembered.spans))
            self._remembered.forget(len(sent))
        return sent

    def _answered(self, sent: tuple[Span, ...], payload: dict[str, bytes] | None) -> None:
        told = tokens.decode((payload or {}).get(TOKEN_KEY) or b"")
        with self._lock:
            self._remembered.answered(sent, told)


class _Following:
    """A future of the driver, each of whose pages is remembered before anybody is told of it."""

    def __init__(self, future: Any, session: CausalSession, sent: tuple[Span, ...]) -> None:
        self._future = future
        self._session = session
        self._sent = sent

    def result(self) -> Any:
        rows = self._future.result()
        self._remember()
        # Who goes through them has it fetch further pages.
        rows.response_future = self
        return rows

    def start_fetching_next_page(self) -> None:
        self._sent = self._session._sending()
        self._future.message.update_custom_payload({TOKEN_KEY: tokens.encode(self._sent)})
        self._future.start_fetching_next_page()

    def add_callback(self, fn: Any, *args: Any, **kwargs: Any) -> _Following:
        def told(rows: Any) -> None:
            self._remember()
            fn(rows, *args, **kwargs)

        self._future.add_callback(told)
        return self

    def add_callbacks(
        self,
        callback: Any,
        errback: Any,
        callback_args: Any = (),
        callback_kwargs: Any = None,
        errback_args: Any = (),
        errback_kwargs: Any = None,
    ) -> None:
        self.add_callback(callback, *callback_args, **(callback_kwargs or {}))
        self._future.add_errback(errback, *errback_args, **(errback_kwargs or {}))

    def _remember(self) -> None:
        self._session._answered(self._sent, self._future.custom_payload)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)
