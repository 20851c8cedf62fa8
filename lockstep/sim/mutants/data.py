"""Planted bugs of what moves, stores and serves data."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.coordination import read_round as read_round_module
from lockstep.coordination import reads as reads_module
from lockstep.node.work import worker as work_module
from lockstep.placement import quorums
from lockstep.placement.quorums import required_reads
from lockstep.quorum import plans as plans_module
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
        operation = self._operation(order)
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

    return replaced((plans_module, "required_writes", needs))


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
    return replaced((StorageEngine, "_sequence_behind", lambda self, command: 0))


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
