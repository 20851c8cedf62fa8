"""Owns `lockstep recovery export`: what one node holds of a table, as CQL.

Invariant: only that node is asked, also one that serves nobody; a file that is there already is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.recovery import ExportedPage
from lockstep.values.errors import ConfigurationError

_PATH = "/management/v1/recovery/export"


class Exported(msgspec.Struct, frozen=True):
    """`recovery-exported/1`"""

    node: int
    table: str
    rows: int
    file: str
    schema: str = "recovery-exported/1"


@click.command("export")
@click.argument("table", metavar="KEYSPACE.TABLE")
@click.option("--file", "path", required=True, metavar="FILE", help="Ends in .cql; it must not be there.")
@render.of_call
def export(table: str, path: str, call: render.Call) -> None:
    """Write what the asked node alone holds of a table to a file, as INSERT statements with write times.

    For a node that has diverged and serves nobody any more. Loaded elsewhere, nothing newer there is hidden.
    """
    keyspace, dot, name = table.partition(".")
    if not dot:
        raise click.UsageError("name a table as KEYSPACE.TABLE")
    target = Path(path)
    if target.suffix != ".cql":
        raise click.UsageError("the file's name ends in .cql")
    if target.exists():
        raise ConfigurationError(f"{path} is there already", hint="name another file")
    node = rows = 0
    with target.open("x", encoding="utf-8") as file:
        for page in _pages(call.cluster(), keyspace, name):
            node, rows = page.node, rows + len(page.statements)
            file.writelines(f"{line}\n" for line in page.statements)
    told = Exported(node, table, rows, path)
    if not call.as_json(msgspec.to_builtins(told), told.schema):
        click.echo(f"node {node} holds {render.counted(rows, 'row')} of {table}: {path}")


def _pages(cluster: ClusterClient, keyspace: str, name: str) -> Iterator[ExportedPage]:
    after: dict[str, Any] = {}
    while True:
        page = read(ExportedPage, cluster.admin.get(_PATH, keyspace=keyspace, table=name, **after))
        yield page
        if not page.end:
            return
        after = {"after": page.end}
