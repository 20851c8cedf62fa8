"""Owns plans in text and in files: what a dry run prints, what `--plan` writes, what `topology apply` reads.

Invariant: a plan file holds the very request it was made for and the state it was made against; nothing in it
is computed here, so applying it asks for exactly what was shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import click

from lockstep.cli.shared import render
from lockstep.documents import read as read_document
from lockstep.documents.requests import Change, Estimate, Move, PlannedStep, RequestPlan
from lockstep.values.errors import ConfigurationError

SCHEMA: Final = "plan/1"
#: A value of the metadata is cut here in a plan; `-o json` has it whole.
VALUE_WIDTH_MAX: Final = 60
_PLACEMENTS: Final = "placements."
#: How a difference writes a record of the metadata.
_RECORD: Final = re.compile(r"[A-Z]\w*\(")
#: What plan files may ask for, and where.
PATHS: Final = {"request": "/v1/requests", "exclude": "/v1/excluded"}


def write(path: str, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Write a dry run's answer as a plan. ConfigurationError when the file exists or cannot be written."""
    asked = {name: value for name, value in request.items() if name not in ("dry_run", "base")}
    document = {
        "schema": SCHEMA,
        "operation": operation,
        "request": asked,
        "base": answer.get("base"),
        "plan": {name: value for name, value in answer.items() if name != "base"},
    }
    try:
        with Path(path).open("x") as out:
            out.write(json.dumps(document, indent=2) + "\n")
    except FileExistsError:
        raise ConfigurationError(f"{path} exists", hint="name a new file") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def read(path: str) -> dict[str, Any]:
    """A plan file. ConfigurationError for anything else."""
    try:
        document = json.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no plan: {error}") from error
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or document.get("operation") not in PATHS
        or not isinstance(document.get("request"), dict)
        or not isinstance(document.get("base"), dict)
    ):
        raise ConfigurationError(f"{path} is no plan", hint="an operation's --plan FILE writes one")
    return document


class Titled(Protocol):
    """A request, or a plan of one."""

    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> int | None: ...
    @property
    def keyspace(self) -> str | None: ...
    @property
    def replication(self) -> dict[str, str] | None: ...
    @property
    def replaced(self) -> int | None: ...


def title(request: Titled) -> str:
    """`decommission of node 4`, `replace of node 2 by node 5`, as far as it is known."""
    parts = [request.kind]
    if request.replaced:
        parts.append(f"of node {request.replaced} by node {request.node}")
    elif request.node:
        parts.append(f"of node {request.node}")
    if request.keyspace:
        parts.append(f"of keyspace {request.keyspace}")
    if request.replication:
        parts.append(f"to {replication_text(request.replication)}")
    return " ".join(part for part in parts if part)


def replication_text(replication: Mapping[str, Any]) -> str:
    """`east 3, west 2` of a replication as CQL writes it, or `SimpleStrategy 3`."""
    factors = {name: factor for name, factor in replication.items() if name != "class"}
    if "replication_factor" in factors:
        return f"SimpleStrategy {factors['replication_factor']}"
    return ", ".join(f"{name} {factor}" for name, factor in factors.items())


def show(answer: Mapping[str, Any]) -> None:
    """Print a `request-plan/1` document: what would happen, step by step, and what it would change."""
    plan = read_document(RequestPlan, answer)
    click.echo(f"{title(plan)} at epoch {plan.epoch}: {_ranges_text(plan.ranges)}")
    if plan.waits_for:
        click.echo(f"not yet: {plan.waits_for}")
    click.echo(f"way back: {plan.way_back}")
    if plan.point_of_no_return:
        click.echo(f"point of no return: {plan.point_of_no_return}")
    if plan.estimate is not None:
        click.echo(f"estimated time: {estimate_text(plan.estimate)}")
    if plan.starved:
        click.echo(f"{plan.starved} ranges wait for replicas that are down")
    received = [f"node {one.node} gets {one.ranges}" for one in plan.receives]
    if received:
        click.echo(f"ranges received: {', '.join(received)}")
    _show_moves(plan.moves)
    _show_steps(plan.steps)
    show_changes("the first entry would change", plan.changes)
    show_changes("at the end, it would have changed", plan.afterwards)


def _ranges_text(ranges: int) -> str:
    return f"{render.counted(ranges, 'range')} get{'s' if ranges == 1 else ''} other replicas"


def estimate_text(estimate: Estimate) -> str:
    """`2.3 s: 1.6 s for 60.0 MiB at 32.0 MiB/s (an assumed rate…), 0.3 s for up to 32 streams a node,
    0.4 s for 6 barriers`."""
    moved, rate = render.bytes_text(estimate.bytes), render.bytes_text(estimate.rate_bytes_s)
    unknown = estimate.unknown_ranges
    more = f" and {unknown} ranges of unknown size" if unknown else ""
    return (
        f"{'more than ' if unknown else ''}{estimate.seconds:.1f} s: {estimate.stream_s:.1f} s for "
        f"{moved}{more} at {rate}/s ({estimate.rate_from}), "
        f"{estimate.streams_s:.1f} s for up to {render.counted(estimate.streams, 'stream')} a node, "
        f"{estimate.barriers_s:.1f} s for {render.counted(estimate.barriers, 'barrier')}"
    )


def _show_moves(moves: Sequence[Move]) -> None:
    if moves:
        click.echo()
        rows = [[move.source, move.target, move.ranges, _size(move.bytes)] for move in moves]
        render.table(["from node", "to node", "ranges", "size"], rows)


def _size(count: int | None) -> str:
    return "unknown" if count is None else render.bytes_text(count)


def _show_steps(steps: Sequence[PlannedStep]) -> None:
    if not steps:
        return
    click.echo()
    rows = [
        [
            f"{step.replication}: {step.stage}" if step.replication else step.stage,
            step.reads or "",
            step.writes or "",
            _nodes(step.asked or ()),
            _work(step),
        ]
        for step in steps
    ]
    render.table(["stage", "reads", "writes", "seen by", "work"], rows)


def _nodes(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) if nodes else "-"


def _work(step: PlannedStep) -> str:
    if step.work == "none":
        return "-"
    return f"{step.work} on {_nodes(step.workers)}" if step.workers else step.work


def show_changes(title: str, changes: Sequence[Change]) -> None:
    """Print differences of the metadata under a title; nothing when there are none.

    Placements are counted only: they say again, by the hundred, what the table of moves says.
    """
    if changes:
        click.echo(f"\n{title}")
    placed = [change for change in changes if change.path.startswith(_PLACEMENTS)]
    for change in changes:
        if change not in placed:
            click.echo(f"  {_change(change)}")
    if placed:
        click.echo(f"  placements: {len(placed)} differences (-o json lists them)")


def _change(change: Change) -> str:
    before, after, path = _short(change.before), _short(change.after), change.path
    if before is None:
        # A whole record says in its own words what the tables above say in a person's.
        return f"{path}: new" if _RECORD.match(str(after)) else f"{path}: new, {after}"
    if after is None:
        return f"{path}: goes" if _RECORD.match(before) else f"{path}: {before} goes"
    return f"{path}: {before} -> {after}"


def _short(value: Any) -> str | None:
    if value is None:
        return None
    text = render.cell_text(value)
    return text if len(text) <= VALUE_WIDTH_MAX else text[: VALUE_WIDTH_MAX - 1] + "…"
