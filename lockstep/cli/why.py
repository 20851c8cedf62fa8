"""Owns `lockstep why`: why a node, the metadata service or an operation is not as it should be.

Invariant: every sentence is made from what a node answers now; when nothing is wrong it says so, and exits 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lockstep.cli import client, explain, options, render
from lockstep.cli.client import ClusterClient
from lockstep.local.admin_client import class_by_code
from lockstep.values.errors import ConfigurationError

Reasons = list[dict[str, str]]


@click.command()
@click.argument("thing", metavar="THING")
@options.host
@options.call_timeout
@options.output
@click.pass_context
def why(context: click.Context, thing: str, host: str, call_timeout_s: float, output: str) -> None:
    """Say why THING waits or does not work, and what to do about it.

    THING is a node (id, host id or address), `cms` or `cmg` (the groups behind the metadata), `request/ID`
    (a topology operation), or an error code.
    """
    code = thing.upper().removeprefix("ERROR[").rstrip("]:")
    if class_by_code(code) is not None:
        context.invoke(explain.explain, code=code, output=output)
        return
    cluster = client.connect(host, call_timeout_s)
    if thing in ("cms", "metastorage", "voters"):
        title, reasons = "the metadata service", _service(cluster.cms())
    elif thing == "cmg":
        title, reasons = "the management group", _group(cluster.group_global("cmg"))
    elif thing.startswith("request/"):
        title, reasons = f"request {thing[8:]}", _request(cluster.request(thing.removeprefix("request/")))
    else:
        title, reasons = _node(cluster, thing)
    if output == "json":
        render.json_out({"thing": title, "reasons": reasons}, "why/1")
        return
    click.echo(f"{title}: {'nothing is wrong' if not reasons else ''}".rstrip(" "))
    for reason in reasons:
        click.echo(f"  {reason['sentence']}")
        if reason["hint"]:
            click.echo(f"    hint: {reason['hint']}")


def _reason(sentence: str, hint: str = "") -> dict[str, str]:
    return {"sentence": sentence, "hint": hint}


def _service(answer: Mapping[str, Any]) -> Reasons:
    found = []
    if answer.get("frozen"):
        found.append(_reason(f"it is frozen: {answer['frozen']}", "lockstep cms thaw"))
    if answer.get("leader") is None:
        found.append(_reason("no leader is known: nothing can be changed", "start voters that are down"))
    for member in answer.get("members", []):
        if member.get("state") != "Healthy":
            state = member.get("state") or "does not answer"
            found.append(_reason(f"node {member['node']} {state}: {member.get('reason') or 'no reason told'}",
                                 f"lockstep why {member['node']}"))  # fmt: skip
    for one in answer.get("waiting") or []:
        whom = f"node {one['node']}: " if one.get("node") else ""
        hint = "lockstep cms reconfigure --cancel ends the change" if answer.get("change") else ""
        found.append(_reason(f"its voters wait for {whom}{one['reason']}, {one['since_s']:.0f} s", hint))
    if answer.get("paused"):
        hint = "lockstep cms reconfigure --resume"
        found.append(_reason(f"voters are not changed automatically: {answer['paused']}", hint))
    return found


def _group(answer: Mapping[str, Any]) -> Reasons:
    return [
        _reason(f"node {member['node']} is not available: {member.get('reason') or member.get('state')}",
                f"lockstep why {member['node']}")
        for member in answer.get("members", [])
        if not member.get("available")
    ]  # fmt: skip


def _request(answer: Mapping[str, Any]) -> Reasons:
    found = [
        _reason(f"it waits for node {one['node']}: {one.get('reason')}", f"lockstep why {one['node']}")
        if one.get("node")
        else _reason(f"it waits in the queue: {one.get('reason')}", "lockstep topology requests")
        for one in answer.get("waiting") or []
    ]
    if answer.get("error") or answer.get("reason"):
        found.append(_reason(str(answer.get("error") or answer.get("reason"))))
    return found


def _node(cluster: ClusterClient, thing: str) -> tuple[str, Reasons]:
    status = cluster.status()
    nodes = status.get("nodes", [])
    try:
        wanted = client.node_id(nodes, thing)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{thing} is no node, group, request or error code",
            hint=f"cms, cmg, request/ID, a code of lockstep explain, or one of the {error.hint}",
        ) from None
    node = next(one for one in nodes if one["id"] == wanted)
    title = f"node {wanted} ({node.get('address')})"
    found: Reasons = []
    if not node.get("alive"):
        found.append(_reason("it seems down: no sign of life", "start it; its own log says why it ended"))
    behind = int(status.get("epoch", 0)) - int(node.get("epoch") or 0)
    if behind > 0:
        found.append(_reason(f"it is {behind} epochs behind as far as the asked node knows"))
    if node.get("state") != "normal":
        found.append(_reason(f"it is {node.get('state')}", "lockstep topology requests"))
    for group in ("metastorage", "cmg"):
        for row in cluster.group_local(group, str(wanted)).get("states", []):
            if row.get("reason") and (row.get("state") or not row.get("answered")):
                hint = "lockstep explain CANNOT_APPLY" if row.get("state") == "Broken" else ""
                found.append(_reason(f"{group}: {row.get('state') or 'no answer'}: {row['reason']}", hint))
            elif row.get("state") not in (None, "Healthy"):
                found.append(_reason(f"{group}: {row.get('state')}"))
    for operation in status.get("operations", []):
        for one in operation.get("waiting") or []:
            if one.get("node") == wanted:
                found.append(_reason(f"request {operation.get('id')} waits for it: {one.get('reason')}"))
    return title, found
