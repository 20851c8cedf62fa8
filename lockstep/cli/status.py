"""Owns `lockstep status`: the verdict first, then the nodes, then what is running and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec import UNSET

from lockstep.cli.shared import render
from lockstep.cli.shared.plans import title
from lockstep.documents import read
from lockstep.documents.requests import Counts, Request, Waiting
from lockstep.documents.runs import LoadRun, ReadSessionRun
from lockstep.documents.status import Condition, ListedNode, Status

SCHEMA = "status/1"
#: With --exit-code. Above the codes that every command has, so that neither is taken for the other.
EXIT_CODES = {"healthy": 0, "degraded": 10, "unavailable": 11}
_COLOURS = {"healthy": "green", "degraded": "yellow", "unavailable": "red"}


@click.command()
@click.option("--exit-code", is_flag=True, help="Exit with 10 when degraded, 11 when unavailable.")
@render.of_call
def status(exit_code: bool, call: render.Call) -> int:
    """Show whether the cluster is healthy, what is wrong, its nodes, and its running operations.

    Exits with 0 whatever the verdict is, unless --exit-code asks for it; 4 when the node does not answer.
    """
    answer = call.cluster().status()
    told = read(Status, answer)
    if not call.as_json(answer, SCHEMA):
        show(told)
    return EXIT_CODES.get(told.level, EXIT_CODES["unavailable"]) if exit_code else 0


def show(told: Status) -> None:
    """Print a `status/1` document."""
    click.echo(render.styled(told.verdict, _COLOURS.get(told.level, "red"), bold=True))
    click.echo(_summary(told))
    for line in (*_service_lines(told), *condition_lines(told.conditions)):
        click.echo(line)
    click.echo()
    render.table(
        ["node", "address", "dc", "rack", "alive", "state", "tokens", "owns", "epoch", "metadata"],
        [_node_row(node, told) for node in told.nodes],
    )
    for operation in told.operations:
        click.echo()
        show_operation(operation)
    if told.loads:
        click.echo()
        for load in told.loads:
            click.echo(load_line(load))
    if told.read_sessions:
        click.echo()
        for session in told.read_sessions:
            click.echo(session_line(session))


def session_line(session: ReadSessionRun) -> str:
    """A read session of the asked node, in one line."""
    table = f"{session.keyspace_name}.{session.table_name}"
    left_s = session.lease_left_ms / 1000
    return f"read session {session.id} of {table} at epoch {session.epoch}, lease ends in {left_s:.0f} s"


def load_line(load: LoadRun) -> str:
    """A bulk load that runs, in one line."""
    parts = [f"load {load.job} of {load.keyspace}.{load.table}: {load.phase}"]
    if load.overwrites:
        parts.append("replaces the table")
    if load.staged_files:
        files = render.counted(load.staged_files, "file")
        parts.append(f"{files}, {render.bytes_text(load.staged_bytes)} staged here")
    parts.append(f"runs for {load.age_s:.0f} s")
    if load.lease_left_s is not None:
        parts.append(f"lease ends in {max(load.lease_left_s, 0):.0f} s")
    return ", ".join(parts)


def condition_lines(conditions: Sequence[Condition]) -> list[str]:
    """Each condition with its detail, what can still be lost, and what to do."""
    lines = []
    for one in conditions:
        since = f" since {render.time_text(one.since_us)}" if one.since_us else ""
        detail = f": {one.detail}" if one.detail and one.detail not in one.summary else ""
        lines.append(f"{one.level}: {one.summary}{since}{detail} [{one.code}]")
        lines.append(f"  at risk: {one.at_risk}")
        lines.append(f"  hint: {one.hint} ({one.page})")
    return lines


def show_operation(operation: Request) -> None:
    """Print one live request: what it does, how far it is, and what it waits for."""
    parts = [f"request {operation.id}: {title(operation)}"]
    if operation.state == "queued":
        parts.append("queued")
    if operation.stage:
        parts.append(stage_text(operation))
    progress = progress_text(operation.progress)
    click.echo(", ".join([*parts, *([progress] if progress else [])]))
    for line in waiting_lines(operation.waiting):
        click.echo(f"  {line}")


def stage_text(operation: Request) -> str:
    since = f" since epoch {operation.stage_epoch}" if operation.stage_epoch else ""
    return f"stage {operation.stage}{since}"


def waiting_lines(waiting: Sequence[Waiting]) -> list[str]:
    """`waits for node 3: reason (12.0 s)` for each thing that a request waits for."""
    lines = []
    for one in waiting:
        age = f" ({one.since_s:.1f} s)" if one.since_s is not UNSET else ""
        whom = f"for node {one.node}: " if one.node else "in the queue: "
        lines.append(f"waits {whom}{one.reason}{age}")
    return lines


def progress_text(progress: Counts, *, ages: bool = True) -> str:
    """What was moved and what is done of all; `ages` False leaves out what changes by itself with time."""
    parts = []
    if progress.bytes:
        parts.append(f"{render.bytes_text(progress.bytes)} streamed")
    if progress.fragments:
        parts.append(f"{progress.fragments:,} fragments")
    parts += progress.done_of_all()
    if progress.left_bytes > 0:
        parts.append(f"{render.bytes_text(progress.left_bytes)} left")
    if ages and progress.left_s > 0:
        parts.append(f"about {progress.left_s} s left")
    return ", ".join(parts)


def _summary(told: Status) -> str:
    alive = sum(1 for node in told.nodes if node.alive)
    return ", ".join(
        [
            f"cluster {told.cluster.name}",
            f"{alive} of {len(told.nodes)} nodes alive",
            f"epoch {told.epoch} hash {told.hash[:12]}",
            f"{_leading(told)}: {'none' if told.leader is None else f'node {told.leader}'}",
            f"asked: {told.node.address}",
        ]
    )


def _leading(told: Status) -> str:
    return "changes go through" if told.ring_mode else "metadata leader"


def _service_lines(told: Status) -> list[str]:
    """How both groups fare, and what keeps the metadata from being changed."""
    if told.ring_mode:
        whose = "all members" if told.ring_mode == "unanimous" else "a majority of the members"
        return [f"on the ring without a log: {whose} must accept each change", *_stopping_lines(told)]
    groups = [
        f"{name} {group.state.lower()} ({group.available_peers} voters up)"
        for name, group in told.groups.items()
    ]
    lines = [f"groups: {', '.join(groups)}"] if groups else []
    return [*lines, *_stopping_lines(told)]


def _stopping_lines(told: Status) -> list[str]:
    lines = []
    if told.frozen:
        lines.append(f"metadata is frozen: {told.frozen}")
    if told.broken:
        lines.append(f"metadata stopped here: {told.broken}")
    for one in told.excluded:
        lines.append(f"node {one.node} is excluded since epoch {one.since_epoch}: {one.reason}")
    return lines


def _node_row(node: ListedNode, told: Status) -> list[Any]:
    role, epoch = "voter" if node.voter else "", told.epoch
    if node.id == told.leader:
        role = "designated" if told.ring_mode else "leader"
    seen = node.epoch
    behind = f" (-{epoch - seen})" if seen is not None and seen < epoch else ""
    return [
        node.id,
        node.address,
        node.dc,
        node.rack,
        "excluded" if node.excluded else "up" if node.alive else "down",
        node.state,
        node.tokens,
        f"{node.owns * 100:.1f}%" if node.owns is not None else None,
        f"{seen}{behind}" if seen is not None else None,
        role,
    ]
