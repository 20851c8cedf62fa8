"""Owns `lockstep cms snapshots`, `snapshot` and `truncate`: what bounds the metadata log.

Invariant: the change is made by one entry; waiting for the nodes only tells when each has done its part, and
a wait that ends early never says that the change failed.
"""

from __future__ import annotations

from typing import Any

import click

from lockstep.cli.shared import client, options, render
from lockstep.cli.shared.node_waits import Unfinished, wait_for_nodes
from lockstep.documents import read
from lockstep.documents.service import ServicePlan


@click.command("snapshots")
@options.of_call
def snapshots(host: str, call_timeout_s: float, output: str) -> None:
    """Show the snapshots that a node keeps, and from which epoch on it has the log."""
    answer = client.connect(host, call_timeout_s).cms_snapshots()
    if output == "json":
        render.json_out(answer, "cms-snapshots/1")
        return
    render.document(answer)


@click.command("snapshot")
@click.option("--reason", default="", help="Kept in the log.")
@options.of_change
def snapshot(
    reason: str,
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    host: str,
    call_timeout_s: float,
    output: str,
) -> None:
    """Take a snapshot of the metadata now, on every node."""
    cluster = client.connect(host, call_timeout_s)
    answer = cluster.cms_snapshot(reason, dry_run=dry_run)
    if dry_run:
        show_plan(answer, output)
        return
    epoch = int(answer["epoch"])

    def unfinished(there: dict[str, Any]) -> str:
        if any(int(kept["epoch"]) >= epoch for kept in there.get("snapshots", [])):
            return ""
        return f"has not written the snapshot of epoch {epoch}"

    text = f"epoch {epoch}: every node writes its snapshot"
    _finished(cluster, answer, unfinished if wait else None, timeout_s, text, output)


@click.command("truncate")
@click.option("--epoch", type=int, help="Last epoch to drop; that of the latest snapshot by default.")
@options.of_change
def truncate(
    epoch: int | None,
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    host: str,
    call_timeout_s: float,
    output: str,
) -> None:
    """Let every node drop log entries that the latest snapshot holds."""
    cluster = client.connect(host, call_timeout_s)
    answer = cluster.cms_truncate(epoch, dry_run=dry_run)
    if dry_run:
        show_plan(answer, output)
        return
    at, wanted = int(answer["epoch"]), int(answer["truncated_epoch"])

    def unfinished(there: dict[str, Any]) -> str:
        if int(there.get("epoch", 0)) < at:
            return f"has not applied epoch {at}"
        return "" if int(there.get("truncated_here", 0)) >= wanted else f"keeps entries up to epoch {wanted}"

    text = f"epoch {at}: entries up to epoch {answer['truncated_epoch']} may go"
    _finished(cluster, answer, unfinished if wait else None, timeout_s, text, output)


def show_plan(plan: dict[str, Any], output: str) -> None:
    """Print a `cms-plan/1` document."""
    if output == "json":
        render.json_out(plan, "cms-plan/1")
        return
    told = read(ServicePlan, plan)
    click.echo(f"at epoch {told.epoch} this would be done:")
    for number, step in enumerate(told.steps, 1):
        click.echo(f"  {number}. {step}")
    if not told.steps:
        click.echo("  nothing")
    for name, what in (("waits for", told.waits_for), ("way back", told.way_back)):
        if what:
            click.echo(f"{name}: {what}")
    if told.changes:
        click.echo("the entry would change")
    for change in told.changes or ():
        before, after = (render.cell_text(value) for value in (change.before, change.after))
        click.echo(f"  {change.path}: {before or '(empty)'} -> {after or '(empty)'}")


def _finished(
    cluster: client.ClusterClient,
    answer: dict[str, Any],
    unfinished: Unfinished | None,
    timeout_s: float,
    text: str,
    output: str,
) -> None:
    if unfinished is not None:
        answer = {**answer, "nodes": wait_for_nodes(cluster, unfinished, timeout_s, text)}
    if output == "json":
        render.json_out(answer, "cms-change/1")
        return
    click.echo(text)
    for node in answer.get("nodes", []):
        if node["result"] == "down":
            click.echo(f"  node {node['node']} is down: it follows when it is back")
