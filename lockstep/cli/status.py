"""Owns `lockstep status`: the verdict first, then the nodes, then what is running and why it waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lockstep.cli import client, options, render
from lockstep.cli.plans import title

SCHEMA = "status/1"
#: With --exit-code. Above the codes that every command has, so that neither is taken for the other.
EXIT_CODES = {"healthy": 0, "degraded": 10, "unavailable": 11}
_COLOURS = {"healthy": "green", "degraded": "yellow", "unavailable": "red"}


@click.command()
@click.option("--exit-code", is_flag=True, help="Exit with 10 when degraded, 11 when unavailable.")
@options.of_call
def status(exit_code: bool, host: str, call_timeout_s: float, output: str) -> int:
    """Show whether the cluster is healthy, what is wrong, its nodes, and its running operations.

    Exits with 0 whatever the verdict is, unless --exit-code asks for it; 4 when the node does not answer.
    """
    answer = client.connect(host, call_timeout_s).status()
    if output == "json":
        render.json_out(answer, SCHEMA)
    else:
        show(answer)
    return EXIT_CODES.get(str(answer.get("level")), EXIT_CODES["unavailable"]) if exit_code else 0


def show(answer: Mapping[str, Any]) -> None:
    """Print a `status/1` document."""
    verdict = str(answer.get("verdict", "unknown"))
    click.echo(render.styled(verdict, _COLOURS.get(str(answer.get("level")), "red"), bold=True))
    click.echo(_summary(answer))
    for line in (*_service_lines(answer), *condition_lines(answer)):
        click.echo(line)
    click.echo()
    nodes, epoch, leader = answer.get("nodes", []), int(answer.get("epoch", 0)), answer.get("leader")
    render.table(
        ["node", "address", "dc", "rack", "alive", "state", "tokens", "owns", "epoch", "metadata"],
        [_node_row(node, epoch, leader) for node in nodes],
    )
    for operation in answer.get("operations", []):
        click.echo()
        show_operation(operation)


def condition_lines(answer: Mapping[str, Any]) -> list[str]:
    """Each condition with its detail, what can still be lost, and what to do."""
    lines = []
    for one in answer.get("conditions") or []:
        since = f" since {render.time_text(one['since_us'])}" if one.get("since_us") else ""
        detail = f": {one['detail']}" if one.get("detail") and one["detail"] not in one["summary"] else ""
        lines.append(f"{one['level']}: {one['summary']}{since}{detail} [{one['code']}]")
        lines.append(f"  at risk: {one['at_risk']}")
        lines.append(f"  hint: {one['hint']} ({one['page']})")
    return lines


def show_operation(operation: Mapping[str, Any]) -> None:
    """Print one live request: what it does, how far it is, and what it waits for."""
    parts = [f"request {operation.get('id')}: {title(operation)}"]
    if operation.get("state") == "queued":
        parts.append("queued")
    if operation.get("stage"):
        stage_epoch = operation.get("stage_epoch")
        since = f" since epoch {stage_epoch}" if stage_epoch else ""
        parts.append(f"stage {operation['stage']}{since}")
    progress = progress_text(operation.get("progress") or {})
    click.echo(", ".join([*parts, *([progress] if progress else [])]))
    for line in waiting_lines(operation):
        click.echo(f"  {line}")


def waiting_lines(operation: Mapping[str, Any]) -> list[str]:
    """`waits for node 3: reason (12.0 s)` for each thing that a request waits for."""
    lines = []
    for blocker in operation.get("waiting") or []:
        since = blocker.get("since_s")
        age = f" ({float(since):.1f} s)" if since is not None else ""
        whom = f"for node {blocker['node']}: " if blocker.get("node") else "in the queue: "
        lines.append(f"waits {whom}{blocker.get('reason')}{age}")
    return lines


def progress_text(progress: Mapping[str, Any], *, ages: bool = True) -> str:
    """What was moved and what is done of all; `ages` False leaves out what changes by itself with time."""
    parts = []
    if progress.get("bytes"):
        parts.append(f"{render.bytes_text(int(progress['bytes']))} streamed")
    if progress.get("fragments"):
        parts.append(f"{int(progress['fragments']):,} fragments")
    parts += done_of_all(progress)
    if ages and int(progress.get("left_s", -1)) > 0:
        parts.append(f"about {int(progress['left_s'])} s left")
    return ", ".join(parts)


def done_of_all(progress: Mapping[str, Any]) -> list[str]:
    """`12 of 49 ranges` and `2 of 5 tables`, where they are counted."""
    return [
        f"{int(progress.get(f'{what}_done', 0))} of {int(progress[f'{what}_total'])} {what}"
        for what in ("ranges", "tables")
        if progress.get(f"{what}_total")
    ]


def _summary(answer: Mapping[str, Any]) -> str:
    cluster, asked = answer.get("cluster") or {}, answer.get("node") or {}
    nodes = answer.get("nodes", [])
    alive = sum(1 for node in nodes if node.get("alive"))
    leader = answer.get("leader")
    return ", ".join(
        [
            f"cluster {cluster.get('name', '?')}",
            f"{alive} of {len(nodes)} nodes alive",
            f"epoch {answer.get('epoch', 0)} hash {str(answer.get('hash', ''))[:12]}",
            f"metadata leader: {'none' if leader is None else f'node {leader}'}",
            f"asked: {asked.get('address', '?')}",
        ]
    )


def _service_lines(answer: Mapping[str, Any]) -> list[str]:
    """How both groups fare, and what keeps the metadata from being changed."""
    groups = [
        f"{name} {str(group.get('state')).lower()} ({group.get('available_peers')} voters up)"
        for name, group in (answer.get("groups") or {}).items()
    ]
    lines = [f"groups: {', '.join(groups)}"] if groups else []
    for name in ("frozen", "broken"):
        if answer.get(name):
            lines.append(f"metadata {'is frozen' if name == 'frozen' else 'stopped here'}: {answer[name]}")
    for one in answer.get("excluded", []):
        lines.append(f"node {one['node']} is excluded since epoch {one['since_epoch']}: {one['reason']}")
    return lines


def _node_row(node: Mapping[str, Any], epoch: int, leader: Any) -> list[Any]:
    role = "voter" if node.get("voter") else ""
    if node.get("id") == leader:
        role = "leader"
    seen = node.get("epoch")
    behind = f" (-{epoch - seen})" if isinstance(seen, int) and seen < epoch else ""
    owns = node.get("owns")
    return [
        node.get("id"),
        node.get("address"),
        node.get("dc"),
        node.get("rack"),
        "excluded" if node.get("excluded") else "up" if node.get("alive") else "down",
        node.get("state"),
        node.get("tokens"),
        f"{float(owns) * 100:.1f}%" if owns is not None else None,
        f"{seen}{behind}" if seen is not None else None,
        role,
    ]
