"""The step machines look at themselves: each says what must hold of its state, and is asked while nodes run.

Invariant: asking changes nothing of a run. A machine is asked after every so many steps of its kind:
after each where the question costs little beside a step, after some where it walks what was gathered.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

from lockstep.consensus.raft import Raft
from lockstep.coordination.ballot_counts import ConditionalCounts
from lockstep.gossip.failure_detector import ClockOffsets, FailureDetector
from lockstep.gossip.pulling import Puller
from lockstep.gossip.soft_state import SoftStates
from lockstep.handoff.batch_store import BatchStore
from lockstep.handoff.hint_store import HintStore
from lockstep.handoff.view_updates import ViewPairs
from lockstep.internode.peer import SharedOut
from lockstep.internode.waiters import Deadlines
from lockstep.metadata.log.snapshot import SnapshotDecoder
from lockstep.metadata.log.tip import Tip
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.processors.raft import RaftProcessor
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.round import Round
from lockstep.quorum.speculation import Histogram, Latencies
from lockstep.replica.ballot_states import BallotStates, ReservedTimes
from lockstep.replica.session_guards import SessionGuards
from lockstep.ring.member import RingMember
from lockstep.storage.group_commit import GroupCommit
from lockstep.storage.journal import Journal
from lockstep.storage.model import OrderedMap
from lockstep.storage.unchanged import Unchanged
from lockstep.tracking.waiting import Wait

#: Machine -> after how many steps it is asked: primes, so that no rhythm of ticks and messages meets the same
#: machine always.
MACHINES: dict[type, int] = {
    Raft: 7,
    Round: 3,
    PlanBook: 29,
    Histogram: 29,
    Latencies: 1,
    Tip: 1,
    SnapshotDecoder: 1,
    Puller: 1,
    FailureDetector: 5,
    SoftStates: 5,
    ClockOffsets: 5,
    OrderedMap: 1999,
    GroupCommit: 3,
    Unchanged: 7,
    Journal: 7,
    SharedOut: 3,
    Deadlines: 29,
    SessionGuards: 1,
    ConditionalCounts: 1,
    BallotStates: 5,
    ReservedTimes: 1,
    HintStore: 7,
    BatchStore: 7,
    ViewPairs: 7,
    MetadataState: 3,
    RaftProcessor: 1,
    RingMember: 7,
    Wait: 1,
}

#: Machine -> what only asks it, often: no step, as nothing is changed.
QUESTIONS: dict[type, frozenset[str]] = {
    Wait: frozenset(["lacks"]),
    Journal: frozenset(
        [
            "held",
            "reconciled",
            "apart",
            "taking",
            "recent",
            "holders",
            "logs_of",
            "estimated_bytes",
            "oldest_us",
            "held_in",
            "entries",
        ]
    ),
    PlanBook: frozenset(("placement", "changed_since")),
    FailureDetector: frozenset(["alive", "alive_until_s", "prompt", "phi", "silent_s", "suspected_in_s"]),
    ClockOffsets: frozenset(("known",)),
    Round: frozenset(["counting", "lacking", "has_fresh", "asked", "failed_with", "waits"]),
    HintStore: frozenset(("count", "oldest_us", "page", "marks")),
    GroupCommit: frozenset(("unsynced_partition", "unsynced_between")),
    OrderedMap: frozenset(("get", "view")),
}


def self_checking() -> list[tuple[Any, str, Any]]:
    """What to replace for the time of a run: every step of a machine, by one that asks afterwards."""
    changes: list[tuple[Any, str, Any]] = []
    for machine, every in MACHINES.items():
        asked = _Asked(every)
        for name, step in vars(machine).items():
            if is_step(name, step) and name not in QUESTIONS.get(machine, ()):
                changes.append((machine, name, asked.after(step)))
    return changes


def is_step(name: str, member: Any) -> bool:
    """Public, done when it returns, and not the question itself."""
    return (
        inspect.isfunction(member)
        and not inspect.iscoroutinefunction(member)
        and not name.startswith("_")
        and name != "validate"
    )


class _Asked:
    """One machine's steps; every so many of them it validates itself."""

    def __init__(self, every: int) -> None:
        self._is_asked = itertools.cycle((*[False] * (every - 1), True)).__next__

    def after(self, step: Callable[..., Any]) -> Callable[..., Any]:
        is_asked = self._is_asked

        # The machine is the first of `args`, which go on as they came: each step comes through here.
        @functools.wraps(step)
        def checked(*args: Any, **named: Any) -> Any:
            found = step(*args, **named) if named else step(*args)
            if is_asked():
                args[0].validate()
            return found

        return checked
