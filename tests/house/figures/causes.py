"""Tells what a request causes in a simulated cluster from what nodes do anyway.

A callback of the simulated world that is made (or queued) while one of the request's runs is the request's
too. That follows it over tasks, timers, worker threads and connections, and leaves ticks and gossip out.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from .calls import Calls, Counting

#: The simulator's functions that make, queue and run callbacks; each row of the second part holds the one at
#: hand in its local `callback`.
_MADE, _QUEUED, _RUN, _RUN_OUTSIDE = "Callback.__init__", "SimLoop.push", "World._spin", "World._advance"


class Caused:
    """Counts the calls that follow from what runs while `counting` is entered; those of the process `client`,
    which asks, are left out."""

    def __init__(self, calls: Calls, stage: str, client: str) -> None:
        self._calls = calls
        self._stage = stage
        self._client = client
        self._ours: dict[int, Any] = {}
        self._now = True
        self._counts = True
        self.callbacks = 0

    def counting(self) -> Counting:
        return Counting(self._listen)

    def _listen(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if str(frame.f_globals.get("__name__", "")).startswith(self._stage):
                self._of_the_stage(frame)
            elif self._now and self._counts:
                self._calls.called(frame)
        elif event == "return":
            if self._now and self._counts:
                self._calls.returned(frame, argument)
        elif event == "c_call" and argument.__name__ == "run" and frame.f_code.co_qualname == _RUN:
            local = frame.f_locals
            self._begins(local["callback"])
            self._counts = not local["loop"].label.startswith(f"{self._client}.")

    def _of_the_stage(self, frame: FrameType) -> None:
        name = frame.f_code.co_qualname
        back = frame.f_back
        outside = back is not None and back.f_code.co_qualname == _RUN_OUTSIDE
        if name == _MADE and self._now:
            self._mark(frame.f_locals["self"])
        elif name == _QUEUED and not outside and self._now:
            self._mark(frame.f_locals["callback"])
        elif outside and name != _QUEUED and back is not None and "callback" in back.f_locals:
            self._begins(back.f_locals["callback"])
            self._counts = True

    def _mark(self, callback: Any) -> None:
        self._ours[id(callback)] = callback

    def _begins(self, callback: Any) -> None:
        self._now = self._ours.pop(id(callback), None) is not None
        self.callbacks += self._now
