"""Owns `lockstep node`: run one node in the foreground, ask one about itself, close its clients' door; and
what is done to one that is stopped, in its data directory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.node.configuration import parse
from lockstep.node.recovery.store import DAMAGED_DIRECTORY, Recoverable, recover_store, survey
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real import claim, real_runtime
from lockstep.runtime.real import run as real_run
from lockstep.storage.store import STORE_DIRECTORY, Store
from lockstep.storage.store_position import Lack
from lockstep.values.errors import OutcomeUnknown


def recover_stopped(
    file: Path, *, accept_data_loss: bool, keep_readable: bool, dry_run: bool
) -> tuple[Recoverable, tuple[Lack, ...]]:
    """Give up the store of the node that `file` configures, or what cannot be read of it: what it lacks then.

    PreconditionError when it runs, when it is no member of a cluster, when something would be lost for good
    that nobody accepts, or when what cannot be read are records of the node itself.
    """
    directory = parse(file.read_text(), os.environ, source=str(file)).node.data_directory
    held = claim(directory)
    try:
        return real_run(lambda: _recover(directory, accept_data_loss, keep_readable, dry_run))
    finally:
        os.close(held)


async def _recover(
    directory: str, accept_data_loss: bool, keep_readable: bool, dry_run: bool
) -> tuple[Recoverable, tuple[Lack, ...]]:
    runtime = real_runtime(directory)

    async def open_store(_runtime: Runtime) -> Store:
        # The store's library takes some time to load.
        from lockstep.storage.rocks.rocks import open_rocks_store

        return await open_rocks_store(os.path.join(directory, STORE_DIRECTORY), runtime.tasks)

    found = survey(runtime)
    lacks: tuple[Lack, ...] = ()
    if not dry_run:
        from lockstep.storage.rocks.rocks_errors import Salvage

        old = Salvage(os.path.join(directory, DAMAGED_DIRECTORY)) if keep_readable else None
        lacks = await recover_store(runtime, found, open_store, accept_data_loss=accept_data_loss, old=old)
    return found, lacks


#: How often a wait asks again.
POLL_S = 0.1
DRAIN_PATH = "/v1/drain"
SCRUB_PATH = "/v1/scrub"


@click.group()
def node() -> None:
    """One node."""


_config = click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path("lockstep.toml"),
    show_default=True,
    help="Configuration file; LOCKSTEP_<SECTION>_<KEY> in the environment wins over it.",
)


@node.command()
@_config
def run(file: Path) -> None:
    """Run a node in the foreground until it is interrupted."""
    # The node takes this process over, so signals and exit codes are its own.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "lockstep.server.main", "--config", str(file)])


@node.command()
@_config
@click.option("--accept-data-loss", is_flag=True, help="Go on without what no other node has.")
@click.option("--keep-readable", is_flag=True, help="Keep what can be read: give up the rest only.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@render.output
def recover(file: Path, accept_data_loss: bool, keep_readable: bool, dry_run: bool, output: str) -> None:
    """Give up the tables of a stopped node: once it is started, it is filled again from its replicas.

    Its identity, its tokens, its copy of the metadata and its votes stay. It takes writes as soon as it runs,
    and answers no reads, and counts as no replica in any other way, until it has everything again. The files
    that are given up are kept in `store-damaged`, in its data directory. With --keep-readable only what lies
    in damaged blocks of table files is given up: the rest is copied into new files.
    """
    found, lacks = recover_stopped(
        file, accept_data_loss=accept_data_loss, keep_readable=keep_readable, dry_run=dry_run
    )
    if output == "json":
        told = {"dry_run": dry_run, "keep_readable": keep_readable, "stretches_lacking": len(lacks)}
        render.json_out({**msgspec.to_builtins(found), **told}, "recover/1")
        return
    if keep_readable and not dry_run:
        click.echo(f"node {found.node} ({found.address}) keeps all but {render.counted(len(lacks), 'place')}")
        click.echo("start the node: other replicas fill them; `lockstep status` names tables and tokens")
        return
    would = "would be" if dry_run else "are"
    click.echo(
        f"the tables of node {found.node} ({found.address}) of cluster {found.cluster_name} {would} given up"
    )
    filled = ", ".join(found.elsewhere) or "nothing: no other node has any of its keyspaces"
    click.echo(f"filled from other nodes: {filled}")
    if found.alone:
        click.echo(f"lost where no other node has it: {', '.join(found.alone)}")
    if not dry_run:
        click.echo("start the node; `lockstep status` and `lockstep topology watch` show how far it is")


@node.command()
@render.of_call
def scrub(call: render.Call) -> int:
    """Check every table file of the node at --host against its checksums, and name those that are damaged.

    The node serves meanwhile: a process beside it does the work. Exit code 1 when a file is damaged or could
    not be checked.
    """
    admin = call.cluster().admin
    answer = admin.post(SCRUB_PATH, {})
    while answer["state"] == "running":
        time.sleep(POLL_S)
        answer = admin.get(SCRUB_PATH)
    if not call.as_json(answer, "scrub/1"):
        click.echo(f"node {answer['node']}: {render.counted(answer['checked'], 'table file')} checked")
        for one in answer["damaged"]:
            click.echo(f"damaged: {one['file']}, byte {one['offset']}: {one['content']}")
        for name, reason in answer["unchecked"]:
            click.echo(f"not checked: {name}: {reason}")
        if not answer["damaged"] and not answer["unchecked"]:
            click.echo("every file is whole")
    return 1 if answer["damaged"] or answer["unchecked"] else 0


@node.command()
@render.of_call
def info(call: render.Call) -> None:
    """Show the identity of the node at --host and how far it is."""
    answer = call.cluster().status()
    asked = answer.get("node") or {}
    same = [one for one in answer.get("nodes", []) if one.get("id") == asked.get("id")]
    own = same[0] if same else {}
    facts = {
        **own,
        **asked,
        "ready": answer.get("ready"),
        "epoch": answer.get("epoch"),
        "hash": answer.get("hash"),
    }
    if call.as_json(facts, "node/1"):
        return
    shown = {**facts, "owns": f"{float(facts.get('owns') or 0) * 100:.1f}%"}
    render.facts([(key.replace("_", " "), value) for key, value in shown.items()])


@node.command()
@render.of_change
def drain(call: render.Call) -> None:
    """Close the clients' door of the node at --host: what is in flight is answered, other clients are told.

    The node stays a replica and a voter until its process ends; it serves clients again after a restart.
    """
    admin = call.cluster().admin
    answer = admin.post(DRAIN_PATH, {"dry_run": call.dry_run})
    due_s = time.monotonic() + call.timeout_s
    while call.wait and not call.dry_run and answer["state"] != "drained":
        if time.monotonic() >= due_s:
            raise OutcomeUnknown("the node still answers requests", hint="the drain goes on; ask again")
        time.sleep(POLL_S)
        answer = admin.get(DRAIN_PATH)
    if call.as_json(answer, "drain/1"):
        return
    connections = render.counted(answer["connections"], "connection")
    clients = f"{connections}, {render.counted(answer['requests'], 'request')} in flight"
    if call.dry_run:
        click.echo(f"node {answer['node']} would close {clients}, in {answer['limit_ms'] / 1000:g} s at most")
        return
    cut = f"; cut off: {render.counted(answer['cut'], 'request')}" if answer["cut"] else ""
    click.echo(f"node {answer['node']} is {answer['state']}: {clients}{cut}")
