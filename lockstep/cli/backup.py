"""Owns `lockstep backup`: back tables up, list and remove backups, restore them, and watch it happen.

Invariant: nothing here decides what a backup holds; the node that is asked does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lockstep.cli.shared import render, runs
from lockstep.cli.shared.client import ClusterClient
from lockstep.cli.shared.runs import Found
from lockstep.documents import read
from lockstep.documents.runs import BackupPlan, BackupRun, Backups, Removed, RestorePlan
from lockstep.values.errors import ConfigurationError, LockstepError, PreconditionError

if TYPE_CHECKING:
    from lockstep.local.backup_copies import Copies

#: A node that restarts is asked again well within this.
_LISTED_WAIT_S: Final = 15.0
_TABLE: Final = click.option(
    "--table", "tables", multiple=True, metavar="KEYSPACE[.TABLE]", help="Only these; several may be named."
)


@click.group()
def backup() -> None:
    """Back tables up on all nodes, and restore them, here or in another cluster."""


@backup.command("create")
@click.argument("name", metavar="NAME")
@_TABLE
@click.option(
    "--allow-absent", is_flag=True, help="Leave out nodes that cannot be reached, down to a quorum."
)
@click.option(
    "--to",
    "copied_to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Of a local cluster: copy all parts to DIR/NAME when they are complete.",
)
@render.of_change
def create(
    name: str, tables: tuple[str, ...], allow_absent: bool, copied_to: Path | None, call: render.Call
) -> int:
    """Write a backup called NAME: each node its part, below backups/NAME of its data directory.

    It holds every write that was acknowledged at QUORUM before, and at any level when no node is left out.
    """
    cluster = call.cluster()
    body = {"name": name, "tables": list(tables), "allow_absent": allow_absent}
    target = None
    if copied_to is not None:
        _require_wait(call.wait, "--to")
        copies = _copies(cluster)
        target = copies, copies.free_folder(copied_to, name)
    if call.dry_run:
        _show_backup_plan(cluster.begin_backup({**body, "dry_run": True}), call)
        return 0
    with _room(target):
        found = _followed(cluster, cluster.begin_backup(body), call)
        code = _ended(found, call)
        if target is not None and not code:
            made = read(BackupRun, found).progress
            _copy_out(cluster, name, made.backup_id if made is not None else "", *target)
    return code


@backup.command("list")
@render.of_call
def list_(call: render.Call) -> None:
    """Show the backups that nodes keep, their sizes, and whether they are complete."""
    found = call.cluster().backups()
    if call.as_json(found, "backups/1"):
        return
    told = read(Backups, found)
    rows = []
    for one in told.backups:
        state = "complete" if one.complete else "not complete"
        rows.append([one.name, state, _when(one.began_us), len(one.parts), _size(one.bytes)])
    render.table(["backup", "state", "began", "parts", "size"], rows)
    for one in told.backups:
        for part in one.parts:
            if part.problem:
                click.echo(f"{one.name}, part {part.host_id} on node {part.node}: {part.problem}")
        for host_id in one.missing:
            click.echo(f"{one.name}: part {host_id} is missing")
    _tell_silent(told.silent)


@backup.command("remove")
@click.argument("name", metavar="NAME")
@render.of_call
def remove(name: str, call: render.Call) -> int:
    """Remove all parts of the backup NAME that nodes keep. There is no way back."""
    answer = call.cluster().remove_backup(name)
    removed = read(Removed, answer)
    if not call.as_json(answer, "backup-removed/1"):
        parts = render.counted(removed.parts, "part")
        click.echo(f"removed {parts} of backup {name} ({_size(removed.bytes)})")
        _tell_silent(removed.silent)
    return 6 if removed.silent else 0


@backup.command("restore")
@click.argument("name", metavar="NAME")
@_TABLE
@click.option("--truncate", "existing", flag_value="truncate", help="Empty tables that are there before.")
@click.option("--merge", "existing", flag_value="merge", help="Add to what is there; the newer write counts.")
@click.option(
    "--from",
    "copied_from",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Of a local cluster: bring the parts in DIR/NAME to its nodes before.",
)
@render.of_change
def restore(
    name: str, tables: tuple[str, ...], existing: str | None, copied_from: Path | None, call: render.Call
) -> int:
    """Bring the tables of the backup NAME back to all their replicas, under the times of their writes.

    Tables and keyspaces that are missing are made. The parts may lie on any nodes, of any cluster.
    """
    cluster = call.cluster()
    body: dict[str, Any] = {"tables": list(tables), "existing": existing or "refuse"}
    if copied_from is not None:
        copies, nodes = _copies(cluster), cluster.nodes()["nodes"]
        if call.dry_run:
            body["brought"] = copies.to_bring_in(nodes, copied_from, name) or None
        else:
            brought = render.counted(copies.bring_in(nodes, copied_from, name), "part")
            click.echo(f"brought {brought} from {copied_from / name}", err=True)
    if call.dry_run:
        _show_restore_plan(cluster.begin_restore(name, {**body, "dry_run": True}), call)
        return 0
    return _ended(_followed(cluster, cluster.begin_restore(name, body), call), call)


def _copies(cluster: ClusterClient) -> Copies:
    from lockstep.local.backup_copies import copies_of

    return copies_of(cluster.admin.host, cluster.admin.port)


def _require_wait(wait: bool, option: str) -> None:
    if not wait:
        raise ConfigurationError(f"{option} waits for the end", hint="leave --no-wait out")


@contextlib.contextmanager
def _room(target: tuple[Copies, Path] | None) -> Iterator[None]:
    """Where a copy goes, found out before a backup is made; nothing is left of a copy that was not made."""
    if target is None:
        yield
        return
    copies, folder = target
    copies.make_room(folder)
    try:
        yield
    finally:
        copies.drop(folder)


def _copy_out(cluster: ClusterClient, name: str, backup_id: str, copies: Copies, folder: Path) -> None:
    """Of a backup that is done. PreconditionError when nodes that are away do not come back, DiskRefused."""
    try:
        parts = _listed(cluster, name, backup_id)
        copies.bring_out(cluster.nodes()["nodes"], name, parts, folder)
    except LockstepError as error:
        error.hint = (
            f"backup {name} itself is complete: copy `backups/{name}` of the nodes' data directories to "
            f"{folder}, or `lockstep backup remove {name}` and create it again"
        )
        raise
    click.echo(f"copied {render.counted(len(parts), 'part')} to {folder}", err=True)


def _listed(cluster: ClusterClient, name: str, backup_id: str) -> Sequence[Found]:
    from lockstep.local.backup_copies import parts_of

    deadline = time.monotonic() + _LISTED_WAIT_S
    while True:
        parts, missing = parts_of(cluster.backups(), name, backup_id)
        if not missing:
            return parts
        if time.monotonic() >= deadline:
            raise PreconditionError(f"backup {name} was not copied, as parts are not listed: {missing}")
        time.sleep(runs.POLL_S)


def _followed(cluster: ClusterClient, begun: Found, call: render.Call) -> Found:
    if not call.wait:
        return begun
    return runs.follow(begun, str(begun["purpose"]), cluster.backup_run, _headline, call.timeout_s)


def _ended(found: Found, call: render.Call) -> int:
    runs.show(found, _headline, call, "backup-run/1")
    return 0 if found["state"] in ("done", "running") else 1


def _headline(found: Mapping[str, Any]) -> str:
    told = read(BackupRun, found)
    facts = [f"{told.purpose} {told.id} {told.state}"]
    if told.progress is not None:
        facts.append(f"{told.progress.parts_done} of {render.counted(told.progress.parts, 'part')}")
        facts.append(f"{_size(told.progress.bytes)} in {render.counted(told.progress.files, 'file')}")
    return ", ".join(facts)


def _show_backup_plan(answer: Mapping[str, Any], call: render.Call) -> None:
    if call.as_json(answer, "backup-plan/1"):
        return
    plan = read(BackupPlan, answer)
    if plan.refused:
        click.echo(f"would be refused: {plan.refused}")
    click.echo(f"tables: {', '.join(plan.tables)}")
    rows = [[f"node {one.node}", _size(one.bytes_at_most)] for one in plan.nodes]
    render.table(["writes a part", "of at most"], rows)
    for node in plan.absent:
        click.echo(f"without node {node}")
    runs.show_steps(plan.steps)
    click.echo(f"way back: {plan.way_back}")


def _show_restore_plan(answer: Mapping[str, Any], call: render.Call) -> None:
    if call.as_json(answer, "restore-plan/1"):
        return
    plan = read(RestorePlan, answer)
    made = f"made of cluster {plan.cluster} at epoch {plan.epoch}"
    click.echo(f"backup {plan.name}, {made}, {_when(plan.began_us)}")
    rows = [[one.table, one.action, _size(one.bytes)] for one in plan.tables]
    render.table(["table", "is to", "size of all parts"], rows)
    for one in plan.sources:
        click.echo(f"node {one.node} serves {render.counted(len(one.host_ids), 'part')}")
    runs.show_steps(plan.steps)
    click.echo(f"way back: {plan.way_back}")


def _tell_silent(silent: Sequence[int]) -> None:
    for node in silent:
        click.echo(f"node {node} cannot be asked", err=True)


def _size(count: Any) -> str:
    return "unknown" if count is None else render.bytes_text(int(count))


def _when(us: Any) -> str:
    return "" if us is None else datetime.fromtimestamp(int(us) // 1_000_000, UTC).isoformat()
