"""Owns `lockstep features`: what each node supports, and what the cluster has enabled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lockstep.cli.shared import client, options, render


@click.command()
@options.of_call
def features(host: str, call_timeout_s: float, output: str) -> None:
    """Show which features the nodes support and which the cluster has enabled.

    A feature is enabled for good once every node supports it and has seen that all do. A node that lacks an
    enabled one neither joins nor starts.
    """
    answer = client.connect(host, call_timeout_s).features()
    if output == "json":
        render.json_out(answer, "features/1")
        return
    listed = answer.get("features", [])
    render.table(
        ["feature", "state", "nodes that support it", "what it is"],
        [
            [one["name"], _state(one), " ".join(map(str, one["supported_by"])), one["description"]]
            for one in listed
        ],
    )
    for one in listed:
        for reason in one["waits"]:
            click.echo(f"{one['name']} waits: {reason}")


def _state(feature: Mapping[str, Any]) -> str:
    if feature["enabled"]:
        return "enabled"
    lacking = ", ".join(map(str, feature["lacking"]))
    return f"nodes {lacking} lack it" if lacking else "about to be enabled"
