"""Owns `lockstep cms`: the metadata group and the log it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lockstep.cli import client, options, render, voters
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import SNAPSHOT_PIECE_BYTES_MAX

#: Entries shown when no range is asked for: a screenful.
LOG_ENTRIES_SHOWN = 30


@click.group()
def cms() -> None:
    """The metadata group: its members and its log."""


for _command in (voters.reconfigure, voters.freeze, voters.thaw):
    cms.add_command(_command)


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
    entries = cluster.log_entries(oldest, newest, available=first is None)
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


@cms.command("snapshots")
@options.host
@options.call_timeout
@options.output
def snapshots(host: str, call_timeout_s: float, output: str) -> None:
    """Show the snapshots that a node keeps, and from which epoch on it has the log."""
    answer = client.connect(host, call_timeout_s).cms_snapshots()
    if output == "json":
        render.json_out(answer, "cms-snapshots/1")
        return
    render.document(answer)


@cms.command("snapshot")
@click.option("--reason", default="", help="Kept in the log.")
@options.host
@options.call_timeout
@options.output
def snapshot(reason: str, host: str, call_timeout_s: float, output: str) -> None:
    """Take a snapshot of the metadata now, on every node."""
    answer = client.connect(host, call_timeout_s).cms_snapshot(reason)
    if output == "json":
        render.json_out(answer, "cms-change/1")
        return
    click.echo(f"epoch {answer['epoch']}: every node writes its snapshot")


@cms.command("truncate")
@click.option("--epoch", type=int, help="Last epoch to drop; that of the latest snapshot by default.")
@options.host
@options.call_timeout
@options.output
def truncate(epoch: int | None, host: str, call_timeout_s: float, output: str) -> None:
    """Let every node drop log entries that the latest snapshot holds."""
    answer = client.connect(host, call_timeout_s).cms_truncate(epoch)
    if output == "json":
        render.json_out(answer, "cms-change/1")
        return
    click.echo(f"epoch {answer['epoch']}: entries up to epoch {answer['truncated_epoch']} may go")


@cms.command("dump")
@click.option("--epoch", type=int, help="Which epoch; the newest by default.")
@click.option("--output", "file", required=True, metavar="FILE", help="Where to write; must not exist.")
@click.option("--value-only", is_flag=True, help="The value of the epoch, without entries since a snapshot.")
@options.host
@options.call_timeout
def dump(epoch: int | None, file: str, value_only: bool, host: str, call_timeout_s: float) -> None:
    """Write the metadata at an epoch to a self-describing file.

    Unless asked for the value only, the file begins at the snapshot before the epoch and holds all entries
    since: it can then seed a data directory.
    """
    target = Path(file)
    if target.exists():
        raise ConfigurationError(f"{file} exists", hint="name a new file")
    cluster = client.connect(host, call_timeout_s)
    wanted = int(cluster.status().get("epoch", 0)) if epoch is None else epoch
    partial = target.with_name(target.name + ".part")
    size = 0
    with partial.open("wb") as out:
        for piece in cluster.cms_dump(wanted, entries=not value_only):
            size += out.write(piece)
    partial.rename(target)
    click.echo(f"{file}: the metadata at epoch {wanted}, {size} bytes")


@cms.command("load")
@click.argument("file", metavar="FILE")
@click.option("--check", is_flag=True, help="Only verify and show the file.")
@click.option("--data-directory", metavar="D", help="An empty directory that a new node will start from.")
@options.output
def load(file: str, check: bool, data_directory: str | None, output: str) -> None:
    """Verify a dump, and seed an empty data directory of a new node with it.

    Every record, the value's digest, the hash chain and each entry are verified. Nothing is sent to any
    cluster: the node that starts from the directory joins through its seeds like any other, and follows the
    log from the dump's last epoch on; peers of another history refuse it.
    """
    if check == (data_directory is not None):
        raise ConfigurationError("say either --check or --data-directory D")
    # Only these commands need the whole metadata; the others start faster without it.
    from lockstep.metadata.dump import load_file
    from lockstep.node.kinds import every_kind

    loaded = load_file(_parts(Path(file)), every_kind(), file)
    value = loaded.value
    facts: dict[str, Any] = {
        "file": file,
        "cluster": {"id": value.identity.cluster_id, "name": value.identity.cluster_name},
        "begins_at_epoch": loaded.base.epoch,
        "epoch": value.epoch,
        "hash": value.hash.hex(),
        "entries": len(loaded.entries),
        "snapshot_epoch": loaded.snapshot[1].epoch if loaded.snapshot is not None else None,
        "nodes": len(value.directory.nodes),
        "keyspaces": len(value.schema.keyspaces),
        "tables": len(value.schema.tables_by_id),
        "seeded": data_directory,
    }
    if data_directory is not None:
        from lockstep.node.metadata_seed import seed_directory
        from lockstep.runtime.real import real_runtime, run

        directory = data_directory
        run(lambda: seed_directory(real_runtime(directory), loaded))
    if output == "json":
        render.json_out(facts, "cms-load/1")
        return
    render.document(facts)


def _parts(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as source:
            while part := source.read(SNAPSHOT_PIECE_BYTES_MAX):
                yield part
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
