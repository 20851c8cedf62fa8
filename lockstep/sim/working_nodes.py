"""Nodes that meet their limits: requests take time, and queues, pages and turns are small.

Virtual time costs nothing by itself, so no node would ever have more to do than it can. Here each request
that a node coordinates, and each that it serves as a replica, holds its loop for a fixed time; so timers come
late, by the clock that the runtime gives, as they do on a machine that is too slow. All that is watched is
world time, which no node's clock shows. Invariant: a limit is made smaller, never larger, and none that a
promise of the product rests on: what clients are told stays true, more is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from lockstep.coordination import conditional, counters, read_round, reads, writes
from lockstep.coordination.context import CLIENT, Terms
from lockstep.coordination.writes import Told
from lockstep.gossip import pulling, soft_state
from lockstep.handoff import batch_store, hint_store, view_log
from lockstep.internode import connection, verbs
from lockstep.internode.serving import Respond
from lockstep.metadata.groups import management
from lockstep.metadata.log import snapshot, snapshot_file
from lockstep.node.node import Node
from lockstep.quorum import speculation
from lockstep.replica import merging
from lockstep.replica.messages import WriteRequest
from lockstep.server.cql import loop_budget as turns
from lockstep.sim.checkers.overload import Deadlines, Given
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.runtime.loop import SimLoop
from lockstep.sim.runtime.streams import Stream
from lockstep.storage import purging, reading, unchanged
from lockstep.values import limits
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation, ReadCommand, ReadResult

#: Of a request at its coordinator, and at each replica: some thirty times what they take on a machine of
#: today, so that a node is overloaded by a hundred requests.
REQUEST_US: Final = 6000
REPLICA_US: Final = 2000

#: What such nodes begin in one turn: 24 ms of work, as in production.
_STATEMENTS_A_TURN: Final = 4
#: What they work on at once, at least and at first.
_ADMISSION_MIN: Final = 4
_ADMISSION_START: Final = 32

#: How often it is looked at how late a loop is, and how many of these looks are kept: some seconds.
_TICK_MS: Final = 10
_TICKS_KEPT: Final = 512

#: The mark that a mutation puts, or b"".
MarkOf = Callable[[Node, Mutation], bytes]


def slow_limits() -> list[tuple[Any, str, Any]]:
    """Limits of the product that say how much work a node has at once, for nodes that are so slow."""
    return [
        (turns, "CQL_STATEMENTS_A_TURN", _STATEMENTS_A_TURN),
        (turns, "ADMISSION_MIN", _ADMISSION_MIN),
        (turns, "ADMISSION_START", _ADMISSION_START),
    ]


def _work(cost_us: int) -> None:
    cast(SimLoop, asyncio.get_running_loop()).work(cost_us)


class _LoopLateness:
    """How late a timer of the running loop comes, again and again; `now_ns` is the world's time."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        #: (when it came, how late), of the last ones.
        self._found: deque[tuple[int, int]] = deque(maxlen=_TICKS_KEPT)
        self._arm()

    def _arm(self) -> None:
        self._due_ns = self._now_ns() + _TICK_MS * 1_000_000
        self._loop.call_later(_TICK_MS / 1000, self._came)

    def _came(self) -> None:
        now_ns = self._now_ns()
        self._found.append((now_ns, now_ns - self._due_ns))
        self._arm()

    def most_since(self, since_ns: int, now_ns: int) -> int:
        """The most of those that came since then, or are late by now."""
        found = [late_ns for came_ns, late_ns in self._found if came_ns >= since_ns]
        return max([0, now_ns - self._due_ns, *found])


