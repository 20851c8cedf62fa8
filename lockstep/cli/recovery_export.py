"""Owns `lockstep recovery export`: what one node holds of a table, as CQL or Parquet.

Invariant: only that node is asked, also one that serves nobody; a file that is there already is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.cli.shared.jobs import lacking
from lockstep.documents import read
from lockstep.documents.recovery import ExportedPage
from lockstep.values.errors import ConfigurationError

_PATH = "/management/v1/recovery/export"
#: The column of a Parquet file that has the newest write time of each row, in microseconds.
WRITTEN: Final = "written_us"
#: All pages in one form.
Pages = Callable[[str], Iterator[ExportedPage]]


class Exported(msgspec.Struct, frozen=True):
    """`recovery-exported/1`"""

    node: int
    table: str
    rows: int
    file: str
    schema: str = "recovery-exported/1"


@click.command("export")
@click.argument("table", metavar="KEYSPACE.TABLE")
@click.option(
    "--file", "path", required=True, metavar="FILE", help="Ends in .cql or .parquet; it must not be there."
)
@render.of_call
def export(table: str, path: str, call: render.Call) -> None:
    """Write what the asked node alone holds of a table to a file, with the write time of each row.

    As INSERT statements, or as Parquet, whose column written_us has the write times (needs the extra spark).
    For a node that has diverged and serves nobody any more. Loaded elsewhere, nothing newer there is hidden:
    `lockstep pipeline load --option writeTimeColumn=written_us`.
    """
    keyspace, dot, name = table.partition(".")
    if not dot:
        raise click.UsageError("name a table as KEYSPACE.TABLE")
    target = Path(path)
    write = _WRITERS.get(target.suffix)
    if write is None:
        raise click.UsageError("the file's name ends in .cql or .parquet")
    if target.exists():
        raise ConfigurationError(f"{path} is there already", hint="name another file")
    node, rows = write(partial(_pages, call.cluster(), keyspace, name), target)
    told = Exported(node, table, rows, path)
    if not call.as_json(msgspec.to_builtins(told), told.schema):
        click.echo(f"node {node} holds {render.counted(rows, 'row')} of {table}: {path}")


def _write_statements(pages: Pages, target: Path) -> tuple[int, int]:
    node = rows = 0
    with target.open("x", encoding="utf-8") as file:
        for page in pages("statements"):
            node, rows = page.node, rows + len(page.statements)
            file.writelines(f"{line}\n" for line in page.statements)
    return node, rows


def _write_parquet(pages: Pages, target: Path) -> tuple[int, int]:
    """The library is of the extra spark."""
    try:
        from pyarrow import parquet

        from lockstep.scans.exported import batch_of
    except ModuleNotFoundError as error:
        raise lacking(error) from error
    node = rows = 0
    writer: Any = None
    try:
        for page in pages("values"):
            batch = batch_of(page, WRITTEN)
            writer = writer or parquet.ParquetWriter(target, batch.schema)
            writer.write_batch(batch)
            node, rows = page.node, rows + batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return node, rows


_WRITERS: Final[dict[str, Callable[[Pages, Path], tuple[int, int]]]] = {
    ".cql": _write_statements,
    ".parquet": _write_parquet,
}


def _pages(cluster: ClusterClient, keyspace: str, name: str, form: str) -> Iterator[ExportedPage]:
    after: dict[str, Any] = {}
    while True:
        answer = cluster.admin.get(_PATH, keyspace=keyspace, table=name, form=form, **after)
        page = read(ExportedPage, answer)
        yield page
        if not page.end:
            return
        after = {"after": page.end}
