"""Owns `lockstep describe`: the CQL statements that would make a keyspace or table again."""

from __future__ import annotations

import click

from lockstep.cli.shared import client, options, render


@click.command()
@click.argument("name", metavar="KEYSPACE[.TABLE]")
@options.of_call
def describe(name: str, host: str, call_timeout_s: float, output: str) -> None:
    """Print the CQL that makes a keyspace with its tables, or one table.

    Names are taken as they are stored; double quotes around them, as CQL has them, do no harm.
    """
    keyspace, table = _parts(name)
    answer = client.connect(host, call_timeout_s).describe(keyspace, table)
    if output == "json":
        render.json_out(answer, "describe/1")
        return
    click.echo("\n\n".join(str(statement.get("cql", "")) for statement in answer.get("statements", [])))


def _parts(name: str) -> tuple[str, str | None]:
    """Keyspace and table of a name; neither can have a dot or a quote inside."""
    keyspace, _, table = name.partition(".")
    return keyspace.strip('"'), table.strip('"') or None
