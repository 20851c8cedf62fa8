"""Owns `lockstep pipeline sessions`: contents of nodes that jobs read whole tables from, and the end of one.

Invariant: a session is ended at every node that has it, or the nodes that did not answer are named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents.runs import (
    ListedReadSession,
    ReadSessionEnd,
    ReadSessionList,
    ReadSessionRun,
    SilentNode,
)
from lockstep.values.errors import ConfigurationError, LockstepError

#: As of other commands that told only what some nodes know.
_INCOMPLETE_EXIT_CODE = 6
_MICROSECONDS_A_MILLISECOND = 1000
#: Tasks that read renew the lease long before.
_LEASE_SOON_MS = 60_000
_Value = TypeVar("_Value")


@click.group()
def sessions() -> None:
    """Look at read sessions, and end them."""


@sessions.command("list")
@render.of_call
def list_(call: render.Call) -> int:
    """Show the read sessions of all nodes. Exit code 6: a node did not answer, and may have more."""
    told = found(call.cluster())
    if not call.as_json(msgspec.to_builtins(told), "read-session-list/1"):
        if not told.sessions:
            click.echo("no read session is open")
        render.table(
            ["session", "table", "epoch", "opened", "lease s", "nodes"], [_row(one) for one in told.sessions]
        )
        _show_silent(told.unanswered)
    return _INCOMPLETE_EXIT_CODE if told.unanswered else 0


def _row(one: ListedReadSession) -> list[object]:
    return [
        one.id,
        f"{one.keyspace}.{one.table}",
        one.epoch,
        render.time_text(one.opened_ms * _MICROSECONDS_A_MILLISECOND),
        one.lease_left_ms // 1000,
        ", ".join(map(str, one.nodes)),
    ]


@sessions.command()
@click.argument("session", metavar="SESSION")
@click.option("--dry-run", is_flag=True, help="Say where it would be ended; change nothing.")
@render.of_call
def cancel(session: str, call: render.Call) -> int:
    """End the read session SESSION at all nodes; who reads it is told that the snapshot expired.

    Exit code 6: a node did not answer; what it has of the session ends with its lease.
    """
    cluster = call.cluster()
    known = found(cluster)
    one = _named(known, session)
    ended, silent = one.nodes, known.unanswered
    if not call.dry_run:
        done, failed = _of_nodes(cluster, lambda node: node.end_read_session(session), one.nodes)
        ended, silent = tuple(done), (*silent, *failed)
    told = ReadSessionEnd(id=session, dry_run=call.dry_run, nodes=ended, unanswered=silent)
    if not call.as_json(msgspec.to_builtins(told), "read-session-end/1"):
        where = render.counted(len(ended), "node")
        what = "would end" if call.dry_run else "ended"
        click.echo(f"{what} read session {session} of {one.keyspace}.{one.table} at {where}")
        _show_silent(silent)
    return _INCOMPLETE_EXIT_CODE if silent else 0


def found(cluster: ClusterClient) -> ReadSessionList:
    """Read sessions of all nodes; the oldest first."""
    answers, silent = _of_nodes(cluster, ClusterClient.read_sessions)
    held: dict[str, list[tuple[int, ReadSessionRun]]] = {}
    for node, answer in answers.items():
        for one in answer.read_sessions:
            held.setdefault(one.id, []).append((node, one))
    listed = [_joined(parts) for parts in held.values()]
    return ReadSessionList(sessions=tuple(sorted(listed, key=lambda one: (one.opened_ms, one.id))),
                           unanswered=tuple(silent))  # fmt: skip


def _joined(parts: list[tuple[int, ReadSessionRun]]) -> ListedReadSession:
    _, first = parts[0]
    return ListedReadSession(
        id=first.id,
        keyspace=first.keyspace_name,
        table=first.table_name,
        epoch=first.epoch,
        opened_ms=min(one.opened for _, one in parts),
        lease_left_ms=max(one.lease_left_ms for _, one in parts),
        nodes=tuple(sorted(node for node, _ in parts)),
    )


def _of_nodes(
    cluster: ClusterClient, ask: Callable[[ClusterClient], _Value], only: tuple[int, ...] | None = None
) -> tuple[dict[int, _Value], list[SilentNode]]:
    """What each node answers, and which did not."""
    answers: dict[int, _Value] = {}
    silent: list[SilentNode] = []
    for node in cluster.node_list():
        if only is not None and node.id not in only:
            continue
        try:
            answers[node.id] = ask(cluster.at(node.address, node.admin_port))
        except LockstepError as error:
            silent.append(SilentNode(node.id, error.message))
    return answers, silent


def why(told: ReadSessionList, session: str) -> dict[str, Any]:
    """What a read session waits for: its job, or the end of its lease."""
    one = _named(told, session)
    table, nodes = f"{one.keyspace}.{one.table}", ", ".join(map(str, one.nodes))
    reasons = [
        {
            "sentence": f"its job keeps what {table} was at epoch {one.epoch} on nodes {nodes}",
            "hint": f"lockstep pipeline sessions cancel {session} ends it and gives back the room",
        }
    ]
    if one.lease_left_ms < _LEASE_SOON_MS:
        reasons.append(
            {
                "sentence": f"nobody has read it lately: its lease ends in {one.lease_left_ms // 1000} s",
                "hint": "tasks that read renew the lease; look whether its job still runs",
            }
        )
    return {"thing": f"read session {session}", "reasons": reasons, "story": []}


def _named(told: ReadSessionList, session: str) -> ListedReadSession:
    one = next((one for one in told.sessions if one.id == session), None)
    if one is None:
        silent = ", ".join(str(node.node) for node in told.unanswered)
        asked = f"no node that answers has it; silent: {silent}" if silent else "it has ended, or never was"
        raise ConfigurationError(
            f"there is no read session {session}: {asked}", hint="lockstep pipeline sessions list"
        )
    return one


def _show_silent(nodes: tuple[SilentNode, ...]) -> None:
    for node in nodes:
        click.echo(f"node {node.node} did not answer: {node.why}")
