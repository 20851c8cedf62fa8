"""What this node alone holds of a table, as a replica: for audits, which compare replicas with each other.

Invariant: nobody else is asked. A question names a range that this node is read from whole, at the epoch
that is answered with; of anything else, and of what this node may lack, it says so and tells no digest. What
may be purged at the second that the asker names counts as gone, so that replicas which are asked with one
second answer alike.
"""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any, Final

import msgspec

from lockstep.metadata.purging import purge_before_s
from lockstep.node.services import NodeServices
from lockstep.scans.bucket_digests import BucketDigests, parts, widths_of
from lockstep.scans.scan_table import ScanTable
from lockstep.schema.model import Table
from lockstep.server.admin.http import HttpRequest
from lockstep.server.admin.operations import Operation, Parameter, get, integer, later, required
from lockstep.storage.rows.reconcile import is_empty
from lockstep.storage.rows.visible import partition_left
from lockstep.topology.roles import readers
from lockstep.values import codec
from lockstep.values.errors import ConfigurationError, NotReplica
from lockstep.values.limits import PAGE_ROWS_MAX
from lockstep.values.node_limits import AUDIT_BUCKETS_MAX, AUDIT_DIGESTS_AT_ONCE_MAX
from lockstep.values.rows import ALL_ROWS, Position, ReadCommand, ReadResult
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

DIGESTS_PATH = "/v1/replica/digests"
ROWS_PATH = "/v1/replica/rows"
_OF = (
    Parameter("keyspace", "Name of a keyspace", required=True),
    Parameter("table", "Name of a table of it", required=True),
    Parameter("left", "Tokens above this one", "integer", True),
    Parameter("right", "up to this one", "integer", True),
    Parameter("now_s", "The second at which it is decided what may be purged", "integer", True),
)
_POSITION = codec.decoder(Position)
#: Fragments that are taken at once: some milliseconds of the loop.
_TAKEN: Final = 4096


class ReplicaContent:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._turns = asyncio.Semaphore(AUDIT_DIGESTS_AT_ONCE_MAX)

    def operations(self) -> list[Operation]:
        return [
            get(
                DIGESTS_PATH,
                "Row counts and digests of what this node holds of a range, by equal parts of it",
                later(lambda request, _: self._digests(request)),
                *_OF,
                Parameter("buckets", "How many parts", "integer", True),
            ),
            Operation(
                "GET",
                ROWS_PATH,
                "A page of what this node holds of a range, tombstones and write times included",
                later(lambda request, _: self._rows(request)),
                "The page, as replicas send it to each other, in base64",
                (*_OF, Parameter("after", "The `end` of the page before")),
                holds_secrets=True,
            ),
        ]

    async def _digests(self, request: HttpRequest) -> dict[str, Any]:
        table, range_, before_s = self._asked(request)
        count = integer(request, "buckets")
        if not 1 <= count <= min(AUDIT_BUCKETS_MAX, range_.right - range_.left):
            raise ConfigurationError(f"a range has 1 to {AUDIT_BUCKETS_MAX} parts, not {count}")
        async with self._turns:
            epoch = self._held(table, range_)
            found = await self._digested(table, range_, parts(range_, count), before_s)
        return {
            "schema": "replica-digests/1",
            "node": self._node.context.own_id(),
            "epoch": epoch,
            "digests": [digest.hex() for digest, _ in found],
            "rows": [rows for _, rows in found],
        }

    async def _digested(
        self, table: Table, range_: Range, buckets: tuple[Range, ...], before_s: int
    ) -> list[tuple[bytes, int]]:
        """Digests and row counts; what is in them is durable. Only fragments are taken on the loop."""
        run = self._node.context.runtime.tasks.run_blocking
        types = self._node.log.cluster.schema.by_name[table.keyspace].types
        digests = BucketDigests(buckets, before_s, widths_of(ScanTable(table, types)))
        fragments = await self._node.data.engine.fragments(table.id, range_)
        try:
            while pairs := fragments.take(_TAKEN):
                await run(partial(digests.feed, pairs))
                if len(pairs) < _TAKEN:
                    break
            return await run(digests.finish)
        finally:
            fragments.close()

    async def _rows(self, request: HttpRequest) -> dict[str, Any]:
        table, range_, before_s = self._asked(request)
        epoch = self._held(table, range_)
        command = ReadCommand(
            table.id, range_.left, range_.right, None, ALL_ROWS, (), True, False, PAGE_ROWS_MAX, 0,
            integer(request, "now_s"), position(request.query.get("after", "")),
        )  # fmt: skip
        read = await self._node.data.engine.read(command)
        left = (partition_left(partition, before_s) for partition in read.partitions)
        found = ReadResult(tuple(one for one in left if not is_empty(one)), read.more, read.end)
        return {
            "schema": "replica-rows/1",
            "node": self._node.context.own_id(),
            "epoch": epoch,
            "columns": {str(column.id): column.name for column in table.columns},
            "content": base64.b64encode(codec.encode(found)).decode("ascii"),
        }

    def _asked(self, request: HttpRequest) -> tuple[Table, Range, int]:
        """(table, tokens, before which second what is dead may be purged). ConfigurationError."""
        keyspace, name = required(request, "keyspace"), required(request, "table")
        cluster = self._node.log.cluster
        known = cluster.schema.by_name.get(keyspace)
        table = known.by_name.get(name) if known is not None else None
        if table is None:
            raise ConfigurationError(f"there is no table {keyspace}.{name}")
        left, right = integer(request, "left"), integer(request, "right")
        if not TOKEN_MIN <= left < right <= TOKEN_MAX:
            raise ConfigurationError(f"({left}, {right}] is no range of tokens")
        tokens, now_s = Range(left, right), integer(request, "now_s")
        if now_s < 0:
            raise ConfigurationError(f"now_s is {now_s}, not a second since 1970")
        return table, tokens, purge_before_s(cluster, table, tokens, now_s)

    def _held(self, table: Table, tokens: Range) -> int:
        """The epoch at which this node is read from for all the tokens. NotReplica, RangeLacking."""
        cluster, own = self._node.log.cluster, self._node.context.own_id()
        keyspace = cluster.schema.by_name[table.keyspace]
        group = table.group if keyspace.tablets is not None else keyspace.group
        ring = cluster.placements.ring(group)
        for placed in ring.overlapping(tokens):
            if own not in readers(cluster, ring, placed):
                raise NotReplica(
                    f"node {own} is not read from for ({placed.range.left}, {placed.range.right}] of "
                    f"{table.keyspace}.{table.name}"
                )
        self._node.data.replica.require_held(table.id, tokens)
        return cluster.epoch


def position(text: str) -> Position | None:
    if not text:
        return None
    try:
        return _POSITION.decode(base64.urlsafe_b64decode(text))
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"after is not where a page ended: {error}") from error


def position_text(position: Position) -> str:
    """As the parameter `after` takes it."""
    return base64.urlsafe_b64encode(codec.encode(position)).decode("ascii")
