"""Who belongs to a group, the history of that within the log, and the group's settings, all counted in ticks,
messages or bytes.

Owns: Configuration (voters, outgoing voters while two majorities are needed, learners) and
ConfigurationHistory.

Invariant: a configuration is in force from the moment its entry is appended to the local log, and stops being
so when that entry is truncated; so the history is always a function of the log. Every queue of the machine is
bounded by a number here; the machine itself knows no duration, the driver decides how long a tick is.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from lockstep.values import codec

#: Voters of one configuration. A majority of seven survives three failures, more only slows commits down; the
#: eighth is the one that joins before another leaves.
VOTERS_MAX: Final = 8
#: What an entry weighs on the wire beyond its data, so that many empty entries still fill a message.
ENTRY_OVERHEAD_BYTES: Final = 16


class RaftSettings(msgspec.Struct, frozen=True):
    """Tunables; the defaults suit a tick of 10 to 100 ms.

    election_ticks: a follower that hears nothing for election_ticks + draw(election_ticks) ticks campaigns.
    heartbeat_ticks: a leader speaks to every member at least this often; must be below election_ticks.
    in_flight_appends_max: unanswered appends to one member; enough to fill a round trip, small enough that
        a slow member cannot make the leader queue without end.
    append_bytes_max: data bytes of one append (one entry is sent even when larger).
    uncommitted_bytes_max: proposals are refused while this many bytes wait for their commit.
    snapshot_ticks: how long a member may be silent about a snapshot before its transfer is given up; it
        then starts over, with the newest snapshot, when the member answers heartbeats again.
    chunk_ticks: how long a chunk may go unanswered before the member is asked what it wants next.
    chunk_bytes_max: bytes of a snapshot in one message; each member has one such message on its way.
    pending_reads_max: read confirmations waiting at once; more are refused.
    pre_vote: ask whether an election could be won before disturbing the term.
    check_quorum: a leader that heard no quorum for election_ticks steps down, and members that hear a
        leader ignore elections.
    """

    election_ticks: int = 10
    heartbeat_ticks: int = 2
    in_flight_appends_max: int = 64
    append_bytes_max: int = 1024 * 1024
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    snapshot_ticks: int = 100
    chunk_ticks: int = 10
    chunk_bytes_max: int = 256 * 1024
    pending_reads_max: int = 4096
    pre_vote: bool = True
    check_quorum: bool = True

    def __post_init__(self) -> None:
        """ValueError when the numbers cannot work together."""
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError("heartbeat_ticks must be at least 1 and below election_ticks")
        bounds = (
            self.in_flight_appends_max,
            self.append_bytes_max,
            self.uncommitted_bytes_max,
            self.snapshot_ticks,
            self.chunk_ticks,
            self.chunk_bytes_max,
            self.pending_reads_max,
        )
        if min(bounds) < 1:
            raise ValueError("every bound must be at least 1")


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
        committed = bisect_right(self._items, commit_index, key=lambda item: item[0]) - 1
        assert committed >= 0, "the oldest configuration kept is committed"
        return any(configuration.has_vote(identity) for _, configuration in self._items[committed:])

    def compact(self, index: int) -> None:
        """Drop what was replaced at or before `index`."""
        while len(self._items) > 1 and self._items[1][0] <= index:
            del self._items[0]
        assert self._items[-1][1] is self.current, "what is in force is never forgotten"

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
