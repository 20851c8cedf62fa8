"""Conditions that are looked at rather than reported: the part only keeps a state, and one watch for all
looks at it; and certificates, of whose end operators are told before.

Invariant: a watch reads what its part knows already, at no more cost than the part itself allows. What comes
and goes in normal work, such as an election or a barrier, is told only once it has lasted. It only tells. A
certificate that ended while the node runs is refused by others at the next connection, and by this node
itself at its next start.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.management import Management
from lockstep.node.membership.service_driver import ServiceDriver
from lockstep.node.work.conditions import Conditions
from lockstep.node.work.topology_driver import TopologyDriver
from lockstep.runtime.ports import Clock
from lockstep.storage.group_commit import Space
from lockstep.values.node_limits import JOURNAL_LARGE_BYTES, REPLICA_LAGS_S, WITNESS_JOURNAL_TOLD

#: An election takes less than a second, and a second one after a split vote as long again.
LEADERLESS_S: Final = 5.0
#: A barrier takes milliseconds, and a node that is started again is back in seconds.
STUCK_S: Final = 30.0

Look = Callable[[], None]


class Lasting:
    """Since when each thing is as it is, on the steady clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}

    def older_than(self, seconds: float, things: list[Hashable]) -> set[Hashable]:
        """Those of these things that were among them at every call for so long."""
        now = self._clock.monotonic_s()
        self._since = {thing: self._since.get(thing, now) for thing in things}
        return {thing for thing, since in self._since.items() if now - since >= seconds}


def watch_metadata(
    conditions: Conditions, state: MetadataState, leader: Callable[[], int | None], clock: Clock
) -> Look:
    lasting = Lasting(clock)

    def look() -> None:
        conditions.follow(state.broken is not None, "METADATA_STOPPED", detail=str(state.broken))
        leaderless: list[Hashable] = ["leaderless"] if state.epoch and leader() is None else []
        conditions.follow(bool(lasting.older_than(LEADERLESS_S, leaderless)), "METADATA_NO_LEADER")

    return look


def watch_groups(
    conditions: Conditions,
    management: Management,
    topology: TopologyDriver,
    service: ServiceDriver,
    clock: Clock,
) -> Look:
    """What only the metadata leader knows: operations and changes of the voters that do not go on."""
    operations, voters = Lasting(clock), Lasting(clock)

    def look() -> None:
        group = management.group
        broken = group.broken if group is not None else None
        conditions.follow(broken is not None, "MANAGEMENT_STOPPED", detail=str(broken))
        # Work that moves something is no longer what it was.
        waits: dict[Hashable, tuple[str, str]] = {}
        for one in topology.blocking:
            if one.operation_id:
                done = [said for key, said in topology.said.items() if key[0] == one.operation_id]
                moved = sum(said.moved_bytes + said.moved_fragments + said.files_done for said in done)
                key = (one.operation_id, one.node, one.since_us, one.reason, moved)
                waits[key] = (f"operation {one.operation_id}", f"node {one.node}: {one.reason}")
        stuck = operations.older_than(STUCK_S, list(waits))
        found = {waits[key][0]: waits[key][1] for key in waits if key in stuck}
        conditions.follow_all("OPERATION_STUCK", found)
        blocked = service.blocked
        held: list[Hashable] = [(blocked.node, blocked.reason)] if blocked is not None else []
        detail = ""
        if blocked is not None:
            detail = f"node {blocked.node}: {blocked.reason}" if blocked.node else blocked.reason
        conditions.follow(bool(voters.older_than(STUCK_S, held)), "VOTERS_STUCK", detail=detail)

    return look


class TrackedRanges(Protocol):
    """What the watch of tracked tables needs to know."""

    @property
    def journal_bytes(self) -> int: ...

    @property
    def witness_bytes(self) -> int: ...

    witness_bytes_max: int

    def oldest_lacking_s(self) -> dict[int, int]: ...


def watch_tracked(conditions: Conditions, tracked: TrackedRanges) -> Look:
    def look() -> None:
        size = tracked.journal_bytes
        conditions.follow(size >= JOURNAL_LARGE_BYTES, "JOURNAL_LARGE", detail=f"some {size >> 20} MiB")
        kept, most = tracked.witness_bytes, tracked.witness_bytes_max
        detail = f"some {kept >> 20} of {most >> 20} MiB"
        is_large = most * WITNESS_JOURNAL_TOLD <= kept < most
        conditions.follow(is_large, "WITNESS_JOURNAL_LARGE", detail=detail)
        conditions.follow(kept >= most, "WITNESS_JOURNAL_FULL", detail=detail)
        lagging = {
            f"node {node}": f"the oldest for more than {REPLICA_LAGS_S} s"
            for node, seconds in tracked.oldest_lacking_s().items()
            if seconds >= REPLICA_LAGS_S
        }
        conditions.follow_all("REPLICA_LAGS", lagging)

    return look


def watch_disk(conditions: Conditions, space: Space) -> Look:
    def look() -> None:
        conditions.follow(space.look(), "DISK_FULL", detail=f"less than {space.reserve_bytes} bytes are free")

    return look


#: Long enough for whoever has to sign a new one.
WARNED_BEFORE_S: Final = 30 * 86_400
_CODE: Final = "CERTIFICATE_EXPIRES"


class Ending(Protocol):
    """A file with a certificate, and when that ends."""

    @property
    def file(self) -> str: ...

    @property
    def ends_us(self) -> int: ...

    @property
    def ends(self) -> str: ...


def watch_certificates(
    conditions: Conditions, clock: Clock, certificates: Sequence[Ending]
) -> Callable[[], None]:
    """What `Conditions.watch` takes."""

    def look() -> None:
        now_us = clock.wall_us()
        for one in certificates:
            left_s = (one.ends_us - now_us) / 1_000_000
            said = f"{'expired' if left_s <= 0 else 'expires'} on {one.ends}"
            conditions.follow(left_s <= WARNED_BEFORE_S, _CODE, one.file, said)

    return look
