"""The step machines look at themselves: each says what must hold of its state, and is asked while nodes run.

Invariant: asking changes nothing of a run. Raft's question is linear in its log and asked after every
`RAFT_EVERY`-th step of the world's machines together; the others are asked after each of theirs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lockstep.consensus.raft import Raft
from lockstep.gossip.failure_detector import FailureDetector
from lockstep.gossip.pulling import Puller
from lockstep.gossip.soft_state import SoftStates
from lockstep.metadata.log.tip import Tip

#: A prime, so that no rhythm of ticks and messages meets the same machine always.
RAFT_EVERY = 7
_MACHINES: tuple[tuple[type, int], ...] = (
    (Raft, RAFT_EVERY),
    (Tip, 1),
    (Puller, 1),
    (FailureDetector, 5),
    (SoftStates, 5),
)


def self_checking() -> list[tuple[Any, str, Any]]:
    """What to replace for the time of a run: every step of a machine, by one that asks afterwards."""
    changes: list[tuple[Any, str, Any]] = []
    for machine, every in _MACHINES:
        asked = _Asked(every)
        for name, step in vars(machine).items():
            if inspect.isfunction(step) and not name.startswith("_") and name != "validate":
                changes.append((machine, name, asked.after(step)))
    return changes


class _Asked:
    """One machine's steps; every so many of them it validates itself."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps = 0

    def after(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def checked(machine: Any, *args: Any, **named: Any) -> Any:
            found = step(machine, *args, **named)
            self._steps += 1
            if self._steps % self._every == 0:
                machine.validate()
            return found

        return checked
