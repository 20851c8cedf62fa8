"""Owns `lockstep why`: the story of a thing from the log, and why it is not as it should be now.

Invariant: every sentence is made from what a node answers; when nothing is wrong it says so, and exits 0.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import click
import msgspec

from lockstep.cli import explain
from lockstep.cli.shared import client, options, render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.groups import GlobalState, LocalStates
from lockstep.documents.requests import Request
from lockstep.documents.service import Service
from lockstep.documents.status import ListedNode, Status
from lockstep.documents.stories import Story
from lockstep.local.admin_client import class_by_code
from lockstep.values.errors import ConfigurationError

Reasons = list[dict[str, str]]

KINDS: Final = ("node", "request", "operation", "epoch", "token")
_PREFIXED: Final = re.compile(rf"({'|'.join(KINDS)})[:/](.+)")
_RANGE: Final = re.compile(r"([A-Za-z]\w*)(?:\.(\w+))?:(-?\d+)")
_USAGE: Final = (
    "a node (id, host id or address), node:ID, request:ID, operation:ID, epoch:E, token:T, "
    "KEYSPACE[.TABLE]:TOKEN, `range KEYSPACE TOKEN`, cms, cmg, or a code of lockstep explain"
)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("thing", metavar="THING", nargs=-1, required=True)
@click.option("--events", default=40, show_default=True, type=click.IntRange(min=0), help="Newest ones told.")
@options.of_call
@click.pass_context
def why(
    context: click.Context, thing: tuple[str, ...], events: int, host: str, call_timeout_s: float, output: str
) -> None:
    """Tell the story of THING, why it waits or does not work, and what to do about it.

    THING is a node (id, host id or address; also one that has left), `request:ID`, `operation:ID`, `epoch:E`,
    a token (`KEYSPACE.TABLE:TOKEN`, `range KEYSPACE TOKEN`, or `token:T` for all keyspaces), `cms` or `cmg`
    (the groups behind the metadata), or an error code. A plain number is a node; a prefix says otherwise.
    """
    code = thing[0].upper().removeprefix("ERROR[").rstrip("]:")
    if len(thing) == 1 and class_by_code(code) is not None:
        context.invoke(explain.explain, code=code, output=output)
        return
    told = _told(client.connect(host, call_timeout_s), thing)
    if output == "json":
        render.json_out(told, "why/1")
        return
    _show(told, events)


def _told(cluster: ClusterClient, thing: tuple[str, ...]) -> dict[str, Any]:
    """A `why/1` document: the story, and reasons where it is not as it should be."""
    kind, name, keyspace, table = _parsed(thing)
    if kind == "service":
        return {
            "thing": "the metadata service",
            "reasons": _service(read(Service, cluster.cms())),
            "story": [],
        }
    if kind == "group":
        return {
            "thing": "the management group",
            "reasons": _group(read(GlobalState, cluster.group_global("cmg"))),
            "story": [],
        }
    if kind == "node":
        return _node(cluster, name)
    found = cluster.story(kind, name, keyspace=keyspace or None, table=table or None)
    if kind == "request":
        reasons = _request(read(Request, cluster.request(name)))
    else:
        reasons = _degraded(read(Status, cluster.status()), keyspace) if kind == "token" else []
    return {**_of(found), "reasons": reasons}


def _parsed(thing: tuple[str, ...]) -> tuple[str, str, str, str]:
    """(kind, name, keyspace, table)."""
    if thing[0] == "range" and len(thing) == 3:
        keyspace, _, table = thing[1].partition(".")
        return "token", thing[2], keyspace, table
    if len(thing) != 1:
        raise ConfigurationError(f"{' '.join(thing)} is not one thing", hint=f"it is {_USAGE}")
    text = thing[0]
    if text in ("cms", "metastorage", "voters"):
        return "service", text, "", ""
    if text == "cmg":
        return "group", text, "", ""
    prefixed = _PREFIXED.fullmatch(text)
    if prefixed is not None:
        return prefixed[1], prefixed[2], "", ""
    ranged = _RANGE.fullmatch(text)
    if ranged is not None:
        return "token", ranged[3], ranged[1], ranged[2] or ""
    return "node", text, "", ""


def _of(answer: Mapping[str, Any]) -> dict[str, Any]:
    story = read(Story, answer)
    return {
        "thing": story.thing,
        "from_epoch": story.from_epoch,
        "left_out": story.left_out,
        "story": msgspec.to_builtins(story.events),
    }


def _show(told: Mapping[str, Any], most: int) -> None:
    reasons, story = told["reasons"], told["story"]
    fine = told.get("fine", "nothing is wrong" if not story else "")
    click.echo(f"{told['thing']}: {'' if reasons else fine}".rstrip(" "))
    for reason in reasons:
        click.echo(f"  {reason['sentence']}")
        if reason["hint"]:
            click.echo(f"    hint: {reason['hint']}")
    shown = story[len(story) - most :] if most < len(story) else story
    left_out = int(told.get("left_out") or 0) + len(story) - len(shown)
    if left_out:
        click.echo(f"  {left_out} earlier events are left out (--events, -o json)")
    if told.get("from_epoch"):
        click.echo(f"  what was before epoch {told['from_epoch'] + 1} is not kept at this node")
    width = max((len(str(event["epoch"])) for event in shown), default=0)
    last = None
    for event in shown:
        again = event["epoch"] == last
        at = " " * 8 if again or not event.get("at_us") else _clock(event["at_us"])
        number = " " * width if again else str(event["epoch"]).rjust(width)
        click.echo(f"  {'     ' if again else 'epoch'} {number}  {at}  {event['text']}")
        last = event["epoch"]


def _clock(at_us: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_us / 1e6))


def _reason(sentence: str, hint: str = "") -> dict[str, str]:
    return {"sentence": sentence, "hint": hint}


def _service(told: Service) -> Reasons:
    found = []
    if told.frozen:
        found.append(_reason(f"it is frozen: {told.frozen}", "lockstep cms thaw"))
    if told.leader is None:
        found.append(_reason("no leader is known: nothing can be changed", "start voters that are down"))
    for member in told.members:
        if member.state != "Healthy":
            state = member.state or "does not answer"
            found.append(_reason(f"node {member.node} {state}: {member.reason or 'no reason told'}",
                                 f"lockstep why {member.node}"))  # fmt: skip
    for one in told.waiting:
        whom = f"node {one.node}: " if one.node else ""
        hint = "lockstep cms reconfigure --cancel ends the change" if told.change is not None else ""
        found.append(_reason(f"its voters wait for {whom}{one.reason}, {one.since_s or 0:.0f} s", hint))
    if told.paused:
        hint = "lockstep cms reconfigure --resume"
        found.append(_reason(f"voters are not changed automatically: {told.paused}", hint))
    return found


def _degraded(status: Status, keyspace: str) -> Reasons:
    """What is known to be lacking in ranges of the keyspace; of all keyspaces when none is named."""
    return [
        _reason(f"{one.summary}; at risk: {one.at_risk}", one.hint)
        for one in status.conditions
        if one.code == "RANGES_DEGRADED" and keyspace in ("", one.subject)
    ]


def _group(told: GlobalState) -> Reasons:
    return [
        _reason(f"node {member.node} is not available: {member.reason or member.state}",
                f"lockstep why {member.node}")
        for member in told.members
        if not member.available
    ]  # fmt: skip


def _request(told: Request) -> Reasons:
    found = [
        _reason(f"it waits for node {one.node}: {one.reason}", f"lockstep why {one.node}")
        if one.node
        else _reason(f"it waits in the queue: {one.reason}", "lockstep topology requests")
        for one in told.waiting
    ]
    if told.reason:
        found.append(_reason(told.reason))
    return found


def _node(cluster: ClusterClient, name: str) -> dict[str, Any]:
    """What both groups and running operations say of a node now, after its story."""
    try:
        story = _of(cluster.story("node", name))
    except ConfigurationError as error:
        raise ConfigurationError(f"{name} is no thing that has a story: {error.message}",
                                 hint=f"{error.hint}; else say {_USAGE}") from None  # fmt: skip
    wanted = int(story["thing"].rpartition(" ")[2])
    status = read(Status, cluster.status())
    node = next((one for one in status.nodes if one.id == wanted), None)
    if node is None:
        return {**story, "thing": f"node {wanted}", "reasons": [], "fine": "it has left the cluster"}
    return {
        **story,
        "thing": f"node {wanted} ({node.address})",
        "reasons": _node_reasons(cluster, status, node),
        "fine": "nothing is wrong",
    }


def _node_reasons(cluster: ClusterClient, status: Status, node: ListedNode) -> Reasons:
    wanted = node.id
    found: Reasons = []
    if not node.alive:
        excluded = next((one for one in status.excluded if one.node == wanted), None)
        found.append(
            _reason(
                f"it is excluded since epoch {excluded.since_epoch}: {excluded.reason}",
                f"lockstep topology exclude {wanted} --undo, once it has caught up",
            )
            if excluded is not None
            else _reason("it seems down: no sign of life", "start it; its own log says why it ended")
        )
    behind = status.epoch - (node.epoch or 0)
    if behind > 0:
        found.append(
            _reason(f"it is {render.counted(behind, 'epoch')} behind as far as the asked node knows")
        )
    if node.state != "normal":
        found.append(_reason(f"it is {node.state}", "lockstep topology requests"))
    for one in status.conditions:
        if one.node == wanted and one.code not in ("NODE_DOWN", "NODE_EXCLUDED"):
            found.append(_reason(f"{one.summary}: {one.detail}; at risk: {one.at_risk}", one.hint))
    for group in ("metastorage", "cmg"):
        for row in read(LocalStates, cluster.group_local(group, str(wanted))).states:
            if row.reason and (row.state or not row.answered):
                hint = "lockstep explain CANNOT_APPLY" if row.state == "Broken" else ""
                found.append(_reason(f"{group}: {row.state or 'no answer'}: {row.reason}", hint))
            elif row.state not in (None, "Healthy"):
                found.append(_reason(f"{group}: {row.state}"))
    for operation in status.operations:
        for waits in operation.waiting:
            if waits.node == wanted:
                found.append(_reason(f"request {operation.id} waits for it: {waits.reason}"))
    return found
