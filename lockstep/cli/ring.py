"""Owns `lockstep ring`: nodes with their share of the ring, or the ranges of one keyspace."""

from __future__ import annotations

from typing import Any

import click

from lockstep.cli import client, options, render


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
        columns = ("id", "address", "dc", "rack", "state", "tokens")
        rows = [
            [*(node.get(name) for name in columns), f"{float(node.get('owns') or 0) * 100:.1f}%"]
            for node in answer.get("nodes", [])
        ]
        render.table(["node", *columns[1:], "owns"], rows)
        return
    answer = cluster.placements(keyspace)
    if output == "json":
        render.json_out(answer, "placements/1")
        return
    ranges = answer.get("ranges", [])
    click.echo(f"keyspace {keyspace}, epoch {answer.get('epoch', '?')}, {len(ranges)} ranges")
    render.table(
        ["from (exclusive)", "to (inclusive)", "read replicas", "write replicas"],
        [
            [r.get("start"), r.get("end"), _replicas(r.get("reads")), _replicas(r.get("writes"))]
            for r in ranges
        ],
    )


def _replicas(nodes: Any) -> str:
    return " ".join(str(node) for node in nodes or [])
