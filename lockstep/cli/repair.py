"""Owns `lockstep repair`: make replicas equal that missed writes, and watch it happen.

Invariant: nothing here decides what is compared; the node that is asked does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lockstep.cli.shared import client, completion, render, runs
from lockstep.cli.shared.plans import show_changes
from lockstep.documents import read
from lockstep.documents.runs import Disagreement, Repair, RepairPlan


@click.command()
@click.argument("what", metavar="[KEYSPACE[.TABLE]]", default="", shell_complete=completion.tables)
@click.option("--full", "mode", flag_value="full", help="Compare all data, of tracked tables with ids.")
@click.option("--incremental", "mode", flag_value="incremental", help="Only what changed since.")
@click.option("--dc", "dcs", multiple=True, metavar="DC", help="Only replicas in these; records nothing.")
@click.option("--hosts", multiple=True, metavar="NODE", help="Only these replicas; records nothing.")
@click.option("--range", "ranges", multiple=True, metavar="LEFT:RIGHT", help="Tokens above LEFT up to RIGHT.")
@click.option("--preview", is_flag=True, help="As --dry-run.")
@click.option("--cancel", type=int, metavar="ID", help="End this repair instead.")
@render.of_change
def repair(
    what: str,
    mode: str | None,
    dcs: tuple[str, ...],
    hosts: tuple[str, ...],
    ranges: tuple[str, ...],
    preview: bool,
    cancel: int | None,
    call: render.Call,
) -> int:
    """Make the replicas of a table, a keyspace or everything equal, wherever they missed writes.

    The node that is asked compares hashes of all replicas and sends each what it lacks; of tracked tables it
    waits until all replicas hold by id what any of them holds, and compares with --full only. With all
    replicas taking part, it is recorded that the ranges were repaired, and they are degraded no more.
    """
    cluster = call.cluster()
    if cancel is not None:
        return _show(cluster.cancel_repair(cancel), call)
    keyspace, _, table = what.partition(".")
    body: dict[str, Any] = {
        "keyspace": keyspace,
        "table": table,
        "incremental": mode == "incremental",
        "full": mode == "full",
        "dcs": list(dcs),
        "ranges": [_range(text) for text in ranges],
    }
    if hosts:
        nodes = cluster.node_list()
        body["hosts"] = [client.node_id(nodes, name) for text in hosts for name in text.split(",")]
    if call.dry_run or preview:
        _show_plan(cluster.begin_repair({**body, "dry_run": True}), call)
        return 0
    begun = cluster.begin_repair(body)
    found = runs.follow(begun, "repair", cluster.repair, headline, call.timeout_s) if call.wait else begun
    return _show(found, call)


def _show(found: Mapping[str, Any], call: render.Call) -> int:
    runs.show(found, headline, call, "repair/1")
    progress = read(Repair, found).progress
    for one in progress.disagree if progress is not None and call.output != "json" else ():
        click.echo(f"  {_disagreement(one)}")
    return 1 if found["state"] == "failed" else 0


def _disagreement(one: Disagreement) -> str:
    """Which replica's data lacks what its ids claim, or that nobody's ids claim it."""
    lacking = ", ".join(f"node {lack.node} lacked {render.counted(lack.count, 'row')}" for lack in one.lacks)
    holding = ", ".join(f"node {node}" for node in one.holds)
    holding = f" that {holding} had" if holding else " that others had"
    why = "its ids claim them: data is wrong" if one.wrong == "data" else "more lack them: ids are wrong"
    left, right = one.range
    return f"{one.keyspace}.{one.table} key 0x{one.key} in ({left}, {right}]: {lacking}{holding}; {why}"


def _range(text: str) -> list[int]:
    left, separator, right = text.rpartition(":")
    try:
        if separator:
            return [int(left), int(right)]
    except ValueError:
        pass
    raise click.UsageError(f"{text!r} is not LEFT:RIGHT, two tokens")


def headline(found: Mapping[str, Any]) -> str:
    told = read(Repair, found)
    progress, facts = told.progress, [f"repair {told.id} {told.state}"]
    if progress is not None:
        facts.append(f"{progress.ranges_done} of {render.counted(progress.ranges, 'range')}")
        facts.append(f"{progress.leaves_different} of {progress.leaves} leaves differed")
        if progress.ids_lacking:
            most = max(progress.waits_for, key=lambda one: one.lacking)
            where = f"{most.lacking} of ({most.left}, {most.right}]"
            facts.append(f"{render.counted(progress.ids_lacking, 'id')} lacking, {where}")
        if progress.disagreements:
            disagreed = render.counted(progress.disagreements, "partition")
            facts.append(f"data and ids disagreed in {disagreed}")
        sent = render.bytes_text(progress.bytes_sent)
        facts.append(f"{render.counted(progress.changes_sent, 'change')} sent ({sent})")
    return ", ".join(facts)


def _show_plan(answer: Mapping[str, Any], call: render.Call) -> None:
    if call.as_json(answer, "repair-plan/1"):
        return
    plan = read(RepairPlan, answer)
    if plan.refused:
        click.echo(f"would be refused: {plan.refused}")
    kind = "incremental" if plan.incremental else "full"
    click.echo(f"{kind} repair, driven by node {plan.driver}")
    render.table(
        ["keyspace", "tables", "ranges"],
        [[one.keyspace, ", ".join(one.tables), one.ranges] for one in plan.keyspaces],
    )
    render.table(
        ["participant", "compares"],
        [
            [f"node {one.node}", "unknown" if one.bytes is None else render.bytes_text(one.bytes)]
            for one in plan.participants
        ],
    )
    runs.show_steps(plan.steps)
    click.echo(f"records: {plan.records}")
    click.echo(f"way back: {plan.way_back}")
    show_changes("the first entry would change", plan.changes)
