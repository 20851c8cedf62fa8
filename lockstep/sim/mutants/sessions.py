"""Planted bugs of sessions, fences, exclusion, changes of replication, data centres and timestamps, and of
how operations end, are taken back and are taken over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from lockstep.internode.own_side import ExcludedNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import TRANSITIONS
from lockstep.node.work import worker as work_module
from lockstep.node.work.moved import Amount, Moved
from lockstep.node.work.topology_driver import TopologyDriver
from lockstep.placement import quorums
from lockstep.quorum import needs as needs_module
from lockstep.quorum.plans import PlanBook
from lockstep.replica.replica import ReplicaService
from lockstep.sim.plant import Planted, replaced
from lockstep.streaming.stream_files import StreamFiles
from lockstep.streaming.stream_source import StreamService
from lockstep.topology import step as step_module
from lockstep.topology import streams as streams_module
from lockstep.topology.barriers import evaluate
from lockstep.topology.kind import stage_row
from lockstep.topology.kinds import ring
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.stages import Work
from lockstep.topology.step import WorkReport, work_key, work_orders
from lockstep.values.ids import Consistency
from lockstep.values.memo import keep
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

_Context = contextlib.AbstractContextManager[None]


# ---- sessions


def _guards_ignored() -> _Context:
    """A barrier does not wait for what is under way of the session that was closed."""

    def hasty(need: Any, acknowledged: Any, drained: Any, guards: Any = None, relaxed: bool = False) -> Any:
        return evaluate(need, acknowledged, drained, None, relaxed)

    return replaced((step_module, "evaluate", hasty))


def _position_without_session() -> _Context:
    """How far a stream came is remembered for whoever streams the range next, under whatever session."""
    load = StreamFiles.load

    def common(self: Any, key: Any) -> Any:
        path = self._state(key)
        if not self._disk.exists(path):
            return load(self, key)
        found, _ = self._last(path)
        if found is None:
            return load(self, key)
        return msgspec.structs.replace(found, key=key)

    def name(self: Any, key: Any) -> str:
        return original_name(self, msgspec.structs.replace(key, session_id=""))

    original_name = StreamFiles._state
    return replaced(
        (StreamFiles, "_state", name),
        (StreamFiles, "load", common),
        (StreamFiles, "forget_closed", lambda self, session_open: 0),
        (StreamFiles, "remove", lambda self, key: self.discard(key)),
    )


# ---- streams


def _sources_not_drained() -> _Context:
    """A source takes its snapshot while writes that it accepted under older epochs are not durable."""

    class Hasty:
        async def drain(self, epoch: int) -> None:
            return None

    original = StreamService.__init__

    def init(self: Any, *others: Any, **named: Any) -> None:
        original(self, *others, **named)
        self._replica = Hasty()

    return replaced((StreamService, "__init__", init))


def _refill_skipped() -> _Context:
    """Replicas that stay are not filled when the replication changes."""
    return replaced((streams_module, "refills", lambda transition, dc_of: ()))


def _discard_too_much() -> _Context:
    """What is taken back takes everything along that its node has of the tables."""
    original = work_module.WorkService._clean_up

    async def clean_up(self: Any, operation: Any, wanted: Any) -> None:
        if stage_row(operation).work is Work.DISCARD:
            wanted = [(group, [Range(TOKEN_MIN, TOKEN_MAX)]) for group, _ in wanted]
        await original(self, operation, wanted)

    return replaced((work_module.WorkService, "_clean_up", clean_up))


# ---- fences


def _fence_checked_once() -> _Context:
    """What was accepted before the fence is acknowledged and answered behind it."""

    async def read(self: Any, request: Any) -> Any:
        from lockstep.replica.messages import ReadReply

        accepted_epoch = self._check_read(request)
        return ReadReply(accepted_epoch, await self._engine.read(request.command))

    return replaced((ReplicaService, "_fenced", lambda self, request: None), (ReplicaService, "read", read))


def _excluded_served() -> _Context:
    """A node that is shut out is heard and spoken to."""
    return replaced((ExcludedNodes, "mutes", lambda *_: False), (ExcludedNodes, "keeps", lambda *_: False))


# ---- data centres and timestamps


def _local_quorum_anywhere() -> _Context:
    """LOCAL_QUORUM counts answers of every data centre."""
    original = quorums.required_reads

    def needs(consistency: Any, replication: Any, local_dc: str) -> Any:
        found = original(consistency, replication, local_dc)
        if consistency is Consistency.LOCAL_QUORUM:
            return tuple(msgspec.structs.replace(need, dc="") for need in found)
        return found

    return replaced((quorums, "required_reads", needs), (needs_module, "required_reads", needs))


def _each_quorum_is_quorum() -> _Context:
    """EACH_QUORUM does not ask every data centre."""
    original = quorums.required_reads

    def needs(consistency: Any, replication: Any, local_dc: str) -> Any:
        level = Consistency.QUORUM if consistency is Consistency.EACH_QUORUM else consistency
        return original(level, replication, local_dc)

    return replaced((quorums, "required_reads", needs), (needs_module, "required_reads", needs))


def _replica_stamps() -> _Context:
    """A replica gives a write the time at which it arrived there, unless its client gave it one."""
    original = ReplicaService.write
    #: Timestamps that clients of the simulator give are counted from the beginning of 1970.
    given_below_us = 1 << 48

    def write(self: Any, request: Any, answer: Any) -> None:
        mutation, now_us = request.mutation, self._runtime.clock.wall_us()
        if mutation.timestamp_us >= given_below_us:
            rows = tuple(
                msgspec.structs.replace(
                    row,
                    cells=tuple(msgspec.structs.replace(cell, timestamp_us=now_us) for cell in row.cells),
                )
                for row in mutation.rows
            )
            mutation = msgspec.structs.replace(mutation, timestamp_us=now_us, rows=rows)
        original(self, msgspec.structs.replace(request, mutation=mutation), answer)

    return replaced((ReplicaService, "write", write))


SESSIONS = (
    Planted("refill_skipped", "a quorum of the new replicas lacks writes", "dcs", _refill_skipped),
    Planted("discard_too_much", "a cancel loses data", "moves", _discard_too_much),
    Planted("excluded_served", "an excluded node goes on serving", "swarm", _excluded_served),
    Planted("local_quorum_anywhere", "local reads miss local writes", "dcs", _local_quorum_anywhere),
    Planted("each_quorum_is_quorum", "a data centre lacks writes to each", "dcs", _each_quorum_is_quorum),
    Planted("replica_stamps", "replicas differ in who wins", "stamps", _replica_stamps),
)
#: A test brings each of them about, and they have no scenario.
DIRECTED = (
    Planted("guards_ignored", "work goes on behind its barrier", "", _guards_ignored),
    Planted("position_without_session", "a second attempt copies nothing", "", _position_without_session),
    Planted("sources_not_drained", "a snapshot holds what may be lost", "", _sources_not_drained),
    Planted("fence_checked_once", "stale requests succeed", "", _fence_checked_once),
)


def _cancel_forgets_lock() -> contextlib.AbstractContextManager[None]:
    """What was taken back goes on holding its ranges."""
    original = ring._ended

    def ended(cluster: Any, operation: Any, epoch: int) -> Any:
        value = original(cluster, operation, epoch)
        if operation.stage is not Stage.ROLLBACK_TO_NORMAL:
            return value
        return value.changed(TRANSITIONS.set(cluster.transitions))

    return replaced((ring, "_ended", ended))


def _replaced_stays() -> contextlib.AbstractContextManager[None]:
    """The dead node is a member still when another has its place."""
    original = ring._end_directory

    def end(directory: Any, operation: Any, epoch: int) -> Any:
        value = original(directory, operation, epoch)
        if not isinstance(operation.body, Replace) or operation.stage is Stage.ROLLBACK_TO_NORMAL:
            return value
        dead = msgspec.structs.replace(directory.by_id[operation.body.replaced], tokens=())
        return value.with_node(dead)

    return replaced((ring, "_end_directory", end))


def _address_believed() -> contextlib.AbstractContextManager[None]:
    """Whoever is at a node's address counts as that node, also when another one has taken it over."""
    original = PlanBook._make

    def make(self: Any, placement: Any, placed: Any, consistency: Any, *more: bool) -> Any:
        keep(self.cluster.directory, "shadowed", frozenset())
        return original(self, placement, placed, consistency, *more)

    return replaced((PlanBook, "_make", make))


