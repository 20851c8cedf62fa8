"""Following what goes on after a command: a repair, a backup or a restore, and what nodes do of a change of
the metadata.

Invariant: a wait that ends early never says that the run or the change failed; it says its id or that it goes
on, and exits 5. A node that is down is told of and not waited for; it does its part when it applies the
entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.service import Snapshots
from lockstep.documents.status import ListedNode
from lockstep.values.errors import BadCredentials, OutcomeUnknown, PeerError, Unauthorized

POLL_S: Final = 0.2
_COLOURS: Final = {"done": "green", "failed": "red", "cancelled": "yellow"}
Found = Mapping[str, Any]


@contextmanager
def unseen(what: str, ending: str) -> Iterator[None]:
    """Around questions about what was begun: who may begin it and may not see it is told that it goes on.
    `ending` is a command that takes it back."""
    try:
        yield
    except (Unauthorized, BadCredentials) as error:
        raise OutcomeUnknown(
            f"{what} has begun, and how far it is may not be seen: {error.message}",
            hint=f"it goes on: `{ending}` ends it; to see it, GRANT SELECT ON ALL MBEANS",
        ) from error


def follow(
    begun: Found,
    what: str,
    ask: Callable[[int], Found],
    headline: Callable[[Found], str],
    timeout_s: float,
    poll_s: float = POLL_S,
) -> Found:
    """`begun` once it has ended; how far it is goes to stderr. OutcomeUnknown when that takes too long."""
    deadline, told, found = time.monotonic() + timeout_s, "", begun
    ending = f"lockstep repair --cancel {begun['id']}"
    while found["state"] == "running":
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"{what} {begun['id']} still runs after {timeout_s:g} s",
                hint=f"it goes on; end it with `{ending}`",
            )
        time.sleep(poll_s)
        try:
            with unseen(f"{what} {begun['id']}", ending):
                found = ask(int(begun["id"]))
            line = headline(found)
        except PeerError as error:
            line = f"no answer: {error.message}"
        if line != told:
            click.echo(line, err=True)
            told = line
    return found


def show(found: Found, headline: Callable[[Found], str], call: render.Call, schema: str) -> None:
    """One run, as text or as JSON of this schema."""
    if call.as_json(found, schema):
        return
    click.echo(render.styled(headline(found), _COLOURS.get(found["state"], "")))
    if reason := found.get("reason"):
        click.echo(f"  {reason}")


def show_steps(steps: Sequence[str]) -> None:
    """What a plan does, numbered."""
    for number, step in enumerate(steps, start=1):
        click.echo(f"{number}. {step}")


#: How often a wait asks again; a person sees no delay, a node no load.
NODE_POLL_S: Final = 0.1

#: What a node with these snapshots has still to do; empty when it is done.
Unfinished = Callable[[Snapshots], str]


def wait_for_nodes(
    cluster: ClusterClient, unfinished: Unfinished, timeout_s: float, what: str
) -> list[dict[str, Any]]:
    """A row for each node: `done` or `down`. Whom it waits for is told on stderr when that changes."""
    deadline = time.monotonic() + timeout_s
    done: set[int] = set()
    told = ""
    while True:
        nodes = cluster.node_list()
        reasons: dict[int, str] = {}
        for node in nodes:
            if not node.alive or node.id in done:
                continue
            reason = _asked(cluster, node, unfinished)
            if reason:
                reasons[node.id] = reason
            else:
                done.add(node.id)
        if not reasons:
            break
        line = "; ".join(f"node {node} {reason}" for node, reason in sorted(reasons.items()))
        if line != told:
            click.echo(f"waits: {line}", err=True)
            told = line
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"{what}, but after {timeout_s:g} s {line}", hint="lockstep cms describe shows the nodes"
            )
        time.sleep(NODE_POLL_S)
    return [{"node": node.id, "result": "done" if node.id in done else "down"} for node in nodes]


def _asked(cluster: ClusterClient, node: ListedNode, unfinished: Unfinished) -> str:
    try:
        return unfinished(read(Snapshots, cluster.at(node.address, node.admin_port).cms_snapshots()))
    except PeerError as error:
        return f"does not answer: {error.message}"