class WorkingNodes:
    """Of all nodes of a cluster, from their start on. `deadlines` hears of reads, and of marks' writes."""

    def __init__(self, cluster: SimCluster, mark_of: MarkOf) -> None:
        self.deadlines = Deadlines()
        self._cluster = cluster
        self._mark_of = mark_of
        self._connections: dict[Any, int] = {}
        #: By node, of its present incarnation.
        self._loops: dict[str, _LoopLateness] = {}
        self._former = cluster.on_serve
        cluster.on_serve = self._serve

    def _serve(self, node: Node) -> None:
        self._former(node)
        name = node.configuration.node.name
        self._loops[name] = _LoopLateness(lambda: self._cluster.world.now_ns)
        self._coordinate(node, name)
        self._replicate(node, name)

    def _fail(self, name: str, found: Violation) -> None:
        self._cluster.world.fail("monitor", name, str(found), found)

    # ---- coordinators

    def _given(self, name: str, timeout_ms: float) -> Given:
        now_ns = self._cluster.world.now_ns
        stood_ns = self._cluster.processes[name].stood_ns
        return Given(now_ns, now_ns + round(timeout_ms * 1_000_000), stood_ns)

    def _succeeded(self, name: str, what: str, given: Given) -> None:
        now_ns, stood_ns = self._cluster.world.now_ns, self._cluster.processes[name].stood_ns
        late_ns = self._loops[name].most_since(given.deadline_ns, now_ns) if now_ns > given.deadline_ns else 0
        try:
            self.deadlines.succeeded(f"{what} through {name}", given, now_ns, stood_ns, late_ns)
        except Violation as found:
            self._fail(name, found)

    def _coordinate(self, node: Node, name: str) -> None:
        writes, coordinator = node.data.coordinator.writes, node.data.coordinator
        submit, read = writes.submit, coordinator.read

        def begun(
            mutation: Mutation,
            consistency: Consistency,
            timeout_ms: float,
            told: Told,
            write_type: str = "SIMPLE",
            terms: Terms = CLIENT,
        ) -> None:
            _work(REQUEST_US)
            given, mark = self._given(name, timeout_ms), self._mark_of(node, mutation)
            if mark:
                self.deadlines.begun(mark, given)

            def judged(error: LockstepError | None) -> None:
                if error is None:
                    self._succeeded(name, f"a write of {mark!r}", given)
                told(error)

            submit(mutation, consistency, timeout_ms, judged, write_type, terms)

        async def judged_read(
            command: ReadCommand, consistency: Consistency, timeout_ms: float
        ) -> ReadResult:
            _work(REQUEST_US)
            given = self._given(name, timeout_ms)
            result = await read(command, consistency, timeout_ms)
            self._succeeded(name, "a read", given)
            return result

        writes.submit = begun  # type: ignore[method-assign]
        coordinator.read = judged_read  # type: ignore[method-assign]

    # ---- replicas

    def _replicate(self, node: Node, name: str) -> None:
        replica = node.data.replica
        write, read, read_now = replica.write, replica.read, replica.read_now

        def written(request: WriteRequest, answer: Callable[[Any], None]) -> None:
            _work(REPLICA_US)
            write(request, answer)
            if isinstance(answer, Respond) and answer._verb == verbs.WRITE:
                self._took(node, name, request.mutation, answer)

        async def read_later(request: Any) -> Any:
            _work(REPLICA_US)
            return await read(request)

        def read_at_once(request: Any) -> Any:
            _work(REPLICA_US)
            return read_now(request)

        replica.write = written  # type: ignore[method-assign]
        replica.read = read_later  # type: ignore[method-assign]
        replica.read_now = read_at_once  # type: ignore[method-assign]

    def _took(self, node: Node, name: str, mutation: Mutation, answer: Respond) -> None:
        mark = self._mark_of(node, mutation)
        if not mark:
            return
        connection = self._connections.setdefault(answer._connection, len(self._connections))
        try:
            self.deadlines.served(name, mark, connection, self._cluster.world.now_ns)
        except Violation as found:
            self._fail(name, found)


#: (where it is looked up, name, one of these); 0 leaves it as it is.
_TIGHT: Final[tuple[tuple[Any, str, tuple[int, ...]], ...]] = (
    (limits, "FRAGMENTS_PER_TURN_MAX", (1, 3, 10)),
    (limits, "READ_RESULT_BYTES_MAX", (0, 200, 2000)),
    (limits, "MERGES_QUEUED_MAX", (1, 4)),
    (limits, "ROW_FRAGMENTS_MERGE_AT", (2, 4)),
    (limits, "INDEX_STALE_AT_ONCE_MAX", (1, 3)),
    (limits, "INDEX_BUILD_FRAGMENTS", (2, 8)),
    (limits, "CHECKPOINT_PORTION_BYTES", (500, 5000)),
    (limits, "REPAIRS_AT_ONCE_MAX", (1, 4)),
    (reading, "MERGED_BYTES_INLINE", (0, 100, 1000)),
    (unchanged, "BACKGROUND_FRAGMENTS_PER_TURN", (2, 8)),
    (purging, "BACKGROUND_FRAGMENTS_PER_TURN", (2, 8)),
    (snapshot, "SNAPSHOT_PIECE_BYTES_MAX", (300, 3000)),
    (snapshot_file, "LOG_FETCH_ENTRIES_MAX", (2, 8)),
    (snapshot_file, "LOG_FETCH_BYTES_MAX", (200, 2000)),
    (management, "MANAGEMENT_OUTCOMES_MAX", (0, 16)),  # as many as retry at the same time: each node, once
    (pulling, "FETCH_SOURCES_MAX", (0, 2)),
    (soft_state, "GOSSIP_DIGESTS_MAX", (0, 2)),
    (soft_state, "GOSSIP_STATES_MAX", (0, 1)),
    (connection, "WRITE_BYTES_COALESCED", (0, 100)),
    (conditional, "CONDITIONAL_IN_FLIGHT_MAX", (0, 1)),
    (counters, "COUNTER_WAITERS_MAX", (0, 1)),
    (batch_store, "BATCH_LOG_BYTES_MAX", (0, 10_000, 30_000)),  # what a write needs for its views, some times
    (batch_store, "BATCH_LOG_PAGE", (1, 3)),
    (hint_store, "HINTS_PAGE", (1, 3)),
    (merging, "REPAIR_ROWS_MAX", (1, 2)),
    (reads, "READS_IN_FLIGHT_MAX", (0, 3)),
    (read_round, "DIGEST_OVER_BYTES", (0, 10)),
    (speculation, "LATENCY_SAMPLES_MAX", (60, 200)),
    (speculation, "LATENCY_TABLES_MAX", (1,)),
    (view_log, "VIEWS_CACHED_MAX", (1,)),
    (view_log, "VIEW_RECORD_MUTATIONS", (1,)),
    (writes, "WRITES_IN_FLIGHT_MAX", (0, 3)),
)
#: Of the limits, how many are small in one seed.
_SHARE: Final = 0.5


def tight_limits(draw: Stream) -> list[tuple[Any, str, Any]]:
    """(owner, attribute, value) of those that this seed makes small."""
    chosen = [(owner, name, draw.choice(values)) for owner, name, values in _TIGHT if draw.random() < _SHARE]
    return [(owner, name, value) for owner, name, value in chosen if value]
