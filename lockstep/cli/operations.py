"""Owns how topology requests look in text.

Invariant: the first line says what the request is and how it stands; everything else is indented below it or
a table, so that the first line alone is enough for a person in a hurry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from lockstep.cli import render
from lockstep.cli.plans import show_changes, title
from lockstep.cli.status import progress_text, waiting_lines

#: Degraded ranges that giving a node up lists in text: a node has hundreds.
DEGRADED_SHOWN_MAX: Final = 8
_COLOURS: Final = {"done": "green", "failed": "red", "cancelled": "yellow"}


def show_request(request: Mapping[str, Any]) -> None:
    """Print a `request/1` document: one line, then whom it waits for."""
    state = str(request.get("state") or "unknown")
    moved = progress_text(request.get("progress") or {})
    facts = [fact for fact in (title(request), _where(request), _epochs(request), moved) if fact]
    reason = request.get("error") or request.get("reason")
    line = f"request {request.get('id')} {state}" + (f": {', '.join(facts)}" if facts else "")
    click.echo(render.styled(line, _COLOURS.get(state, "")) if state in _COLOURS else line)
    if reason:
        click.echo(f"  {reason}")
    for waits in waiting_lines(request):
        click.echo(f"  {waits}")


def show_forced(answer: Mapping[str, Any]) -> None:
    """Print a `force-remove/1` document: what was given up, or would be."""
    verb = "would be" if answer.get("dry_run") else "was"
    degraded = answer.get("degraded") or []
    click.echo(f"node {answer.get('node')} {verb} given up at epoch {answer.get('epoch')}")
    if answer.get("waits_for"):
        click.echo(f"not yet: {answer['waits_for']}")
    click.echo(f"way back: {answer.get('way_back')}")
    click.echo(f"degraded until they are repaired: {render.counted(len(degraded), 'range')}")
    shown = degraded[:DEGRADED_SHOWN_MAX]
    for one in shown:
        lacking = ", ".join(f"node {node} may lack writes" for node in one.get("missing") or [])
        lacking = lacking or "nobody is sure to have all"
        click.echo(f"  ({one['left']}, {one['right']}] of {one['replication']}: {lacking}")
    if len(degraded) > len(shown):
        click.echo(f"  and {len(degraded) - len(shown)} more (-o json lists them)")
    show_changes("the entry would change", answer.get("changes") or [])


def show_excluded(answer: Mapping[str, Any]) -> None:
    """Print an `excluded/1` document."""
    listed, planned = answer.get("excluded", []), bool(answer.get("dry_run"))
    if not listed:
        click.echo(f"no node {'would be' if planned else 'is'} excluded")
    for one in listed:
        if planned and one["since_epoch"] > answer.get("epoch", 0):
            click.echo(f"node {one['node']} would be excluded: {one['reason']}")
        else:
            click.echo(f"node {one['node']} is excluded since epoch {one['since_epoch']}: {one['reason']}")


def progress_lines(request: Mapping[str, Any]) -> list[str]:
    """What a waiting command tells: the stage and what was moved, then whom it waits for.

    Ages are left out, so that a line is told when something changes and not each time it is asked.
    """
    moved = progress_text(request.get("progress") or {}, ages=False)
    facts = [str(request.get("stage") or request.get("state")), moved]
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
