"""Pages of an export become Arrow batches of the types that a table has."""

from __future__ import annotations

from base64 import b64encode

import pytest

pytest.importorskip("pyarrow")

from lockstep.documents.recovery import ExportedPage
from lockstep.scans.exported import batch_of
from lockstep.values.codec import encode
from lockstep.values.errors import ConfigurationError
from tests.scans.support import table_of


def text(value: bytes) -> str:
    return b64encode(value).decode()


def page(table: object, *rows: tuple[str | None, ...]) -> ExportedPage:
    written = tuple(range(7, 7 + len(rows)))
    return ExportedPage(1, 2, table=text(encode(table)), rows=rows, written_us=written)


def test_rows_of_a_page_have_their_types_and_write_times() -> None:
    table = table_of(["int"], [], [], ["list<text>", "text"])
    listed = b"\0\0\0\1\0\0\0\1x"
    found = batch_of(page(table, (text(b"\0\0\0\5"), text(listed), None)), "written_us")
    assert found.to_pylist() == [{"p0": 5, "r0": ["x"], "r1": None, "written_us": 7}]
    assert batch_of(page(table), "written_us").schema == found.schema


def test_a_table_with_a_column_of_that_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has a column r0 itself"):
        batch_of(page(table_of(["int"], [], [], ["int"])), "r0")
