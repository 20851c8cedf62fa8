"""Owns `lockstep recovery metadata`: metadata as a file, and putting them on nodes past the groups.

Invariant: what changes something shows its plan first and asks, unless `--yes` says so; a file is checked
from its first record to its last before anything is asked of a node.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.cli import replacing
from lockstep.cli.shared import dumps, render
from lockstep.cli.shared.client import node_id
from lockstep.documents import read
from lockstep.documents.recovery import MetadataReplacement
from lockstep.documents.status import Status
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    from lockstep.metadata.log.snapshot_file import Dump

_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_dry = click.option("--dry-run", is_flag=True, help="Show the plan; change nothing.")
_voters = click.option(
    "--voters", metavar="NODE,...", help="Who votes from then on, by id, host id or address."
)


@click.group()
def metadata() -> None:
    """The metadata as a file, and putting them on nodes past the groups. The token of each node is needed."""


@metadata.command()
@click.argument("file", metavar="FILE")
@click.option("--epoch", type=int, help="Which epoch; the newest that the node applied by default.")
@render.of_call
def dump(file: str, epoch: int | None, call: render.Call) -> None:
    """Write what one node has to FILE, with the entries that led there: any node's will do, also a broken
    one's."""
    target = Path(file)
    if target.exists():
        raise ConfigurationError(f"{file} exists", hint="name a new file")
    asked = call.cluster()
    wanted = read(Status, asked.status()).epoch if epoch is None else epoch
    size = dumps.written(target, asked.cms_dump(wanted, entries=True))
    if not call.as_json({"file": file, "epoch": wanted, "size_bytes": size}, "cms-dump-file/1"):
        click.echo(f"{file}: the metadata at epoch {wanted}, {size} bytes")


@metadata.command()
@click.argument("file", metavar="FILE")
@render.output
def check(file: str, output: str) -> None:
    """Prove a file from its first record to its last, and show what it holds. No cluster is asked."""
    found = _read(file)
    value = found.value
    facts: dict[str, Any] = {
        "file": file,
        "cluster": {"id": value.identity.cluster_id, "name": value.identity.cluster_name},
        "epoch": value.epoch,
        "hash": value.hash.hex(),
        "entries": [one.epoch for one in found.entries],
        "voters": list(value.voters),
        "nodes": [
            {"id": one.id, "address": one.address, "state": one.state.value} for one in value.directory.nodes
        ],
        "keyspaces": [one.name for one in value.schema.keyspaces],
        "operations": len(value.operations),
    }
    if output == "json":
        render.json_out(facts, "metadata-check/1")
        return
    render.document(facts)


@metadata.command()
@click.argument("file", metavar="FILE")
@click.argument("target", metavar="TARGET")
@click.option("--up-to", type=click.IntRange(min=1), metavar="EPOCH", help="Leave out all behind this one.")
@click.option(
    "--without",
    "epochs",
    multiple=True,
    type=click.IntRange(min=2),
    metavar="EPOCH",
    help="Leave this entry out, and apply those behind it again; may be given repeatedly.",
)
@render.output
def edit(file: str, target: str, up_to: int | None, epochs: tuple[int, ...], output: str) -> None:
    """Compose metadata from those in FILE: what its entries come to when some are left out.

    No cluster is asked. Entries are applied by their own rules: one that needs what was left out is named.
    """
    from lockstep.metadata.log.snapshot_file import dump_file
    from lockstep.node.kinds import every_kind
    from lockstep.recovery.replacing import edited

    if Path(target).exists():
        raise ConfigurationError(f"{target} exists", hint="name a new file")
    found = _read(file)
    last = found.value.epoch if up_to is None else up_to
    if not found.base.epoch <= last <= found.value.epoch:
        raise ConfigurationError(
            f"{file} leads from epoch {found.base.epoch} to {found.value.epoch}, and not to {last}"
        )
    value = edited(found.base, found.entries, every_kind(), up_to=last, without=frozenset(epochs))
    size = dumps.written(Path(target), dump_file(value))
    if output == "json":
        render.json_out({"file": target, "epoch": value.epoch, "size_bytes": size}, "cms-dump-file/1")
        return
    click.echo(f"{target}: metadata of epoch {value.epoch}, {size} bytes; `check` shows them")


@metadata.command()
@click.argument("file", metavar="FILE")
@_voters
@_dry
@_yes
@render.of_call
def load(file: str, voters: str | None, yes: bool, call: render.Call) -> None:
    """Put the metadata in FILE in the place of those of every node that answers.

    They get an epoch above every known one and the cluster another id. Nothing asks whether the groups live:
    nodes are silent in them from the moment they have the plan.
    """
    _load(file, voters, None, yes, call)


@metadata.command()
@click.argument("file", metavar="FILE")
@click.option(
    "--nodes", required=True, metavar="NODE,...", help="On these nodes only, by id, host id or address."
)
@_voters
@_dry
@_yes
@render.of_call
def inject(file: str, nodes: str, voters: str | None, yes: bool, call: render.Call) -> None:
    """Put the metadata in FILE on some nodes: they go on by themselves, under another cluster id.

    Others come by `recovery cluster migrate`, or as new ones. Else as `load`.
    """
    _load(file, voters, nodes, yes, call)


@metadata.command("force-cms")
@click.argument("group", type=click.Choice(["cmg", "metastorage"]))
@click.option("--voters", required=True, metavar="NODE,...", help="Who votes, by id, host id or address.")
@click.option("--nodes", metavar="NODE,...", help="With these nodes only; all that answer when absent.")
@_dry
@_yes
@render.of_call
def force_cms(group: str, voters: str, nodes: str | None, yes: bool, call: render.Call) -> None:
    """Make nodes the voters, without asking the groups. One is enough: it goes on from there by itself.

    Both groups have the same voters, so both get these, whichever is named. `recovery cluster reset` does the
    same when a majority is gone, and keeps what logs have beyond what was applied.
    """
    _put(call, yes, nodes, lambda client, wish: client.force_cms(group, wish | {"voters": _names(voters)}))


def _load(file: str, voters: str | None, nodes: str | None, yes: bool, call: render.Call) -> None:
    from lockstep.recovery.replacing import packed

    told = base64.b64encode(packed(_read(file).value)).decode()
    more = {"value": told, "voters": _names(voters)}
    _put(call, yes, nodes, lambda client, wish: client.metadata_load(wish | more))


def _put(call: render.Call, yes: bool, nodes: str | None, plan: Any) -> None:
    asked = call.cluster()
    listed = asked.node_list()
    names = _names(nodes)
    wanted = {node_id(listed, name) for name in names}
    sites = replacing.look(asked, [one for one in listed if not wanted or one.id in wanted], 0)
    if replacing.went_on(sites, dry_run=call.dry_run):
        return
    planner = sites.planner
    answer = plan(sites.clients[planner], sites.wish(nodes=names))
    planned = read(MetadataReplacement, answer)
    if call.dry_run:
        if not call.as_json(answer, "metadata-replacement/1"):
            replacing.show(planned)
        return
    if call.output != "json":
        replacing.show(planned)
    render.confirm(yes, "The metadata of these nodes are replaced. Go on?")
    late = replacing.carry_out(sites, planned, planner)
    if not call.as_json(answer, "metadata-replacement/1"):
        replacing.end(sites, planned, planner, late)


def _names(texts: str | None) -> list[str]:
    return [name.strip() for name in (texts or "").split(",") if name.strip()]


def _read(file: str) -> Dump:
    from lockstep.metadata.log.snapshot_file import load_file
    from lockstep.node.kinds import every_kind

    return load_file(dumps.parts(Path(file)), every_kind(), file)
