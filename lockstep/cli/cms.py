"""Owns `lockstep cms`: the metadata group and the log it keeps."""

from __future__ import annotations

import click

from lockstep.cli import client, options, render
from lockstep.values.errors import ConfigurationError

#: Entries shown when no range is asked for: a screenful.
LOG_ENTRIES_SHOWN = 30


@click.group()
def cms() -> None:
    """The metadata group: its members and its log."""


@cms.command("describe")
@options.host
@options.call_timeout
@options.output
def describe(host: str, call_timeout_s: float, output: str) -> None:
    """Show the voters, the leader and how far each has the log."""
    answer = client.connect(host, call_timeout_s).cms()
    if output == "json":
        render.json_out(answer, "cms/1")
        return
    render.document(answer)


@cms.command("log")
@click.option("--from", "first", type=int, help="First epoch.")
@click.option("--to", "last", type=int, help="Last epoch; the newest by default.")
@options.host
@options.call_timeout
@options.output
def log(first: int | None, last: int | None, host: str, call_timeout_s: float, output: str) -> None:
    """Show entries of the metadata log, by default the newest 30."""
    cluster = client.connect(host, call_timeout_s)
    newest = last if last is not None else int(cluster.status().get("epoch", 0))
    oldest = first if first is not None else max(1, newest - LOG_ENTRIES_SHOWN + 1)
    if not 1 <= oldest <= max(newest, 1):
        raise ConfigurationError(f"epochs {oldest} to {newest} are no range", hint="the first epoch is 1")
    entries = cluster.log_entries(oldest, newest)
    if output == "json":
        render.json_out({"from": oldest, "to": newest, "entries": entries}, "metadata-log/1")
        return
    if not entries:
        click.echo(f"no entries from epoch {oldest} to {newest}")
    render.table(
        ["epoch", "kind", "actor", "term", "hash", "summary"],
        [
            [
                *(entry.get(name) for name in ("epoch", "kind", "actor", "term")),
                str(entry.get("hash", ""))[:12],
                entry.get("summary", ""),
            ]
            for entry in entries
        ],
    )
