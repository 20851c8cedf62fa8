"""Hints that this node keeps, and those that it gave up, as rows of `system_views` and as metrics.

Invariant: read from what the hints themselves count; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from lockstep.node.services import NodeServices
from lockstep.schema.types import parse_uuid
from lockstep.server.metrics.samples import Sample
from lockstep.server.views.virtual_rows import VirtualRow

#: As in Cassandra, with `hints`; the hints of a node count as one file, for they lie in the store.
PENDING_COLUMNS = (
    "host_id uuid; address inet; port int; rack text; dc text; status text; files int; newest timestamp; "
    "oldest timestamp; total_files_size bigint; corrupted_files int; total_corrupted_files_size bigint; "
    "hints bigint"
)
DROPPED_COLUMNS = (
    "keyspace_name text; table_name text; node_id int; start_token bigint; end_token bigint; reason text; "
    "since timestamp; newest timestamp; hints bigint"
)


def pending_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for target, pending in list(node.data.hints.store.pending.items()):
        info = node.log.cluster.directory.by_id.get(target)
        if info is None:
            continue
        yield {
            "host_id": parse_uuid(info.host_id),
            "address": info.address,
            "port": info.internode_port,
            "rack": info.rack,
            "dc": info.dc,
            "status": "UP" if node.membership.liveness.alive(target) else "DOWN",
            "files": 1,
            "newest": pending.newest_us // 1000,
            "oldest": pending.oldest_us // 1000,
            "total_files_size": pending.bytes,
            "corrupted_files": 0,
            "total_corrupted_files_size": 0,
            "hints": pending.count,
        }


def dropped_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for mark in list(node.data.hints.store.marks()):
        table = node.log.cluster.table(mark.table_id)
        if table is None:
            continue
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "node_id": mark.node,
            "start_token": mark.left,
            "end_token": mark.right,
            "reason": mark.reason,
            "since": mark.since_us // 1000,
            "newest": mark.newest_us // 1000,
            "hints": mark.count,
        }


class LiveView(msgspec.Struct, frozen=True):
    name: str
    columns: str
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    rows: Callable[[Any], Iterator[VirtualRow]]
    text: str


HINT_VIEWS = (
    LiveView(
        "pending_hints",
        PENDING_COLUMNS,
        ("host_id",),
        (),
        pending_rows,
        "Writes that this node keeps for replicas that did not acknowledge them",
    ),
    LiveView(
        "dropped_hints",
        DROPPED_COLUMNS,
        ("keyspace_name", "table_name"),
        ("node_id", "start_token", "end_token"),
        dropped_rows,
        "Ranges of which a node lacks writes that this node will not bring it: they need a repair",
    ),
)


def hint_samples(node: NodeServices) -> Iterator[Sample]:
    hints, delivery = node.data.hints, node.data.hint_delivery
    for target, pending in list(hints.store.pending.items()):
        labels = (("node", str(target)),)
        yield Sample("lockstep_hints_pending", pending.count, labels)
        yield Sample("lockstep_hints_pending_bytes", pending.bytes, labels)
    yield Sample("lockstep_hints_left_total", hints.left)
    yield Sample("lockstep_hints_delivered_total", delivery.delivered)
    yield Sample("lockstep_hints_failed_total", delivery.failed)
    yield Sample("lockstep_batches_kept", len(node.data.batch_store))
    yield Sample("lockstep_batches_kept_bytes", node.data.batch_store.bytes)
    yield Sample("lockstep_batches_replayed_total", node.data.batch_store.replayed)
    yield Sample("lockstep_batches_replay_failures_total", node.data.batch_store.replay_failures)
    for reason, count in hints.dropped.items():
        yield Sample("lockstep_hints_dropped_total", count, (("reason", reason),))
