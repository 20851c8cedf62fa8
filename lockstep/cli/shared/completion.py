"""Owns what the shell offers after a TAB: local clusters and their nodes, nodes, keyspaces and tables.

Invariant: completing changes nothing, prints nothing and waits at most ANSWER_TIMEOUT_S; where nobody
answers, nothing is offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from lockstep.values.errors import LockstepError

#: Longer than this nobody wants to look at a line that does not go on.
ANSWER_TIMEOUT_S: Final = 2.0


def clusters(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of local clusters."""
    from lockstep.local.clusters import list_clusters

    return _offered(incomplete, ((one.name, "") for one in list_clusters()))


def local_nodes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes of the local cluster that the line names; of a list between commas, the last one."""
    from lockstep.local.clusters import LocalCluster

    before, comma, wanted = incomplete.rpartition(",")
    given = context.params.get(parameter.name or "")
    already = {*before.split(","), *(given if isinstance(given, tuple) else ())}
    try:
        nodes = LocalCluster.open(str(context.params.get("name", ""))).file.nodes
    except LockstepError:
        return []
    names = ((before + comma + node.name, node.address) for node in nodes if node.name not in already)
    return _offered(before + comma + wanted, names)


def nodes(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Addresses of the nodes of the cluster that the options name."""
    found = _asked(context, "/v1/nodes").get("nodes", [])
    return _offered(incomplete, ((one["address"], f"node {one['id']}, {one['state']}") for one in found))


def keyspaces(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of keyspaces."""
    found = _asked(context, "/v1/metadata").get("keyspaces", [])
    return _offered(incomplete, ((one["name"], one["replication"]) for one in found))


def tables(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of keyspaces, and of their tables behind a dot."""
    found = _asked(context, "/v1/metadata").get("keyspaces", [])
    names = [(one["name"], one["replication"]) for one in found]
    names += [(f"{one['name']}.{table}", "") for one in found for table in one["tables"]]
    return _offered(incomplete, names)


def _offered(incomplete: str, names: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    return [CompletionItem(name, help=told or None) for name, told in names if name.startswith(incomplete)]


def _asked(context: click.Context, path: str) -> dict[str, Any]:
    from lockstep.cli.shared import client

    host = str(context.params.get("host") or client.DEFAULT_HOST)
    try:
        return client.connect(host, ANSWER_TIMEOUT_S).admin.get(path)
    except LockstepError:
        return {}
