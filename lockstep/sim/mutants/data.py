"""Planted bugs of what moves, stores and serves data, and of what is owed to replicas: hints and logged
batches.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from lockstep.coordination import read_round as read_round_module
from lockstep.coordination import reads as reads_module
from lockstep.handoff import batches
from lockstep.handoff.batch_store import ForgetBatch
from lockstep.handoff.batches import Batches
from lockstep.handoff.hint_delivery import HintDelivery, Taken
from lockstep.handoff.hint_store import HintStore
from lockstep.internode import verbs
from lockstep.node.membership.decommission_handoff import DecommissionHandoff
from lockstep.node.work import worker as work_module
from lockstep.placement import quorums
from lockstep.placement.quorums import required_reads
from lockstep.quorum import needs as needs_module
from lockstep.replica.messages import ReadReply, StreamSurveyed, WriteReply
from lockstep.replica.replica import ReplicaService
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.engine import StorageEngine
from lockstep.storage.group_commit import GroupCommit
from lockstep.storage.rows import keys
from lockstep.streaming.stream_source import StreamService
from lockstep.topology import barriers as barriers_module
from lockstep.topology import step as step_module
from lockstep.topology import streams as streams_module
from lockstep.topology.barriers import BarrierState
from lockstep.topology.kinds import ring
from lockstep.topology.stages import StreamTask
from lockstep.values.errors import PeerUnreachable
from lockstep.values.ids import MUTATION_ID_BYTES

# ---- topology


def _skip_barrier() -> contextlib.AbstractContextManager[None]:
    return replaced((step_module, "evaluate", lambda *_: BarrierState(True, ())))


def _stream_early() -> contextlib.AbstractContextManager[None]:
    """Nobody waits for the sources, and a source takes its snapshot before it has applied the stage."""
    original = StreamService._open

    async def opened(self: Any, peer: Any, request: Any) -> Any:
        from lockstep.values.tokens import Range

        engine = self._engine
        early = await engine.fragments(request.table_id, Range(request.left, request.right))

        class Stale:
            def __getattr__(self, name: str) -> Any:
                return getattr(engine, name)

            async def fragments(self, *_: Any) -> Any:
                return early

        self._engine = Stale()
        try:
            return await original(self, peer, request)
        finally:
            self._engine = engine

    async def surveyed(self: Any, peer: Any, request: Any) -> Any:
        return StreamSurveyed(request.table_ids)

    return replaced(
        (StreamService, "_survey", surveyed),
        (StreamService, "_open", opened),
        (barriers_module, "_must_drain", lambda *_: ()),
    )


def _stream_from_anyone() -> contextlib.AbstractContextManager[None]:
    """Any one live replica is taken for a source, not the one that gives the range up."""

    def tasks(transition: Any, dc_of: Any, dead: Any, lacking: Any) -> list[Any]:
        live = [node for node in reversed(transition.old) if node not in dead]
        return [
            StreamTask(target, transition.group, transition.range, tuple(live[:1]), needs_all=True)
            for target in transition.gained
            if transition.old
        ]

    return replaced((ring, "tasks_of_givers", tasks))


def _one_for_a_dead_giver() -> contextlib.AbstractContextManager[None]:
    """Where who gives a range up is dead, any one other replica is taken for a source."""
    original = streams_module.tasks_of_givers

    def tasks(transition: Any, dc_of: Any, dead: Any, lacking: Any) -> list[Any]:
        return [
            msgspec.structs.replace(task, sources=task.sources[-1:])
            for task in original(transition, dc_of, dead, lacking)
        ]

    return replaced((ring, "tasks_of_givers", tasks))


def _starved_is_done() -> contextlib.AbstractContextManager[None]:
    """A stream without sources counts as done."""

    def plan(operation: Any, cluster: Any, dead: Any) -> Any:
        return tuple(task for task in streams_module.stream_plan(operation, cluster, dead) if task.sources)

    return replaced((work_module, "stream_plan", plan))


def _reads_before_stream_ends() -> contextlib.AbstractContextManager[None]:
    """Work is reported as done while it runs."""

    async def serve(self: Any, peer: Any, order: Any) -> Any:
        await self._catch_up.reach(order.epoch, peer.endpoint)
        operation = self._mover(order)
        key = (order.operation_id, order.stage, order.session_id)
        if key not in self._running:
            running = self._running[key] = work_module._Running(operation)
            self._runtime.tasks.spawn(self._run(operation, running), "work")
        return self._status("done", self._running[key])

    return replaced((work_module.WorkService, "_serve", serve))


def _skip_wipe() -> contextlib.AbstractContextManager[None]:
    async def nothing(self: Any, operation: Any, wanted: Any) -> None:
        return None

    return replaced((work_module.WorkService, "_wipe", nothing))


# ---- requests


def _ignore_epoch() -> contextlib.AbstractContextManager[None]:
    """Replicas take requests whatever epoch they were planned at."""
    write, check = ReplicaService.write, ReplicaService._check_read

    def blind_write(self: Any, request: Any, answer: Any) -> None:
        write(self, msgspec.structs.replace(request, epoch=1 << 62), answer)

    def blind_check(self: Any, request: Any) -> int:
        return check(self, msgspec.structs.replace(request, epoch=1 << 62))

    return replaced((ReplicaService, "write", blind_write), (ReplicaService, "_check_read", blind_check))


def _small_quorum() -> contextlib.AbstractContextManager[None]:
    return replaced((quorums, "majority", lambda factor: max(1, factor // 2)))


def _pending_not_counted() -> contextlib.AbstractContextManager[None]:
    """A write needs no more acknowledgements while a replica is pending."""

    def needs(consistency: Any, replication: Any, local_dc: str, group: Any, dc_of: Any) -> Any:
        return required_reads(consistency, replication, local_dc)

    return replaced((needs_module, "required_writes", needs))


def _no_read_repair() -> contextlib.AbstractContextManager[None]:
    async def nothing(*_: Any) -> None:
        return None

    return replaced((reads_module, "repair", nothing))


def _digests_believed() -> contextlib.AbstractContextManager[None]:
    """Whatever digest a replica tells, it is taken to agree."""

    def agrees(reply: Any, by_digest: dict[bytes, Any]) -> Any:
        for result in by_digest.values():
            return ReadReply(reply.accepted_epoch, result, b"", reply.dead)
        return None

    return replaced((read_round_module, "filled_in", agrees))


def _ack_before_sync() -> contextlib.AbstractContextManager[None]:
    """A replica acknowledges a write as soon as it is applied."""
    write = ReplicaService.write

    def eager(self: Any, request: Any, answer: Any) -> None:
        write(self, request, lambda reply: None)
        answer(WriteReply(self._metadata().epoch))

    return replaced((ReplicaService, "write", eager))


# ---- storage


def _answer_unsynced() -> contextlib.AbstractContextManager[None]:
    return replaced((StorageEngine, "unsynced", lambda self, command: 0))


def _keys_without_id() -> contextlib.AbstractContextManager[None]:
    """Two writes of one time to one row share a key, and so does their merge."""
    suffix = keys.write_suffix
    return replaced((keys, "write_suffix", lambda at, _id: suffix(at, bytes(MUTATION_ID_BYTES))))


def _failed_sync_forgotten() -> contextlib.AbstractContextManager[None]:
    """A node whose store failed stays in service."""
    original = GroupCommit.__init__

    def deaf(self: Any, store: Any, runtime: Any, _: Any = None, period: int = 0, reserve: int = 0) -> None:
        original(self, store, runtime, None, period, reserve)

    return replaced((GroupCommit, "__init__", deaf))


DATA = (
    Planted("skip_barrier", "stages follow without their barrier", "moves", _skip_barrier),
    Planted("stream_early", "a source's snapshot misses older writes", "moves", _stream_early),
    Planted("stream_from_anyone", "a new replica misses writes", "moves", _stream_from_anyone),
    Planted("one_for_a_dead_giver", "what its giver had is lost", "givers", _one_for_a_dead_giver),
    Planted("starved_is_done", "a new replica is empty", "moves", _starved_is_done),
    Planted("reads_before_stream_ends", "reads move too early", "moves", _reads_before_stream_ends),
    Planted("skip_wipe", "a pending replica keeps what it had", "moves", _skip_wipe),
    Planted("ignore_epoch", "stale coordinators reach quorums", "moves", _ignore_epoch),
    Planted("pending_not_counted", "writes miss the new quorum", "moves", _pending_not_counted),
    Planted("small_quorum", "reads miss acknowledged writes", "swarm", _small_quorum),
    Planted("no_read_repair", "reads go back", "swarm", _no_read_repair),
    Planted("digests_believed", "replicas that differ go unseen", "swarm", _digests_believed),
    Planted("ack_before_sync", "acknowledged writes are lost", "power", _ack_before_sync),
    Planted("answer_unsynced", "what was read is lost", "power", _answer_unsynced),
    Planted("keys_without_id", "one write hides another", "swarm", _keys_without_id),
    Planted("failed_sync_forgotten", "a dead store stays in service", "power", _failed_sync_forgotten),
)


def _batch_forgotten_early() -> contextlib.AbstractContextManager[None]:
    """The batch log forgets a batch before its writes are sent."""
    original = Batches._keep

    async def keep(self: Any, batch: Any, consistency: Any, deadline_s: float) -> Any:
        holders = await original(self, batch, consistency, deadline_s)
        self._forget(holders, ForgetBatch(batch.batch_id, batch.created_us))
        await asyncio.sleep(0.02)
        return holders

    return replaced((Batches, "_keep", keep))


def _batch_log_waits_for_the_first() -> contextlib.AbstractContextManager[None]:
    """A batch waits for the nodes that it asked first, whether or not they answer."""
    return replaced((batches._Keeping, "_ask_others", lambda self: None))


def _hints_never_sent() -> contextlib.AbstractContextManager[None]:
    """Hints are forgotten as if they had been delivered."""

    async def deliver_some(self: Any, target: Any, page: Any) -> bool:
        self._store.delete(page)
        return True

    return replaced((HintDelivery, "_deliver_some", deliver_some))


def _hint_forgotten_unanswered() -> contextlib.AbstractContextManager[None]:
    """A hint that its replica did not answer counts as delivered."""
    original = HintDelivery._send

    def send(self: Any, plan: Any, target: Any, hint: Any) -> Any:
        answer = original(self, plan, target, hint)
        told = asyncio.get_running_loop().create_future()

        def answered(done: Any) -> None:
            if done.cancelled() or told.done():
                told.cancel()
            elif isinstance(done.exception(), TimeoutError | PeerUnreachable):
                told.set_result(WriteReply(plan.epoch))
            elif done.exception() is not None:
                told.set_exception(done.exception())
            else:
                told.set_result(done.result())

        answer.add_done_callback(answered)
        return told

    return replaced((HintDelivery, "_send", send))


def _hints_taken_unsynced() -> contextlib.AbstractContextManager[None]:
    """A node says that it keeps the hints of one that leaves before its disk has them."""

    async def take_over(self: Any, _peer: Any, given: Any) -> Any:
        self._store.put(given.hints)
        self._wake.set()
        return Taken(len(given.hints))

    return replaced((HintDelivery, "_take_over", take_over))


def _hints_of_former_replicas_dropped() -> contextlib.AbstractContextManager[None]:
    """Hints of a node that no longer owns their range are forgotten."""

    def leave_again(self: Any, plan: Any, stored: Any) -> None:
        self._store.delete([stored])

    return replaced((HintDelivery, "_leave_again", leave_again))


def _hint_dropped_unmarked() -> contextlib.AbstractContextManager[None]:
    """What is given up leaves no trace."""
    return replaced((HintStore, "_mark_batch", lambda self, marks: []))


def _left_unrecorded() -> contextlib.AbstractContextManager[None]:
    """A node leaves with hints that nobody took, and nobody knows."""

    async def record(self: Any) -> None:
        self._log("hints.not_handed_over", hints=self._hints.store.count())

    return replaced((DecommissionHandoff, "_record", record))


def _taken_unjudged(taken: int) -> contextlib.AbstractContextManager[None]:
    """A replica takes what comes by one verb without a look at who the replicas are by now."""
    original = ReplicaService._receive_write

    def receive(self: Any, peer: Any, request: Any, respond: Any) -> None:
        placement = self._plans.placement(request.mutation.table_id)
        group = placement and placement.ring.group_for(request.mutation.token)
        is_stale = group is not None and group.epoch > request.epoch
        if not is_stale or respond._verb != taken:
            original(self, peer, request, respond)
            return
        self._engine.apply(request.mutation)
        respond(WriteReply(request.epoch))

    return replaced((ReplicaService, "_receive_write", receive))


OWED = (
    Planted(
        "hints_unjudged",
        "a row lies where nobody looks, and comes back with the range",
        "leavers",
        lambda: _taken_unjudged(verbs.HINT),
    ),
    Planted(
        "read_repairs_unjudged",
        "a row lies where nobody looks, and comes back with the range",
        "menders",
        lambda: _taken_unjudged(verbs.READ_REPAIR),
    ),
    Planted("left_unrecorded", "nobody knows that ranges need a repair", "leavers", _left_unrecorded),
    Planted("batch_forgotten_early", "half a batch is written", "batches", _batch_forgotten_early),
    Planted("hints_never_sent", "replicas lack acknowledged writes", "batches", _hints_never_sent),
    Planted("hint_forgotten_unanswered", "replicas lack writes", "batches", _hint_forgotten_unanswered),
    Planted("hints_taken_unsynced", "replicas lack writes", "batches", _hints_taken_unsynced),
)
#: What a test brings about.
DIRECTED = (
    Planted(
        "hints_of_former_replicas_dropped",
        "a write that was acknowledged at ANY is lost",
        "",
        _hints_of_former_replicas_dropped,
    ),
    Planted(
        "batch_log_waits_for_the_first",
        "logged batches time out while writes at QUORUM succeed",
        "",
        _batch_log_waits_for_the_first,
    ),
    Planted("hint_dropped_unmarked", "nobody knows that a range needs a repair", "", _hint_dropped_unmarked),
)
