"""Owns `lockstep gossip`: what nodes say of themselves, and how alive they seem, from one node's view.

Invariant: nothing shown here decides anything; who owns what is in the metadata.
"""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET, UnsetType

from lockstep.cli.shared import client, options, render
from lockstep.documents import read
from lockstep.documents.gossip import Gossip, GossipNode

SCHEMA = "gossip/1"


@click.group()
def gossip() -> None:
    """What nodes tell each other beside the metadata."""


@gossip.command()
@click.option("--node", metavar="NODE", help="Only this node: its id, host id or address.")
@options.of_call
def info(node: str | None, host: str, call_timeout_s: float, output: str) -> None:
    """Show load, readiness, release and silence of each node, as the node that is asked knows them."""
    answer = client.connect(host, call_timeout_s).gossip(node)
    if output == "json":
        render.json_out(answer, SCHEMA)
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
