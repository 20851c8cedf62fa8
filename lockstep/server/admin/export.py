"""What one node holds of a table as CQL, for the data of a node that nobody else reads from any more.

Invariant: only this node's store is read, whoever owns what; rows that are dead as of now are left out. Each
statement has the newest write time of its row, so that loading it somewhere never hides what is newer there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from lockstep.cql.compile.prepared import cql_name
from lockstep.documents.recovery import ExportedPage
from lockstep.node.services import NodeServices
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.shown_rows import Shown
from lockstep.server.admin.http import HttpRequest
from lockstep.server.admin.operations import Operation, Parameter, later, required
from lockstep.server.admin.replica_content import position, position_text
from lockstep.storage.rows.visible import live_view
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import PAGE_ROWS_MAX
from lockstep.values.rows import ALL_ROWS, Partition, ReadCommand, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

EXPORT_PATH: Final = "/management/v1/recovery/export"


def export_operations(node: NodeServices) -> list[Operation]:
    return [
        Operation(
            "GET",
            EXPORT_PATH,
            "A page of what this node alone holds of a table, as statements",
            later(lambda request, _: _page(node, request)),
            "Statements, and where the next page begins",
            (
                Parameter("keyspace", "Name of a keyspace", required=True),
                Parameter("table", "Name of a table of it", required=True),
                Parameter("after", "The `end` of the page before"),
            ),
            holds_secrets=True,
        )
    ]


async def _page(node: NodeServices, request: HttpRequest) -> ExportedPage:
    keyspace, name = required(request, "keyspace"), required(request, "table")
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
    lines = await node.context.runtime.tasks.run_blocking(
        partial(_statements, scanned, shown, read.partitions, now_s)
    )
    return ExportedPage(
        node=node.context.own_id(),
        epoch=node.log.cluster.epoch,
        statements=lines,
        end=position_text(read.end) if read.more and read.end is not None else "",
    )


def _statements(
    table: ScanTable, shown: Shown, partitions: tuple[Partition, ...], now_s: int
) -> tuple[str, ...]:
    return tuple(line for one in partitions for line in _of_partition(table, shown, live_view(one, now_s)))


def _of_partition(table: ScanTable, shown: Shown, partition: Partition) -> Iterator[str]:
    static = shown.static(partition.static)
    for row in partition.rows:
        values = shown.row(partition.key, row, static)
        if values is not None:
            yield _insert(table, values, max(_newest(row), _newest(static)))
    if static is not None and not partition.rows:
        yield _insert(table, shown.lone(partition.key, static), _newest(static))


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
