"""The test processor: wraps another one, and holds, drops or reorders commits, loses replies, and keeps
epochs from being seen at this node.

Invariant: what passes is unchanged and in the hands of the wrapped processor; whatever the gate does could
have been done by a network or a slow disk, so every promise to users holds with it. Only for tests: a node
has it when [testing] faults is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.log.messages import Submit
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.processors.base import Processor, Settle
from lockstep.values.errors import ConfigurationError, LockstepError, NotLeader, Overloaded
from lockstep.values.limits import GATE_HELD_MAX

Predicate = Callable[[Submit], bool]
#: A submission that was held: what it is, and what lets it pass.
Held = tuple[Submit, Callable[[], None]]


class Gate:
    """The switches of one node. They stay as they are until they are changed or `release` opens them."""

    def __init__(self, state: MetadataState) -> None:
        self._state = state
        self._holds: Predicate = _none
        self._drops: Predicate = _none
        self._drops_left = 0
        self._replies_to_lose = 0
        self.held: list[Held] = []
        self._open = True
        #: What was done so far.
        self.dropped_commits = 0
        self.lost_replies = 0

    def hold_commits(self, which: Predicate | None = None) -> None:
        """Submissions that are `which` (all without it) wait before they are judged."""
        self._holds = which or _all
        self._open = False

    def drop_commits(self, count: int, which: Predicate | None = None) -> None:
        """The next `count` such submissions are lost before they are judged."""
        self._drops, self._drops_left = which or _all, count
        self._open = False

    def drop_replies(self, count: int) -> None:
        """Of the submissions made from now on, the outcomes of the next `count` commits are never told."""
        self._replies_to_lose = count
        self._open = False

    def hold_visibility_at(self, epoch: int) -> None:
        """No epoch above this one is applied here."""
        self._state.hold_at(epoch)

    def release(self, order: Callable[[Sequence[Held]], Sequence[Held]] | None = None) -> None:
        """Open everything; what was held passes in `order` (the one it came in without it)."""
        self._holds = self._drops = _none
        self._drops_left = self._replies_to_lose = 0
        self._open = True
        held, self.held = self.held, []
        for _, passes in order(held) if order is not None else held:
            passes()
        self._state.hold_at(None)

    def control(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a test asks for over the admin API; the state of the switches after it."""
        unknown = sorted(wanted.keys() - _CONTROLS.keys())
        if unknown:
            raise ConfigurationError(f"no such control: {', '.join(unknown)}", hint=", ".join(_CONTROLS))
        for name, value in wanted.items():
            if _CONTROLS[name] is bool and not isinstance(value, bool):
                raise ConfigurationError(f"{name} takes true or false")
            if _CONTROLS[name] is int and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                raise ConfigurationError(f"{name} takes a number from 0 on")
        if wanted.get("release"):
            self.release()
        if "hold_commits" in wanted:
            self.hold_commits(_all if wanted["hold_commits"] else _none)
        if "drop_commits" in wanted:
            self.drop_commits(wanted["drop_commits"])
        if "drop_replies" in wanted:
            self.drop_replies(wanted["drop_replies"])
        if "hold_visibility_at" in wanted:
            self.hold_visibility_at(wanted["hold_visibility_at"])
        return {
            "held": len(self.held),
            "dropped_commits": self.dropped_commits,
            "lost_replies": self.lost_replies,
            "epoch": self._state.epoch,
        }

    def take(self, inner: Processor, submit: Submit, settle: Settle) -> None:
        if self._open:
            inner.take(submit, settle)
        elif self._drops_left and self._drops(submit):
            self._drops_left -= 1
            self.dropped_commits += 1
        elif self._holds(submit):
            if len(self.held) >= GATE_HELD_MAX:
                settle(Overloaded("too many submissions are held by a test"))
                return
            term = inner.leading_term()
            self.held.append((submit, lambda: self._pass(inner, term, submit, self._guarded(settle))))
        else:
            inner.take(submit, self._guarded(settle))

    @staticmethod
    def _pass(inner: Processor, term: int, submit: Submit, settle: Settle) -> None:
        """What is judged late is judged in the term it came in, or not at all."""
        try:
            now = inner.leading_term()
        except NotLeader as error:
            settle(error)
            return
        if now == term:
            inner.take(submit, settle)
        else:
            settle(NotLeader(None))

    def _guarded(self, settle: Settle) -> Settle:
        def told(outcome: int | LockstepError) -> None:
            if self._replies_to_lose and isinstance(outcome, int):
                self._replies_to_lose -= 1
                self.lost_replies += 1
            else:
                settle(outcome)

        return told


_CONTROLS: Mapping[str, type] = {
    "hold_commits": bool,
    "drop_commits": int,
    "drop_replies": int,
    "hold_visibility_at": int,
    "release": bool,
}


def _all(_submit: Submit) -> bool:
    return True


def _none(_submit: Submit) -> bool:
    return False


class GatedProcessor(Processor):
    def __init__(self, inner: Processor, gate: Gate) -> None:
        self.inner = inner
        self._gate = gate

    def take(self, submit: Submit, settle: Settle) -> None:
        self._gate.take(self.inner, submit, settle)

    def leading_term(self) -> int:
        return self.inner.leading_term()

    def known_value(self, entry: LogEntry, before: ClusterMetadata) -> ClusterMetadata | None:
        return self.inner.known_value(entry, before)

    @property
    def leads(self) -> bool:
        return self.inner.leads
