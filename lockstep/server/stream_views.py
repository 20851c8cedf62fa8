"""Range streams of this node, as rows of `system_views.streams` and as metrics.

Invariant: read from what the streams themselves count; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.replication.stream_progress import StreamView
from lockstep.server.samples import Sample
from lockstep.server.virtual_rows import VirtualRow
from lockstep.storage.companions import table_of

if TYPE_CHECKING:
    from lockstep.node.node import Node

COLUMNS = (
    "session text; direction text; peer inet; peer_port int; table_id bigint; start_token bigint; "
    "end_token bigint; keyspace_name text; table_name text; files_done int; files_total int; bytes bigint; "
    "total_bytes bigint; rate_bytes_s bigint; left_s bigint; since timestamp"
)
PARTITION = ("session",)
CLUSTERING = ("direction", "peer", "peer_port", "table_id", "start_token")


def stream_rows(node: Node) -> Iterator[VirtualRow]:
    names = {
        table.id: (keyspace.name, table.name)
        for keyspace in node.cluster.schema.keyspaces
        for table in keyspace.tables
    }
    for one in _views(node):
        keyspace, table = names.get(table_of(one.table_id), (None, None))
        yield {
            "session": one.session_id,
            "direction": one.direction,
            "peer": one.peer[0],
            "peer_port": one.peer[1],
            "table_id": one.table_id,
            "start_token": one.range.left,
            "end_token": one.range.right,
            "keyspace_name": keyspace,
            "table_name": table,
            "files_done": one.files,
            "files_total": one.files_total,
            "bytes": one.bytes,
            "total_bytes": max(one.total_bytes, one.bytes),
            "rate_bytes_s": one.rate_bytes_s,
            "left_s": one.left_s if one.left_s >= 0 else None,
            "since": one.since_us // 1000,
        }


def stream_samples(node: Node) -> Iterator[Sample]:
    ends = (("in", node.stream_client.counts), ("out", node.streams.counts))
    running = [view.direction for view in _views(node)]
    for direction, counts in ends:
        label = (("direction", direction),)
        yield Sample("lockstep_streaming_streams_open", running.count(direction), label)
        yield Sample("lockstep_streaming_streams_total", counts.streams, label)
        yield Sample("lockstep_streaming_bytes_total", counts.bytes, label)
        yield Sample("lockstep_streaming_files_total", counts.files, label)
    incoming, throttle = node.stream_client.counts, node.streams.throttle
    yield Sample("lockstep_streaming_damaged_files_total", incoming.damaged)
    yield Sample("lockstep_streaming_resumes_total", incoming.resumed)
    yield Sample("lockstep_streaming_throughput_limit_bytes", throttle.rate_bytes_s)
    yield Sample("lockstep_streaming_throttled_seconds_total", throttle.waited_s)


def _views(node: Node) -> list[StreamView]:
    return [*node.stream_client.views(), *node.streams.views()]
