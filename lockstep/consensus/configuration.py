"""Who belongs to a group, and the history of that within the log.

Owns: Configuration (voters, outgoing voters while two majorities are needed, learners) and
ConfigurationHistory. Invariant: a configuration is in force from the moment its entry is appended to the
local log, and stops being so when that entry is truncated; so the history is always a function of the log.
"""

from __future__ import annotations

import msgspec

from lockstep.consensus.settings import VOTERS_MAX
from lockstep.values import codec


class Configuration(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sorted member ids. `outgoing` is not empty only between the two steps of a joint change; then an
    election or commit needs a majority of `voters` and one of `outgoing`. Learners get the log, no vote."""

    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    def members(self) -> tuple[int, ...]:
        """Everyone the leader replicates to, sorted."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))

    def has_vote(self, identity: int) -> bool:
        return identity in self.voters or identity in self.outgoing

    def problem(self) -> str:
        """Why this cannot be a configuration; empty when it can."""
        for part in (self.voters, self.outgoing, self.learners):
            if list(part) != sorted(set(part)):
                return "member ids must be sorted and unique"
        if len(self.voters) > VOTERS_MAX or len(self.outgoing) > VOTERS_MAX:
            return f"more than {VOTERS_MAX} voters"
        if set(self.voters) & set(self.learners):
            return "a member cannot be voter and learner"
        return ""


_DECODER = codec.decoder(Configuration)


def encode_configuration(configuration: Configuration) -> bytes:
    return codec.encode(configuration)


def decode_configuration(data: bytes) -> Configuration:
    return _DECODER.decode(data)


def first_step(current: Configuration, target: Configuration) -> Configuration:
    """The entry that begins a change: the target itself when at most one voter differs (then any old and
    new majority intersect), else the joint configuration that needs both majorities."""
    assert not current.is_joint and not target.is_joint, "a change starts and ends outside a joint one"
    assert current.voters and target.voters, "a group has voters before and after"
    if len(set(current.voters) ^ set(target.voters)) <= 1:
        return target
    return Configuration(target.voters, current.voters, target.learners)


def may_follow(before: Configuration, after: Configuration) -> bool:
    """Whether any quorum of the one meets any quorum of the other, as the steps of a change have it. Whoever
    was never told who belongs to the group is told by its first entry."""
    if not before.voters:
        return True
    if after.is_joint:
        return not before.is_joint and after.outgoing == before.voters
    if before.is_joint:
        return after.voters == before.voters
    return len(set(before.voters) ^ set(after.voters)) <= 1


class ConfigurationHistory:
    """Configurations by the log index that brought them; the first is in force at the log's base."""

    __slots__ = ("_items", "current")

    def __init__(self, index: int, configuration: Configuration) -> None:
        assert index >= 0 and not configuration.problem(), "a history begins with a configuration"
        self._items: list[tuple[int, Configuration]] = [(index, configuration)]
        self.current = configuration

    @property
    def changed_at(self) -> int:
        """Index of the entry that brought the current configuration."""
        return self._items[-1][0]

    def append(self, index: int, configuration: Configuration) -> None:
        assert index > self.changed_at, "a configuration entry goes to the end of the log"
        problem = configuration.problem()
        assert not problem, problem
        self._items.append((index, configuration))
        self.current = configuration

    def truncate(self, last_index: int) -> bool:
        """Forget what came after `last_index`; True when the current configuration changed."""
        if self.changed_at <= last_index:
            return False
        while self.changed_at > last_index:
            assert len(self._items) > 1, "the configuration at the log's base cannot be truncated"
            self._items.pop()
        self.current = self._items[-1][1]
        return True

    def at(self, index: int) -> Configuration:
        """The configuration in force after the entry at `index`."""
        for start, configuration in reversed(self._items):
            if start <= index:
                return configuration
        raise AssertionError(f"the configuration at index {index} was compacted away")

    def may_have_vote(self, identity: int, commit_index: int) -> bool:
        """Whether the member votes in the committed configuration or in any that may still replace it."""
        for start, configuration in reversed(self._items):
            if configuration.has_vote(identity):
                return True
            if start <= commit_index:
                break
        return False

    def compact(self, index: int) -> None:
        """Drop what was replaced at or before `index`."""
        while len(self._items) > 1 and self._items[1][0] <= index:
            del self._items[0]

    def reset(self, index: int, configuration: Configuration) -> None:
        assert index > self._items[0][0], "a snapshot takes the history back"
        assert not configuration.problem(), configuration.problem()
        self._items = [(index, configuration)]
        self.current = configuration

    def validate(self, last_index: int) -> None:
        indices = [index for index, _ in self._items]
        assert indices == sorted(set(indices)), "configuration history is out of order"
        assert indices[-1] <= last_index, "a configuration outlived its entry"
        assert self.current is self._items[-1][1], "the current configuration is not the newest"
