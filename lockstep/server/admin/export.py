"""What one node holds of a table as CQL or as values, for the data of a node that nobody else reads from any
more.

Invariant: only this node's store is read, whoever owns what; rows that are dead as of now are left out. Each
row comes with its newest write time, so that loading it somewhere never hides what is newer there.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Final

import msgspec

from lockstep.cql.compile.prepared import cql_name
from lockstep.documents.recovery import ExportedPage
from lockstep.node.services import NodeServices
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.shown_rows import Shown
from lockstep.server.admin.http import HttpRequest
from lockstep.server.admin.operations import Operation, Parameter, later, required
from lockstep.server.admin.replica_content import position, position_text
from lockstep.storage.rows.visible import live_view
from lockstep.values.codec import encode
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import PAGE_ROWS_MAX
from lockstep.values.rows import ALL_ROWS, Partition, ReadCommand, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

EXPORT_PATH: Final = "/management/v1/recovery/export"
STATEMENTS: Final = "statements"
VALUES: Final = "values"
#: The values of a row that are not null by column, and its newest write time in microseconds.
Found = tuple[list[bytes | None], int]


def export_operations(node: NodeServices) -> list[Operation]:
    return [
        Operation(
            "GET",
            EXPORT_PATH,
            "A page of what this node alone holds of a table",
            later(lambda request, _: _page(node, request)),
            "Statements or rows, and where the next page begins",
            (
                Parameter("keyspace", "Name of a keyspace", required=True),
                Parameter("table", "Name of a table of it", required=True),
                Parameter("after", "The `end` of the page before"),
                Parameter("form", f"`{STATEMENTS}`, or `{VALUES}` as they are on the wire"),
            ),
            holds_secrets=True,
        )
    ]


async def _page(node: NodeServices, request: HttpRequest) -> ExportedPage:
    keyspace, name = required(request, "keyspace"), required(request, "table")
    form = request.query.get("form", STATEMENTS)
    if form not in (STATEMENTS, VALUES):
        raise ConfigurationError(f"form is {STATEMENTS} or {VALUES}, not {form}")
    known = node.log.cluster.schema.by_name.get(keyspace)
    table = known.by_name.get(name) if known is not None else None
    if known is None or table is None:
        raise ConfigurationError(f"there is no table {keyspace}.{name}")
    now_s = node.context.runtime.clock.wall_us() // 1_000_000
    command = ReadCommand(
        table.id, TOKEN_MIN, TOKEN_MAX, None, ALL_ROWS, (), True, False, PAGE_ROWS_MAX, 0,
        now_s, position(request.query.get("after", "")),
    )  # fmt: skip
    read = await node.data.engine.read(command)
    scanned = ScanTable(table, known.types)
    shown = Shown(scanned, scanned.in_order, now_s)
    found = await node.context.runtime.tasks.run_blocking(lambda: _rows(shown, read.partitions, now_s))
    page = ExportedPage(
        node=node.context.own_id(),
        epoch=node.log.cluster.epoch,
        end=position_text(read.end) if read.more and read.end is not None else "",
    )
    if form == STATEMENTS:
        return msgspec.structs.replace(page, statements=tuple(_insert(scanned, *one) for one in found))
    return msgspec.structs.replace(
        page,
        table=b64encode(encode(scanned)).decode(),
        rows=tuple(tuple(v if v is None else b64encode(v).decode() for v in row) for row, _ in found),
        written_us=tuple(written_us for _, written_us in found),
    )


def _rows(shown: Shown, partitions: tuple[Partition, ...], now_s: int) -> list[Found]:
    return [found for one in partitions for found in _of_partition(shown, live_view(one, now_s))]


def _of_partition(shown: Shown, partition: Partition) -> Iterator[Found]:
    static = shown.static(partition.static)
    for row in partition.rows:
        values = shown.row(partition.key, row, static)
        if values is not None:
            yield values, max(_newest(row), _newest(static))
    if static is not None and not partition.rows:
        yield shown.lone(partition.key, static), _newest(static)


def _newest(row: Row | None) -> int:
    """The newest write time in a row, in microseconds."""
    if row is None:
        return 0
    times = [cell.timestamp_us for cell in row.cells]
    return max([*times, row.liveness.timestamp_us if row.liveness is not None else 0])


def _insert(table: ScanTable, values: list[bytes | None], written_us: int) -> str:
    pairs = [(c, v) for c, v in zip(table.in_order, values, strict=True) if v is not None]
    names = ", ".join(cql_name(column.name) for column, _ in pairs)
    kinds = table.kinds
    texts = ", ".join(kinds[column.name].format(kinds[column.name].deserialize(v)) for column, v in pairs)
    whole = f"{cql_name(table.table.keyspace)}.{cql_name(table.table.name)}"
    return f"INSERT INTO {whole} ({names}) VALUES ({texts}) USING TIMESTAMP {written_us};"