def _successor_skips_work() -> contextlib.AbstractContextManager[None]:
    """A coordinator that takes over takes the work of the stage it finds for done."""
    original = TopologyDriver._round

    async def one(self: Any) -> bool:
        if not getattr(self, "took_over", False):
            self.took_over = True
            cluster = self._state.current
            for operation in cluster.operations:
                for order in work_orders(operation, cluster, ()):
                    self._work[work_key(order)] = WorkReport.DONE
        return bool(await original(self))

    return replaced((TopologyDriver, "_round", one))


@contextlib.contextmanager
def _hearsay_is_told() -> Iterator[None]:
    """A coordinator tells what it has heard instead of having it counted."""
    original = TopologyDriver._count

    def count(self: Any, key: Any, status: Any) -> None:
        def told(request: Any) -> Any:
            operation = self._state.current.operations_by_id.get(request.operation_id)
            more = self.moved.brought(operation).bytes if operation is not None else 0
            return Amount(request.moved_bytes + more, request.moved_fragments)

        self.moved.told = told
        original(self, key, status)

    with replaced((TopologyDriver, "_count", count)), replaced((Moved, "due", lambda self, cluster: None)):
        yield


#: Of what a test brings about.
TOPOLOGY_DIRECTED = (Planted("hearsay_is_told", "progress goes back", "moves", _hearsay_is_told),)
TOPOLOGY = (
    Planted("cancel_forgets_lock", "ranges stay locked for ever", "moves", _cancel_forgets_lock),
    Planted("replaced_stays", "the dead node is a member still", "kinds", _replaced_stays),
    Planted("address_believed", "the heir of an address answers for the dead", "kinds", _address_believed),
    Planted("successor_skips_work", "a new replica lacks data", "moves", _successor_skips_work),
)
