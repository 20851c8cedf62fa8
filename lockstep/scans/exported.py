"""Pages of what one node holds of a table, as Arrow batches."""

from __future__ import annotations

from base64 import b64decode

import pyarrow as pa

from lockstep.documents.recovery import ExportedPage
from lockstep.scans.arrow_columns import arrow_type, decode_cells
from lockstep.scans.scan_table import ScanTable
from lockstep.values.codec import decoder
from lockstep.values.errors import ConfigurationError

_TABLE = decoder(ScanTable)


def batch_of(page: ExportedPage, written: str) -> pa.RecordBatch:
    """The rows of a page of values, and in the column `written` when each was written last.

    ConfigurationError when the table has a column of that name; InvalidRequest for counters and durations,
    which have no Arrow type."""
    table = _TABLE.decode(b64decode(page.table))
    kinds = [(column.name, table.kinds[column.name]) for column in table.in_order]
    if written in table.kinds:
        raise ConfigurationError(
            f"the table has a column {written} itself", hint="write statements: a file that ends in .cql"
        )
    cells = [[None if value is None else b64decode(value) for value in row] for row in page.rows]
    columns = [[row[at] for row in cells] for at in range(len(kinds))]
    arrays = [decode_cells(kind, found) for (_, kind), found in zip(kinds, columns, strict=True)]
    fields = [pa.field(name, arrow_type(kind)) for name, kind in kinds]
    return pa.record_batch(
        [*arrays, pa.array(page.written_us, pa.int64())],
        schema=pa.schema([*fields, pa.field(written, pa.int64())]),
    )
