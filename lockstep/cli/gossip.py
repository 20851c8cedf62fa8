"""Owns `lockstep gossip`: what nodes say of themselves, and how alive they seem, from one node's view.

Invariant: nothing shown here decides anything; who owns what is in the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lockstep.cli import client, options, render

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
    render.table(
        ["node", "address", "state", "alive", "phi", "silent", "ready", "load", "release", "epoch", "streams",
         "up", "age"],
        [_row(found) for found in answer.get("nodes", [])],
    )  # fmt: skip
    click.echo(f"seen from node {answer.get('asked')}; suspected from phi {answer.get('phi_threshold'):g} on")


def _row(node: Mapping[str, Any]) -> list[str]:
    heard = bool(node.get("heard"))
    alive = "up" if node.get("alive") else "down"
    if alive == "up" and not node.get("preferred"):
        alive = "slow" if node.get("ready", True) else "not ready"
    if node.get("excluded"):
        alive = "excluded"
    silent_s, load = node.get("silent_s"), node.get("load_bytes")
    return [
        str(node.get("node")),
        str(node.get("address")),
        str(node.get("state")),
        alive,
        f"{float(node.get('phi', 0)):.1f}",
        f"{silent_s:.1f} s" if silent_s is not None else "never heard",
        _plain(node.get("ready")) if heard else "",
        render.bytes_text(int(load)) if load is not None else "",
        str(node.get("release", "")),
        str(node.get("epoch", "")),
        str(node.get("streams", "")),
        f"{node['uptime_s']} s" if heard else "",
        f"{node['age_s']:.1f} s" if heard else "",
    ]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
