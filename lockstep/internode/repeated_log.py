"""Events that come in crowds, logged once a minute with their count.

Invariant: of each kind of event the first is logged at once; what follows within REPEATED_LOG_MS is counted,
and told at its end as one line with the newest facts and `count`. Nothing that was noted is left untold, and
kinds are bounded: beyond REPEATED_LOG_KINDS_MAX those of one event share a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from lockstep.values.node_limits import REPEATED_LOG_KINDS_MAX, REPEATED_LOG_MS

#: In place of what distinguishes events of a name, when there are too many kinds.
_OTHERS: Final = ("others",)


class _Kind(msgspec.Struct, eq=False):
    timer: asyncio.TimerHandle
    count: int = 0
    facts: dict[str, Any] = {}


class Log(Protocol):
    def __call__(self, event: str, **facts: Any) -> None: ...


class RepeatedLog:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._kinds: dict[tuple[Any, ...], _Kind] = {}

    def note(self, event: str, *kind: Any, facts: Callable[[], dict[str, Any]]) -> None:
        """Something happened; `event` and `kind` are what its line is shared by. `facts` is called now."""
        key = (event, *kind)
        known = self._kinds.get(key)
        if known is None and len(self._kinds) >= REPEATED_LOG_KINDS_MAX:
            key = (event, *_OTHERS)
            known = self._kinds.get(key)
        if known is not None:
            known.count += 1
            known.facts = facts()
            return
        self._log(event, **facts())
        self._kinds[key] = _Kind(self._later(key))

    def _later(self, key: tuple[Any, ...]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(REPEATED_LOG_MS / 1000, self._tell, key)

    def _tell(self, key: tuple[Any, ...]) -> None:
        kind = self._kinds.pop(key)
        if kind.count:
            self._log(key[0], **kind.facts, count=kind.count)
            self._kinds[key] = _Kind(self._later(key))

    def stop(self) -> None:
        """Tell what was counted."""
        kinds, self._kinds = self._kinds, {}
        for key, kind in kinds.items():
            kind.timer.cancel()
            if kind.count:
                self._log(key[0], **kind.facts, count=kind.count)
