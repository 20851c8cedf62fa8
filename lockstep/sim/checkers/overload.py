"""What an overloaded cluster promises: who is refused, who is answered, and what is not worked on any more.

LOAD-1: a request that is refused as overloaded has no effect: no read ever shows its mark.
LOAD-2: no request succeeds later than LATE_MS_MAX after its deadline, beside twice what the loop of its
coordinator was late since then, for two sweeps; how long that was stopped does not count.
LOAD-3: a replica takes no write whose sender gave it up, beyond what it cannot know of how long messages
take: SERVED_LATE_MS_MAX, and the time of the fastest message that the connection has brought.
LOAD-4: under load without faults a share of the requests that nodes can do succeeds, GOODPUT_MIN.
LOAD-5: once the load has ended, after at most RECOVERY_S each node answers normal requests within NORMAL_MS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.internode.peer import SHARED_SPREAD_MS
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.values.limits import PEER_SWEEP_MS
from lockstep.values.node_limits import EXPIRED_SLACK_MS

_MS: Final = 1_000_000
#: Deadlines are looked at in sweeps. One that comes more than SWEEP_LATE_MS late calls nothing expired, and
#: the next may be as late; then the task that waits has its turn.
LATE_MS_MAX: Final = 2 * PEER_SWEEP_MS + 30
#: By so much later than it is given up a replica may work on a write: what it cannot know of clocks, what a
#: frame does not tell of the writes that share it, and what rounding to milliseconds hides.
SERVED_LATE_MS_MAX: Final = EXPIRED_SLACK_MS + SHARED_SPREAD_MS + 2
#: Clients find their nodes by chance, and one may have none: half of what all nodes can do is usual.
GOODPUT_MIN: Final = 0.25
#: As `make bench` demands it of real nodes.
RECOVERY_S: Final = 2.0
NORMAL_MS: Final = 500


class Sent(msgspec.Struct, kw_only=True):
    """A write that puts a mark which no other has. `refused`: as overloaded."""

    mark: bytes
    client: str
    outcome: Outcome = Outcome.OPEN
    end_ns: int = 0
    refused: bool = False


class Given(msgspec.Struct, frozen=True):
    """A request at its coordinator; `stood_ns` is how long that had been stopped by then."""

    begun_ns: int
    deadline_ns: int
    stood_ns: int


class Deadlines:
    """A monitor of requests in flight. Times are the world's, in nanoseconds."""

    def __init__(self) -> None:
        self._given: dict[bytes, Given] = {}
        #: The fastest message lately of each connection of a replica.
        self._least_ns: dict[int, int] = {}
        #: How late the latest success was, and the latest write that a replica took after its deadline.
        self.latest_ns = self.served_latest_ns = 0

    def begun(self, mark: bytes, given: Given) -> None:
        self._given.setdefault(mark, given)

    def succeeded(self, who: str, given: Given, now_ns: int, stood_ns: int, loop_late_ns: int) -> None:
        """`loop_late_ns`: the most that a timer of its coordinator came late since the deadline. Raises
        Violation."""
        late_ns = now_ns - given.deadline_ns - (stood_ns - given.stood_ns) - 2 * loop_late_ns
        self.latest_ns = max(self.latest_ns, late_ns)
        if late_ns > LATE_MS_MAX * _MS:
            raise Violation("LOAD-2", f"{who} succeeded {late_ns / 1e6:.0f} ms after its deadline")

    def served(self, node: str, mark: bytes, connection: int, now_ns: int) -> None:
        """A replica took a write that a connection (of that number) brought. Raises Violation."""
        given = self._given.get(mark)
        if given is None:
            return
        least_ns = self._least_ns.get(connection)
        took_ns = now_ns - given.begun_ns
        self._least_ns[connection] = took_ns if least_ns is None else min(took_ns, least_ns)
        if least_ns is None:
            return
        late_ns = now_ns - given.deadline_ns - least_ns
        self.served_latest_ns = max(self.served_latest_ns, late_ns)
        if late_ns > SERVED_LATE_MS_MAX * _MS:
            raise Violation(
                "LOAD-3", f"{node} worked on {mark!r}, whose sender gave it up {late_ns / 1e6:.0f} ms before"
            )


def check_marks(writes: Mapping[bytes, Sent], seen: Iterable[bytes], last: Iterable[bytes]) -> int:
    """`seen` are marks that reads returned, `last` those that are there in the end. How many were judged;
    raises Violation."""
    there = dict.fromkeys(last)
    judged = dict.fromkeys([*seen, *there])
    for mark in judged:
        write = writes.get(mark)
        if write is None:
            raise Violation("REP-1", f"{mark!r} was read, which was never written")
        if write.refused:
            raise Violation("LOAD-1", f"{mark!r} of {write.client} was refused as overloaded and was read")
    for mark, write in writes.items():
        if write.outcome is Outcome.OK and mark not in there:
            raise Violation("REP-1", f"{mark!r} of {write.client} was acknowledged and is gone")
    return len(judged)


class Probe(msgspec.Struct, frozen=True):
    """A normal request to a node after the load; `error` is empty when it succeeded."""

    node: str
    took_ms: float
    error: str = ""


def check_recovered(probes: Sequence[Probe]) -> int:
    """How many were judged; all were asked RECOVERY_S after the load or later. Raises Violation."""
    for probe in probes:
        if probe.error or probe.took_ms > NORMAL_MS:
            raise Violation(
                "LOAD-5",
                f"{RECOVERY_S:g} s after the load {probe.node} answered after {probe.took_ms:.0f} ms: "
                f"{probe.error or 'ok'}",
            )
    return len(probes)


def check_goodput(succeeded: int, possible: float) -> None:
    """`possible`: how many requests the nodes could have done in that time. Raises Violation."""
    if succeeded < GOODPUT_MIN * possible:
        raise Violation("LOAD-4", f"{succeeded} requests succeeded under load, {possible:.0f} could have")
