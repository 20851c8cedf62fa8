"""Planted bugs of change capture: what writes to a log beside its table, and when that is known."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from lockstep.metadata import table_streams
from lockstep.metadata.cdc import Generation
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.table_streams import StreamSet, TableStreams
from lockstep.metadata.tablets import TabletGroup
from lockstep.node.work import worker as work_module
from lockstep.replica.ballots import BallotService
from lockstep.replica.replica import ReplicaService
from lockstep.schema.log_tables import is_log
from lockstep.schema.model import Schema
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.engine import StorageEngine
from lockstep.topology import generations
from lockstep.topology.tablets import resizes, resizing
from lockstep.values.rows import Mutation, without_log

_Context = contextlib.AbstractContextManager[None]
#: How long what a change adds to the log waits where it is a batch of its own.
_LATER_S = 0.3
_own_part = ReplicaService._own_part
_apply = StorageEngine.apply
_recut = resizes.recut


def _left_out() -> _Context:
    """A replica of the log that is none of the table takes nothing, and says that it has."""

    def own_part(
        self: ReplicaService, mutation: Mutation, captured: Mutation, epoch: int, is_own: bool
    ) -> tuple[Mutation, bool]:
        part, takes = _own_part(self, mutation, captured, epoch, is_own)
        placement = self._plans.placement(captured.table_id)
        if placement is None:
            return part, takes
        here = placement.ring.range_at(mutation.token).range.contains(captured.token)
        return (part if here else without_log(mutation)), takes

    return replaced((ReplicaService, "_own_part", own_part))


def _decided_without() -> _Context:
    """What a ballot decides adds nothing to the log."""
    return replaced((BallotService, "_own_part", lambda self, mutation: without_log(mutation)))


def later() -> _Context:
    """What a change adds to the log is a batch of its own, and nobody waits for it."""

    def apply(self: StorageEngine, mutation: Mutation, *given: Any, **named: Any) -> int:
        sequence = _apply(self, without_log(mutation), *given, **named)
        if mutation.captured is not None:
            self._runtime.tasks.spawn(_written(self, mutation.captured), "captured-later")
        return sequence

    return replaced((StorageEngine, "apply", apply))


async def _written(engine: StorageEngine, captured: Mutation) -> None:
    await asyncio.sleep(_LATER_S)
    _apply(engine, captured, first_epoch=None)


def _at_once() -> _Context:
    """Streams of new tablets count from when they are published."""

    def at_once(streams: TableStreams, at_ms: int) -> TableStreams:
        *older, newest = streams.sets
        timestamp_ms = max(at_ms, older[-1].timestamp_ms + 1)
        made = msgspec.structs.replace(newest, timestamp_ms=timestamp_ms, is_pending=False)
        return TableStreams(streams.group, (*older, made))

    return replaced((resizes, "published", at_once))


def _never_late() -> _Context:
    """Streams count from when they were to, whenever everybody came to know them."""

    def never(one: StreamSet, at_ms: int) -> bool:
        return False

    return replaced((table_streams, "is_late", never), (resizing, "is_late", never))


def _generations_never_late() -> _Context:
    """Streams of the ring count from when they were made, whenever everybody came to know them."""

    def never(one: Generation, at_ms: int) -> bool:
        return False

    return replaced((generations, "AHEAD_MS", 0), (generations, "is_late", never))


def _kept() -> _Context:
    """A tablet keeps the stream of the one that ended where it does."""

    def keep(schema: Schema, group: TabletGroup, streams: TableStreams, *rest: Any) -> TableStreams:
        *older, made = _recut(schema, group, streams, *rest).sets
        known = dict(zip(streams.newest.tokens, streams.newest.streams, strict=True))
        ids = [known.get(token, one) for token, one in zip(made.tokens, made.streams, strict=True)]
        kept = msgspec.structs.replace(made, ids=b"".join(ids))
        return TableStreams(streams.group, (*older, kept))

    return replaced((resizes, "recut", keep))


def not_moved() -> _Context:
    """Who gets a tablet gets the table, and not its log."""

    def table_ids(cluster: ClusterMetadata, group: int) -> tuple[int, ...]:
        return tuple(table.id for table in cluster.schema.tables_in(group) if not is_log(table))

    return replaced((work_module, "table_ids", table_ids))


CAPTURED = (
    Planted("log_left_out", "changes are missing in the log while ranges move", "capture", _left_out),
    Planted("log_undecided", "conditional writes are missing in the log", "capture", _decided_without),
    Planted("log_later", "a power cut takes changes from the log alone", "capture", later),
    Planted("streams_at_once", "changes stand in closed streams", "capture_tablets", _at_once),
    Planted("streams_never_late", "changes stand in closed streams", "capture_tablets", _never_late),
    Planted(
        "generations_never_late",
        "changes stand in closed streams of the ring",
        "capture_generations",
        _generations_never_late,
    ),
    Planted("streams_kept", "a stream is opened twice", "capture_tablets", _kept),
    Planted("log_not_moved", "changes are missing in the log as tablets move", "capture_tablets", not_moved),
)
