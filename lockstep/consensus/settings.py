"""Settings of one Raft group, all counted in ticks, messages or bytes.

Invariant: every queue of the machine is bounded by a number here; the machine itself knows no duration,
the driver decides how long a tick is.
"""

from __future__ import annotations

from typing import Final

import msgspec

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
