"""Owns `lockstep cms`: the metadata group and the log it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lockstep.cli import snapshots, voters
from lockstep.cli.shared import client, options, render, service_text
from lockstep.documents import read
from lockstep.documents.service import Service
from lockstep.local.private_files import owner_only
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import SNAPSHOT_PIECE_BYTES_MAX

#: Entries shown when no range is asked for: a screenful.
LOG_ENTRIES_SHOWN = 30


@click.group()
def cms() -> None:
    """The metadata group: its members and its log."""


for _command in (
    voters.reconfigure,
    snapshots.snapshots,
    snapshots.snapshot,
    snapshots.truncate,
    voters.freeze,
    voters.thaw,
):
    cms.add_command(_command)


@cms.command("describe")
@options.of_call
def describe(host: str, call_timeout_s: float, output: str) -> None:
    """Show the members and their state, both groups, a running change and what it waits for, and the log."""
    answer = client.connect(host, call_timeout_s).cms()
    if output == "json":
        render.json_out(answer, "cms/1")
        return
    service_text.show(read(Service, answer))


@cms.command("log")
@click.option("--from", "first", type=int, help="First epoch.")
@click.option("--to", "last", type=int, help="Last epoch; the newest by default.")
@options.of_call
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


@cms.command("dump")
@click.argument("file", metavar="FILE")
@click.option("--epoch", type=int, help="Which epoch; the newest by default.")
@click.option("--value-only", is_flag=True, help="The value of the epoch, without entries since a snapshot.")
@options.of_call
def dump(
    file: str, epoch: int | None, value_only: bool, host: str, call_timeout_s: float, output: str
) -> None:
    """Write the metadata at an epoch to FILE, which must not exist yet and describes itself.

    Unless asked for the value only, the file begins at the snapshot before the epoch and holds all entries
    since: it can then seed a data directory. Nothing in the cluster is changed.
    """
    target = Path(file)
    if target.exists():
        raise ConfigurationError(f"{file} exists", hint="name a new file")
    cluster = client.connect(host, call_timeout_s)
    wanted = int(cluster.status().get("epoch", 0)) if epoch is None else epoch
    size = _written(target, cluster.cms_dump(wanted, entries=not value_only))
    if output == "json":
        render.json_out({"file": file, "epoch": wanted, "size_bytes": size}, "cms-dump-file/1")
        return
    click.echo(f"{file}: the metadata at epoch {wanted}, {size} bytes")


def _written(target: Path, pieces: Iterator[bytes]) -> int:
    """Bytes written; the file gets its name when it is whole."""
    partial = target.with_name(target.name + ".part")
    size = 0
    try:
        with open(partial, "wb", opener=owner_only) as out:
            for piece in pieces:
                size += out.write(piece)
        partial.rename(target)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return size


@cms.command("load")
@click.argument("file", metavar="FILE")
@click.option("--check", is_flag=True, help="Only verify and show the file.")
@click.option("--data-directory", metavar="D", help="An empty directory that a new node will start from.")
@options.dry_run
@options.output
def load(file: str, check: bool, data_directory: str | None, dry_run: bool, output: str) -> None:
    """Verify a dump, and seed an empty data directory of a new node with it.

    Every record, the value's digest, the hash chain and each entry are verified. Nothing is sent to any
    cluster: the node that starts from the directory joins through its seeds like any other, and follows the
    log from the dump's last epoch on; peers of another history refuse it.
    """
    if check == (data_directory is not None):
        raise ConfigurationError("say either --check or --data-directory D")
    if dry_run and data_directory is not None and _holds_something(Path(data_directory)):
        raise ConfigurationError("the data directory is not empty", hint="name a new one")
    # Only these commands need the whole metadata; the others start faster without it.
    from lockstep.metadata.log.dump import load_file
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
        "seeded": data_directory if not dry_run else None,
    }
    if data_directory is not None and not dry_run:
        from lockstep.node.log.metadata_seed import seed_directory
        from lockstep.runtime.real import real_runtime, run

        directory = data_directory
        run(lambda: seed_directory(real_runtime(directory), loaded))
    if output == "json":
        render.json_out(facts, "cms-load/1")
        return
    render.document(facts)


def _holds_something(directory: Path) -> bool:
    return directory.exists() and any(directory.iterdir())


def _parts(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as source:
            while part := source.read(SNAPSHOT_PIECE_BYTES_MAX):
                yield part
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
