"""Owns how topology requests look in text.

Invariant: the first line says what the request is and how it stands; everything else is indented below it or
a table, so that the first line alone is enough for a person in a hurry.
"""

from __future__ import annotations

from typing import Final

import click

from lockstep.cli.shared import render
from lockstep.cli.shared.plans import show_changes, title
from lockstep.cli.status import progress_text, stage_text, waiting_lines
from lockstep.documents.plans import ForceRemove
from lockstep.documents.requests import Request
from lockstep.documents.status import ExcludedNodes

#: Degraded ranges that giving a node up lists in text: a node has hundreds.
DEGRADED_SHOWN_MAX: Final = 8
_COLOURS: Final = {"done": "green", "failed": "red", "cancelled": "yellow"}


def show_request(request: Request) -> None:
    """Print a `request/1` document: one line, then whom it waits for."""
    state, moved = request.state, progress_text(request.progress)
    facts = [fact for fact in (title(request), _where(request), _epochs(request), moved) if fact]
    line = f"request {request.id} {state}" + (f": {', '.join(facts)}" if facts else "")
    click.echo(render.styled(line, _COLOURS.get(state, "")) if state in _COLOURS else line)
    if request.reason:
        click.echo(f"  {request.reason}")
    for waits in waiting_lines(request.waiting):
        click.echo(f"  {waits}")


def show_forced(told: ForceRemove) -> None:
    """Print a `force-remove/1` document: what was given up, or would be."""
    verb = "would be" if told.dry_run else "was"
    click.echo(f"node {told.node} {verb} given up at epoch {told.epoch}")
    if told.waits_for:
        click.echo(f"not yet: {told.waits_for}")
    click.echo(f"way back: {told.way_back}")
    click.echo(f"degraded until they are repaired: {render.counted(len(told.degraded), 'range')}")
    shown = told.degraded[:DEGRADED_SHOWN_MAX]
    for one in shown:
        lacking = ", ".join(f"node {node} may lack writes" for node in one.missing)
        lacking = lacking or "nobody is sure to have all"
        click.echo(f"  ({one.left}, {one.right}] of {one.replication}: {lacking}")
    if len(told.degraded) > len(shown):
        click.echo(f"  and {len(told.degraded) - len(shown)} more (-o json lists them)")
    show_changes("the entry would change", told.changes)


def show_excluded(told: ExcludedNodes) -> None:
    """Print an `excluded/1` document."""
    if not told.excluded:
        click.echo(f"no node {'would be' if told.dry_run else 'is'} excluded")
    for one in told.excluded:
        if told.dry_run and one.since_epoch > told.epoch:
            click.echo(f"node {one.node} would be excluded: {one.reason}")
        else:
            click.echo(f"node {one.node} is excluded since epoch {one.since_epoch}: {one.reason}")


def progress_lines(request: Request, *, counts: bool = True) -> list[str]:
    """What a waiting command tells: the stage and what was moved (not without `counts`), then whom it waits
    for.

    Ages are left out, so that a line is told when something changes and not each time it is asked.
    """
    moved = progress_text(request.progress, ages=False) if counts else ""
    facts = [request.stage or request.state, moved]
    lines = [f"request {request.id}: {', '.join(fact for fact in facts if fact)}"]
    lines += [f"  {line.rpartition(' (')[0] or line}" for line in waiting_lines(request.waiting)]
    return lines


def epochs_text(request: Request) -> str:
    """`8 to 12` of one that ended, `from 8` of one that runs."""
    began = request.began_epoch or request.requested_epoch
    if began is None:
        return ""
    return f"from {began}" if request.ended_epoch is None else f"{began} to {request.ended_epoch}"


def _where(request: Request) -> str:
    if not request.stage:
        return ""
    moved = progress_text(request.progress)
    return stage_text(request) + (f", {moved}" if moved else "")


def _epochs(request: Request) -> str:
    return f"epochs {epochs_text(request)}" if request.ended_epoch is not None else ""
