"""Which processor a node has, the built-in kinds and those of other distributions, and the test processor: it
wraps another one, and holds, drops or reorders commits, loses replies.

Invariant: a kind is chosen by configuration alone, once, before the node starts. `raft` is made by the node
itself, when it becomes a member of the consensus group; every other kind is a factory called once at start. A
distribution brings a kind by an entry point in the group `lockstep.processors`: its name is the kind, its
object a factory. It appends nothing and claims nothing; submissions made on such a node are forwarded to the
voters (node.submission), and those that others send here are answered NotLeader. What passes is unchanged and
in the hands of the wrapped processor; whatever the gate does could have been done by a network or a slow
disk, so every promise to users holds with it. Only for tests: a node has it when [testing] faults is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Registry
from lockstep.node.configuration import Configuration
from lockstep.node.log.messages import Submit
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.processors.base import LocalProcessor, Processor, Settle
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import ConfigurationError, LockstepError, NotLeader, Overloaded
from lockstep.values.limits import GATE_HELD_MAX


class RemoteProcessor(Processor):
    def take(self, submit: Submit, settle: Settle) -> None:
        settle(NotLeader(None))

    def leading_term(self) -> int:
        raise NotLeader(None)


ENTRY_POINT_GROUP: Final = "lockstep.processors"
RAFT: Final = "raft"
LOCAL: Final = "local"
REMOTE: Final = "remote"


class Surroundings(msgspec.Struct, frozen=True):
    """What a factory gets. Committed entries go into `state.offer`, in order of their epochs."""

    runtime: Runtime
    state: MetadataState
    registry: Registry
    configuration: Configuration


Factory = Callable[[Surroundings], Processor]


def _local(given: Surroundings) -> Processor:
    return LocalProcessor(given.runtime, given.state, given.registry)


def _remote(_given: Surroundings) -> Processor:
    return RemoteProcessor()


BUILT_IN: Final[Mapping[str, Factory]] = {LOCAL: _local, REMOTE: _remote}


class EntryPoint(Protocol):
    """As importlib.metadata has them."""

    @property
    def name(self) -> str: ...

    def load(self) -> object: ...


def from_entry_points(points: Iterable[EntryPoint], kind: str) -> dict[str, Factory]:
    """The factory of `kind` among these entry points, if it is one of theirs; no other is loaded."""
    found: dict[str, Factory] = {}
    for point in points:
        if point.name != kind or kind in found:
            continue
        factory = point.load()
        if not callable(factory):
            raise ConfigurationError(f"the entry point {kind} of {ENTRY_POINT_GROUP} is not callable")
        found[kind] = factory
    return found


def chosen(configuration: Configuration, others: Mapping[str, Factory]) -> Factory | None:
    """The factory of the configured kind, None for `raft`. ConfigurationError when it is not known or does
    not fit the rest of the configuration."""
    kind = configuration.cms.processor
    if configuration.cluster.is_on_ring and kind != RAFT:
        raise ConfigurationError(
            "a cluster on the ring has no metadata processor to choose",
            hint="leave [cms] processor out, or set [cluster] membership to log",
        )
    if kind == RAFT:
        return None
    factory = BUILT_IN.get(kind) or others.get(kind)
    if factory is None:
        known = ", ".join(sorted((RAFT, *BUILT_IN, *others)))
        raise ConfigurationError(f"no metadata processor {kind} is installed", hint=f"there are: {known}")
    founders = configuration.cluster.founders
    if kind == LOCAL and not (configuration.is_founder and len(founders) == 1):
        raise ConfigurationError(
            "the local metadata processor is for a node that founds its cluster alone",
            hint="make this node the only one in [cluster] founders, or choose another [cms] processor",
        )
    if kind == REMOTE and configuration.is_founder:
        raise ConfigurationError(
            "a founder keeps the metadata and cannot be remote",
            hint="choose [cms] processor raft, or join with [cluster] seeds",
        )
    return factory


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
