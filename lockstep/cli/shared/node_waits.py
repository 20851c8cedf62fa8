"""Owns waiting until every node that is up has done its part of a change of the metadata.

Invariant: a node that is down is told of and not waited for; it does its part when it applies the entry. A
wait that ends early raises OutcomeUnknown, which says that the change is made and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import click

from lockstep.cli.shared.client import ClusterClient
from lockstep.documents.status import ListedNode
from lockstep.values.errors import OutcomeUnknown, PeerError

#: How often a wait asks again; a person sees no delay, a node no load.
POLL_S: Final = 0.1

#: What a node with this `cms-snapshots/1` document has still to do; empty when it is done.
Unfinished = Callable[[dict[str, Any]], str]


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
        time.sleep(POLL_S)
    return [{"node": node.id, "result": "done" if node.id in done else "down"} for node in nodes]


def _asked(cluster: ClusterClient, node: ListedNode, unfinished: Unfinished) -> str:
    try:
        return unfinished(cluster.at(node.address, node.admin_port).cms_snapshots())
    except PeerError as error:
        return f"does not answer: {error.message}"
