"""Owns `lockstep ring`: nodes with their share of the ring, or the ranges of one keyspace."""

from __future__ import annotations

from collections.abc import Sequence

import click

from lockstep.cli.shared import client, options, render
from lockstep.documents import read
from lockstep.documents.placements import Placements
from lockstep.documents.status import Nodes


@click.command()
@click.argument("keyspace", required=False)
@options.of_call
def ring(keyspace: str | None, host: str, call_timeout_s: float, output: str) -> None:
    """Show each node's share of the ring; with KEYSPACE, who holds each range of it."""
    cluster = client.connect(host, call_timeout_s)
    if keyspace is None:
        answer = cluster.nodes()
        if output == "json":
            render.json_out(answer, "nodes/1")
            return
        rows = [
            [one.id, one.address, one.dc, one.rack, one.state, one.tokens, f"{(one.owns or 0) * 100:.1f}%"]
            for one in read(Nodes, answer).nodes
        ]
        render.table(["node", "address", "dc", "rack", "state", "tokens", "owns"], rows)
        return
    answer = cluster.placements(keyspace)
    if output == "json":
        render.json_out(answer, "placements/1")
        return
    placed = read(Placements, answer)
    click.echo(f"keyspace {keyspace}, epoch {placed.epoch}, {len(placed.ranges)} ranges")
    render.table(
        ["from (exclusive)", "to (inclusive)", "read replicas", "write replicas"],
        [[one.start, one.end, _replicas(one.reads), _replicas(one.writes)] for one in placed.ranges],
    )


def _replicas(nodes: Sequence[int]) -> str:
    return " ".join(map(str, nodes))
