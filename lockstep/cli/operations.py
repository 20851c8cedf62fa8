"""Owns how topology requests and their plans look in text.

Invariant: the first line says what the request is and how it stands; everything else is indented below it or
a table, so that the first line alone is enough for a person in a hurry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from lockstep.cli import render
from lockstep.cli.status import progress_text, waiting_lines

#: A value of the metadata is cut here in a plan; `-o json` has it whole.
VALUE_WIDTH_MAX: Final = 60
_COLOURS: Final = {"done": "green", "failed": "red", "cancelled": "yellow"}


def title(request: Mapping[str, Any]) -> str:
    """`decommission of node 4`, as far as it is known."""
    parts = [str(request.get("kind") or "")]
    if request.get("node") is not None:
        parts.append(f"of node {request['node']}")
    return " ".join(part for part in parts if part)


def show_request(request: Mapping[str, Any]) -> None:
    """Print a `request/1` document: one line, then whom it waits for."""
    state = str(request.get("state") or "unknown")
    facts = [fact for fact in (title(request), _where(request), _epochs(request)) if fact]
    reason = request.get("error") or request.get("reason")
    line = f"request {request.get('id')} {state}" + (f": {', '.join(facts)}" if facts else "")
    click.echo(render.styled(line, _COLOURS.get(state, "")) if state in _COLOURS else line)
    if reason:
        click.echo(f"  {reason}")
    for waits in waiting_lines(request):
        click.echo(f"  {waits}")


def show_plan(plan: Mapping[str, Any]) -> None:
    """Print a `request-plan/1` document: what would happen, step by step, and what it would change."""
    click.echo(f"{title(plan)} at epoch {plan.get('epoch')}: {plan.get('ranges')} ranges get other replicas")
    click.echo(f"way back: {plan.get('way_back')}")
    received = [f"node {one['node']} gets {one['ranges']}" for one in plan.get("receives") or []]
    if received:
        click.echo(f"ranges received: {', '.join(received)}")
    moves = [f"{m['source']} to {m['target']}: {m['ranges']}" for m in plan.get("moves") or []]
    if moves:
        click.echo(f"ranges to copy, from node to node: {', '.join(moves)}")
    if plan.get("starved"):
        click.echo(f"{plan['starved']} ranges wait for replicas that are down")
    if plan.get("point_of_no_return"):
        click.echo(f"point of no return: {plan['point_of_no_return']}")
    steps = [dict(step) for step in plan.get("steps") or []]
    if steps:
        click.echo()
        columns = list(dict.fromkeys(name for step in steps for name in step))
        render.table(columns, [[step.get(name, "") for name in columns] for step in steps])
    changes = plan.get("changes") or []
    if changes:
        click.echo("\nthe first entry would change")
    for change in changes:
        click.echo(f"  {_change(change)}")


def show_forced(answer: Mapping[str, Any]) -> None:
    """Print a `force-remove/1` document: what was given up, or would be."""
    verb = "would be" if answer.get("dry_run") else "was"
    degraded = answer.get("degraded") or []
    click.echo(f"node {answer.get('node')} {verb} given up at epoch {answer.get('epoch')}")
    click.echo(f"way back: {answer.get('way_back')}")
    click.echo(f"degraded until they are repaired: {len(degraded)} ranges")
    for one in degraded:
        lacking = ", ".join(f"node {node} may lack writes" for node in one.get("missing") or [])
        lacking = lacking or "nobody is sure to have all"
        click.echo(f"  ({one['left']}, {one['right']}] of {one['replication']}: {lacking}")


def progress_lines(request: Mapping[str, Any]) -> list[str]:
    """What a waiting command tells: the stage and what was moved, then whom it waits for.

    Ages are left out, so that a line is told when something changes and not each time it is asked.
    """
    facts = [str(request.get("stage") or request.get("state")), progress_text(request.get("progress") or {})]
    lines = [f"request {request.get('id')}: {', '.join(fact for fact in facts if fact)}"]
    lines += [f"  {line.rpartition(' (')[0] or line}" for line in waiting_lines(request)]
    return lines


def epochs_text(request: Mapping[str, Any]) -> str:
    """`8 to 12` of one that ended, `from 8` of one that runs."""
    began = request.get("began_epoch") or request.get("requested_epoch")
    if began is None:
        return ""
    ended = request.get("ended_epoch")
    return f"from {began}" if ended is None else f"{began} to {ended}"


def _where(request: Mapping[str, Any]) -> str:
    stage = request.get("stage")
    if not stage:
        return ""
    since = f" since epoch {request['stage_epoch']}" if request.get("stage_epoch") else ""
    moved = progress_text(request.get("progress") or {})
    return f"stage {stage}{since}" + (f", {moved}" if moved else "")


def _epochs(request: Mapping[str, Any]) -> str:
    return f"epochs {epochs_text(request)}" if request.get("ended_epoch") is not None else ""


def _change(change: Mapping[str, Any]) -> str:
    before, after = _short(change.get("before")), _short(change.get("after"))
    path = change.get("path")
    if before is None:
        return f"{path}: new, {after}"
    return f"{path}: {before} goes" if after is None else f"{path}: {before} -> {after}"


def _short(value: Any) -> str | None:
    if value is None:
        return None
    text = render.cell_text(value)
    return text if len(text) <= VALUE_WIDTH_MAX else text[: VALUE_WIDTH_MAX - 1] + "…"
