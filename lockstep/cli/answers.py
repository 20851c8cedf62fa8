"""Owns the commands that show one answer of a node: `ring`, `describe`, `features` and `gossip`.

Invariant: nothing shown here decides anything; who owns what is in the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec import UNSET, UnsetType

from lockstep.cli.shared import completion, render
from lockstep.documents import read
from lockstep.documents.status import (
    Description,
    Feature,
    Features,
    Gossip,
    GossipInjection,
    GossipNode,
    Nodes,
    Placements,
)


@click.command()
@click.argument("name", metavar="[KEYSPACE[.TABLE]]", required=False, shell_complete=completion.keyspaces)
@render.of_call
def ring(name: str | None, call: render.Call) -> None:
    """Show each node's share of the ring; with KEYSPACE, who holds each range of it.

    In a keyspace with tablets each table has ranges of its own: name the table, too.
    """
    cluster = call.cluster()
    if name is None:
        answer = cluster.nodes()
        if call.as_json(answer, "nodes/1"):
            return
        rows = [
            [one.id, one.address, one.dc, one.rack, one.state, one.tokens, f"{(one.owns or 0) * 100:.1f}%"]
            for one in read(Nodes, answer).nodes
        ]
        render.table(["node", "address", "dc", "rack", "state", "tokens", "owns"], rows)
        return
    answer = cluster.placements(*_parts(name))
    if call.as_json(answer, "placements/1"):
        return
    placed = read(Placements, answer)
    kind = "table" if placed.table else "keyspace"
    click.echo(f"{kind} {name}, epoch {placed.epoch}, {len(placed.ranges)} ranges")
    render.table(
        ["from (exclusive)", "to (inclusive)", "read replicas", "write replicas"],
        [[one.start, one.end, _replicas(one.reads), _replicas(one.writes)] for one in placed.ranges],
    )


def _replicas(nodes: Sequence[int]) -> str:
    return " ".join(map(str, nodes))


@click.command()
@click.argument("name", metavar="KEYSPACE[.TABLE]", shell_complete=completion.tables)
@render.of_call
def describe(name: str, call: render.Call) -> None:
    """Print the CQL that makes a keyspace with its tables, or one table.

    Names are taken as they are stored; double quotes around them, as CQL has them, do no harm.
    """
    keyspace, table = _parts(name)
    answer = call.cluster().describe(keyspace, table)
    if call.as_json(answer, "describe/1"):
        return
    click.echo("\n\n".join(statement.cql for statement in read(Description, answer).statements))


def _parts(name: str) -> tuple[str, str | None]:
    """Keyspace and table of a name; neither can have a dot or a quote inside."""
    keyspace, _, table = name.partition(".")
    return keyspace.strip('"'), table.strip('"') or None


@click.command()
@render.of_call
def features(call: render.Call) -> None:
    """Show which features the nodes support and which the cluster has enabled.

    A feature is enabled for good once every node supports it and has seen that all do. A node that lacks an
    enabled one neither joins nor starts.
    """
    answer = call.cluster().features()
    if call.as_json(answer, "features/1"):
        return
    listed = read(Features, answer).features
    render.table(
        ["feature", "state", "nodes that support it", "what it is"],
        [[one.name, _state(one), " ".join(map(str, one.supported_by)), one.description] for one in listed],
    )
    for one in listed:
        for reason in one.waits:
            click.echo(f"{one.name} waits: {reason}")


def _state(feature: Feature) -> str:
    if feature.enabled:
        return "enabled"
    lacking = ", ".join(map(str, feature.lacking))
    return f"nodes {lacking} lack it" if lacking else "about to be enabled"


SCHEMA = "gossip/1"


@click.group()
def gossip() -> None:
    """What nodes tell each other beside the metadata."""


@gossip.command()
@click.option("--node", metavar="NODE", help="Only this node: its id, host id or address.")
@render.of_call
def info(node: str | None, call: render.Call) -> None:
    """Show load, readiness, release and silence of each node, as the node that is asked knows them."""
    answer = call.cluster().gossip(node)
    if call.as_json(answer, SCHEMA):
        return
    if node is not None:
        for key, value in answer["nodes"][0].items():
            click.echo(f"{key}: {_plain(value)}")
        return
    told = read(Gossip, answer)
    render.table(
        ["node", "address", "state", "alive", "phi", "silent", "ready", "load", "release", "epoch", "streams",
         "up", "age"],
        [_row(found) for found in told.nodes],
    )  # fmt: skip
    click.echo(f"seen from node {told.asked}; suspected from phi {told.phi_threshold:g} on")


@gossip.command()
@click.argument("node", type=int)
@click.option("--ready/--not-ready", "ready", default=None, help="Whether it serves clients.")
@click.option("--epoch", type=int, help="Which epoch it has applied.")
@click.option("--load-bytes", type=int, help="What it stores.")
@click.option("--release", metavar="TEXT", help="Its release, as drivers see it.")
@click.option("--dry-run", is_flag=True, help="Show what would be told; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@render.of_call
def inject(node: int, yes: bool, call: render.Call, **told: Any) -> None:
    """Have the asked node tell all others what NODE says of itself, in its place: on the ring without a log,
    where states of nodes got inconsistent on the way to one.

    It orders replicas and is shown; no metadata come of it. A node that lives says the truth again within
    seconds. The token of the asked node is needed, and its audit has it.
    """
    changes = {name: value for name, value in told.items() if value is not None}
    if not changes:
        raise click.UsageError("say what is told: --ready, --not-ready, --epoch, --load-bytes, --release")
    asked = call.cluster()
    answer = asked.gossip_inject({"node": node, **changes, "dry_run": True})
    if not call.dry_run:
        if call.output != "json":
            _show_injection(read(GossipInjection, answer), "would be told")
        render.confirm(yes, f"All nodes are told this of node {node}. Go on?")
        answer = asked.gossip_inject({"node": node, **changes})
    if not call.as_json(answer, "gossip-injection/1"):
        _show_injection(read(GossipInjection, answer), "would be told" if call.dry_run else "is told")


def _show_injection(told: GossipInjection, how: str) -> None:
    render.table(
        [f"node {told.node}", "ready", "epoch", "load", "release"],
        [
            [name, one.ready, one.epoch, one.load_bytes if one.load_bytes >= 0 else "", one.release]
            for name, one in (("was", told.before), (how, told.after))
        ],
    )
    click.echo(f"generation {told.generation}, version {told.version}")
    if told.alive:
        click.echo(f"node {told.node} is up: it says the truth again with its next rounds")


def _row(node: GossipNode) -> list[str]:
    alive = "up" if node.alive else "down"
    if alive == "up" and not node.preferred:
        alive = "not ready" if node.ready is False else "slow"
    if node.excluded:
        alive = "excluded"
    return [
        str(node.node),
        node.address,
        node.state,
        alive,
        f"{node.phi:.1f}",
        f"{node.silent_s:.1f} s" if node.silent_s is not None else "never heard",
        _plain(node.ready) if node.heard else "",
        render.bytes_text(node.load_bytes) if isinstance(node.load_bytes, int) else "",
        _told(node.release),
        _told(node.epoch),
        _told(node.streams),
        f"{node.uptime_s} s" if node.heard else "",
        f"{node.age_s:.1f} s" if node.heard else "",
    ]


def _told(value: int | str | UnsetType) -> str:
    return "" if value is UNSET else str(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
