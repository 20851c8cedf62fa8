"""The node's log: one line an event on standard error, as text for people or JSON for machines.

Invariant: writing a line never fails the caller; a level below the configured one costs one comparison.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

from lockstep.runtime.ports import Clock

_LEVELS: Final = ("debug", "info", "warning", "error")
#: Events that are not information only, by the end of their name.
_BY_ENDING: Final = {
    "failed": "warning",
    "waits": "info",
    "refused": "warning",
    "warned": "warning",
    "broken": "error",
    "fault": "error",
}


def level_of(event: str) -> str:
    """The level of an event, from the last word of its name (`node.broken`, `topology.step_failed`)."""
    return _BY_ENDING.get(event.replace("_", ".").rpartition(".")[2], "info")


class LineLog:
    """Called as `log(event, **facts)`."""

    def __init__(self, clock: Clock, level: str, form: str, output: TextIO | None = None) -> None:
        self._clock = clock
        self._rank = _LEVELS.index(level)
        self._write: Callable[[str, str, dict[str, Any]], str] = _json if form == "json" else _text
        self._output = output if output is not None else sys.stderr

    def __call__(self, event: str, **facts: Any) -> None:
        level = level_of(event)
        if _LEVELS.index(level) < self._rank:
            return
        line = self._write(f"{self._clock.wall_us() / 1e6:.3f}", level, {"event": event, **facts})
        try:
            self._output.write(line + "\n")
            self._output.flush()
        except (OSError, ValueError):
            # The reader of the log is gone; the node serves on.
            self._rank = len(_LEVELS)


def _json(time: str, level: str, facts: dict[str, Any]) -> str:
    return json.dumps({"time": float(time), "level": level, **facts}, default=str)


def _text(time: str, level: str, facts: dict[str, Any]) -> str:
    event = facts.pop("event")
    rest = " ".join(f"{name}={value}" for name, value in facts.items())
    return f"{time} {level:<7} {event} {rest}".rstrip()
