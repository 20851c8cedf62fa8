"""Range streams of this node, as rows of `system_views.streams` and as metrics.

Invariant: read from what the streams themselves count; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.node.services import NodeServices
from lockstep.server.metrics.samples import Sample
from lockstep.server.views.virtual_rows import VirtualRow
from lockstep.storage.rows.paxos_table import table_of
from lockstep.streaming.stream_progress import StreamView

COLUMNS = (
    "session text; direction text; peer inet; peer_port int; table_id bigint; start_token bigint; "
    "end_token bigint; keyspace_name text; table_name text; files_done int; files_total int; bytes bigint; "
    "total_bytes bigint; rate_bytes_s bigint; left_s bigint; since timestamp"
)
PARTITION = ("session",)
CLUSTERING = ("direction", "peer", "peer_port", "table_id", "start_token")


def stream_rows(node: NodeServices) -> Iterator[VirtualRow]:
    names = {
        table.id: (keyspace.name, table.name)
        for keyspace in node.log.cluster.schema.keyspaces
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


def stream_samples(node: NodeServices) -> Iterator[Sample]:
    ends = (("in", node.data.stream_client.counts), ("out", node.data.streams.counts))
    running = [view.direction for view in _views(node)]
    for direction, counts in ends:
        label = (("direction", direction),)
        yield Sample("lockstep_streaming_streams_open", running.count(direction), label)
        yield Sample("lockstep_streaming_streams_total", counts.streams, label)
        yield Sample("lockstep_streaming_bytes_total", counts.bytes, label)
        yield Sample("lockstep_streaming_files_total", counts.files, label)
    incoming, throttle = node.data.stream_client.counts, node.data.streams.throttle
    yield Sample("lockstep_streaming_damaged_files_total", incoming.damaged)
    yield Sample("lockstep_streaming_resumes_total", incoming.resumed)
    yield Sample("lockstep_streaming_throughput_limit_bytes", throttle.rate_bytes_s)
    yield Sample("lockstep_streaming_throttled_seconds_total", throttle.waited_s)


def _views(node: NodeServices) -> list[StreamView]:
    return [*node.data.stream_client.views(), *node.data.streams.views()]
