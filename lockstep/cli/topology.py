"""Owns `lockstep topology`: ask for topology operations, watch them, take them back, and how requests look in
text.

Invariant: a wait that ends early never says the operation failed; it prints the id and exits 5. The first
line says what a request is and how it stands; everything else is indented below it or a table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import click

from lockstep.cli.shared import client, completion, plans, render, runs
from lockstep.cli.shared.client import ClusterClient
from lockstep.cli.shared.plans import show_changes, title
from lockstep.cli.shared.watch import ENDED, NUMBERS_EVERY_S, watch
from lockstep.cli.status import progress_text, stage_text, waiting_lines
from lockstep.documents import read
from lockstep.documents.requests import ForceRemove, Request, Requests, Streams
from lockstep.documents.status import ExcludedNodes
from lockstep.schema.replication_options import list_text
from lockstep.values.errors import OutcomeUnknown, PeerError

#: Degraded ranges that giving a node up lists in text: a node has hundreds.
DEGRADED_SHOWN_MAX: Final = 8
_COLOURS: Final = {"done": "green", "failed": "red", "cancelled": "yellow"}


def show_request(request: Request) -> None:
    """Print a `request/1` document: one line, then whom it waits for."""
    state, moved = request.state, progress_text(request.progress)
    facts = [fact for fact in (title(request), _where(request), _epochs(request), moved) if fact]
    line = f"request {request.id} {state}" + (f": {', '.join(facts)}" if facts else "")
    click.echo(render.styled(line, _COLOURS.get(state, "")) if state in _COLOURS else line)
    if request.reason:
        click.echo(f"  {request.reason}")
    for waits in waiting_lines(request.waiting):
        click.echo(f"  {waits}")


def show_forced(told: ForceRemove) -> None:
    """Print a `force-remove/1` document: what was given up, or would be."""
    verb = "would be" if told.dry_run else "was"
    click.echo(f"node {told.node} {verb} given up at epoch {told.epoch}")
    if told.waits_for:
        click.echo(f"not yet: {told.waits_for}")
    click.echo(f"way back: {told.way_back}")
    click.echo(f"degraded until they are repaired: {render.counted(len(told.degraded), 'range')}")
    shown = told.degraded[:DEGRADED_SHOWN_MAX]
    for one in shown:
        lacking = ", ".join(f"node {node} may lack writes" for node in one.missing)
        lacking = lacking or "nobody is sure to have all"
        click.echo(f"  ({one.left}, {one.right}] of {one.replication}: {lacking}")
    if len(told.degraded) > len(shown):
        click.echo(f"  and {len(told.degraded) - len(shown)} more (-o json lists them)")
    show_changes("the entry would change", told.changes)


def show_excluded(told: ExcludedNodes) -> None:
    """Print an `excluded/1` document."""
    if not told.excluded:
        click.echo(f"no node {'would be' if told.dry_run else 'is'} excluded")
    for one in told.excluded:
        if told.dry_run and one.since_epoch > told.epoch:
            click.echo(f"node {one.node} would be excluded: {one.reason}")
        else:
            click.echo(f"node {one.node} is excluded since epoch {one.since_epoch}: {one.reason}")


def progress_lines(request: Request, *, counts: bool = True) -> list[str]:
    """What a waiting command tells: the stage and what was moved (not without `counts`), then whom it waits
    for.

    Ages are left out, so that a line is told when something changes and not each time it is asked.
    """
    moved = progress_text(request.progress, ages=False) if counts else ""
    facts = [request.stage or request.state, moved]
    lines = [f"request {request.id}: {', '.join(fact for fact in facts if fact)}"]
    lines += [f"  {line.rpartition(' (')[0] or line}" for line in waiting_lines(request.waiting)]
    return lines


def epochs_text(request: Request) -> str:
    """`8 to 12` of one that ended, `from 8` of one that runs."""
    began = request.began_epoch or request.requested_epoch
    if began is None:
        return ""
    return f"from {began}" if request.ended_epoch is None else f"{began} to {request.ended_epoch}"


def _where(request: Request) -> str:
    if not request.stage:
        return ""
    moved = progress_text(request.progress)
    return stage_text(request) + (f", {moved}" if moved else "")


def _epochs(request: Request) -> str:
    return f"epochs {epochs_text(request)}" if request.ended_epoch is not None else ""


#: How often a wait asks again; a person sees no delay, a node no load.
POLL_S: Final = 0.2


@click.group()
def topology() -> None:
    """Change who is in the cluster."""


topology.add_command(watch)


#: Of every command that asks for an operation.
_asking: Final = render.together(
    click.option("--refuse", is_flag=True, help="Begin at once or not at all, instead of waiting."),
    render.dry_run,
    render.plan,
    render.wait,
    render.wait_timeout,
    render.of_call,
)
_asking_of_node: Final = render.together(
    _asking, click.argument("node", metavar="NODE", shell_complete=completion.nodes)
)


def _ask(kind: str, node: str, call: render.Call, **more: Any) -> int:
    """Ask for an operation about a node, and follow it."""
    cluster = call.cluster()
    target = client.node_id(cluster.node_list(), node)
    return _asked(cluster, {"kind": kind, "node": target, **more}, call)


def _asked(cluster: ClusterClient, wanted: Mapping[str, Any], call: render.Call) -> int:
    """Ask for what the request says, or what it would do, and follow it."""
    request = {**wanted, "dry_run": False, **({"policy": "refuse"} if call.refuse else {})}
    if call.dry_run or call.plan:
        answer = cluster.submit({**request, "dry_run": True})
        _show_planned("request", request, answer, call)
        return 0
    return _submitted(cluster, cluster.submit(request), call)


def _show_planned(
    operation: str, request: Mapping[str, Any], answer: Mapping[str, Any], call: render.Call
) -> None:
    """Show a dry run, and keep it in a file when that is wanted."""
    if call.plan is not None:
        plans.write(call.plan, operation, request, answer)
    _show(answer, call, str(answer.get("schema")))
    if call.plan is not None:
        click.echo(
            f"plan written to {call.plan}; carry it out: lockstep topology apply {call.plan}", err=True
        )


def _submitted(cluster: ClusterClient, answer: Mapping[str, Any], call: render.Call) -> int:
    """Show what came of a request, followed to its end if that is wanted."""
    if answer.get("schema") == "force-remove/1":
        _show(answer, call, "force-remove/1")
        return 0
    if not call.wait:
        _show(answer, call, "request/1")
        return 0
    with runs.unseen(f"request {answer['id']}", f"lockstep topology cancel {answer['id']}"):
        ended = follow(cluster, str(answer["id"]), call.timeout_s)
    _show(ended, call, "request/1")
    return _exit_code(ended)


@topology.command()
@_asking_of_node
def decommission(node: str, call: render.Call) -> int:
    """Move everything off NODE (id, host id or address), then let it leave."""
    return _ask("decommission", node, call)


@topology.command()
@_asking_of_node
@click.option("--force", is_flag=True, help="Give up what only NODE had; ranges stay degraded till repaired.")
@click.option("--reason", default="", metavar="TEXT", help="Why it is forced, for people who look later.")
@click.option("--presume-dead", is_flag=True, help="Remove NODE although it answers: it hangs, or must go.")
def remove(node: str, force: bool, reason: str, presume_dead: bool, call: render.Call) -> int:
    """Give what dead NODE held to other nodes, copied from its other replicas."""
    more: dict[str, Any] = {"force": True, "reason": reason} if force else {}
    if presume_dead:
        more["presume_dead"] = True
    return _ask("remove", node, call, **more)


@topology.command()
@_asking_of_node
@click.option(
    "--token", "tokens", type=render.TOKEN, multiple=True, required=True, help="Once for each token."
)
def move(node: str, tokens: tuple[int, ...], call: render.Call) -> int:
    """Have NODE own other tokens."""
    return _ask("move", node, call, tokens=list(tokens))


@topology.command()
@_asking_of_node
@click.option("--from", "source_dc", default="", metavar="DC", help="Copy only from this data centre.")
def rebuild(node: str, source_dc: str, call: render.Call) -> int:
    """Fill what NODE holds anew from other replicas."""
    return _ask("rebuild", node, call, **({"source_dc": source_dc} if source_dc else {}))


@topology.command()
@click.argument("node", metavar="NODE", shell_complete=completion.nodes)
@click.option("--address", default="", metavar="ADDRESS", help="Of the new node, when it has another one.")
@render.dry_run
@render.plan
@render.of_call
def replace(node: str, address: str, call: render.Call) -> None:
    """Say how a new node takes the place of dead NODE, and with --dry-run what that would do.

    The new node asks for it by itself: start it with an empty data directory and `replaces` set.
    """
    cluster = call.cluster()
    nodes = cluster.node_list()
    target = client.node_id(nodes, node)
    request = {"kind": "replace", "node": target, "new": {"address": address}}
    answer = cluster.submit({**request, "dry_run": True})
    if call.dry_run or call.plan:
        _show_planned("request", request, answer, call)
        return
    seeds = [f"{one.address}:{one.internode_port}" for one in nodes if one.alive]
    wanted = {"replaces": target, "seeds": seeds}
    if call.as_json({"node": target, "cluster": wanted}, "replacement/1"):
        return
    click.echo(f"start a node with an empty data directory and this in its configuration\n\n[cluster]\n"
               f"replaces = {target}\nseeds = {seeds}")  # fmt: skip


@topology.command()
@click.argument("file", metavar="FILE")
@render.wait
@render.wait_timeout
@render.of_call
def apply(file: str, call: render.Call) -> int:
    """Carry out a plan that --plan wrote, unless what it was made against has changed since."""
    document = plans.read(file)
    cluster = call.cluster()
    body = {**document["request"], "base": document["base"]}
    if document["operation"] == "exclude":
        _show(cluster.exclude(body), call, "excluded/1")
        return 0
    return _submitted(cluster, cluster.submit(body), call)


@topology.command("rf")
@_asking
@click.argument("keyspace", metavar="KEYSPACE", shell_complete=completion.keyspaces)
@click.argument("replication", metavar="NAME=FACTOR...", nargs=-1, required=True)
def replication_factors(keyspace: str, replication: tuple[str, ...], call: render.Call) -> int:
    """Change KEYSPACE's replication in single safe steps, as ALTER KEYSPACE does.

    One FACTOR for a data centre each (`east=3 west=2`), or `simple=3` for SimpleStrategy. A data centre that
    is not named keeps no replicas. With tablets also the racks that have a replica each: `east=[r1,r2]`.
    """
    cluster = call.cluster()
    wanted = {
        "kind": "replication_change",
        "keyspace": keyspace,
        "replication": _replication_options(replication),
    }
    return _asked(cluster, wanted, call)


def _replication_options(given: tuple[str, ...]) -> dict[str, str]:
    """The options as CQL writes them; a usage error when they are not NAME=FACTOR or NAME=[RACK,RACK]."""
    factors: dict[str, str] = {}
    for one in given:
        name, separator, factor = one.rpartition("=")
        if not separator or not name or name in factors:
            raise click.UsageError(f"{one!r} is not NAME=FACTOR, each name once")
        named = factor[1:-1].split(",") if factor.startswith("[") and factor.endswith("]") else None
        factors[name] = factor if named is None else list_text([rack.strip() for rack in named])
    if "simple" not in factors:
        return {"class": "NetworkTopologyStrategy", **factors}
    if len(factors) > 1:
        raise click.UsageError("SimpleStrategy has one factor: simple=FACTOR")
    return {"class": "SimpleStrategy", "replication_factor": factors["simple"]}


@topology.command("cdc-repair")
@render.of_call
def cdc_repair(call: render.Call) -> None:
    """Make streams of captured changes fit the ring again, a minute from now: after moves and departures."""
    answer = call.cluster().admin.post("/v1/topology/streams", {})
    if call.as_json(answer, "streams/1"):
        return
    told = read(Streams, answer)
    newest = told.generations[-1]
    begins = render.time_text(newest.begins_ms * 1000)
    earliest = "" if newest.published else ", or later where a node does not know them"
    click.echo(f"{newest.streams} streams count from {begins} on{earliest}, epoch {told.epoch}")


@topology.command()
@click.argument("request_id", metavar="ID")
@render.of_call
def cancel(request_id: str, call: render.Call) -> None:
    """Take a request back while its reads have not moved yet."""
    _show(call.cluster().cancel(request_id), call, "request/1")


@topology.command()
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=completion.nodes)
@click.option("--undo", is_flag=True, help="Take the nodes back: they have caught up.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people who look later.")
@render.dry_run
@render.plan
@render.of_call
def exclude(nodes: tuple[str, ...], undo: bool, reason: str, call: render.Call) -> None:
    """Shut NODEs out: no step counts them as having seen it, and no node takes their requests for data."""
    cluster = call.cluster()
    known = cluster.node_list()
    wanted = [client.node_id(known, node) for node in nodes]
    body = {"nodes": wanted, "undo": undo, "reason": reason}
    if call.dry_run or call.plan:
        _show_planned("exclude", body, cluster.exclude({**body, "dry_run": True}), call)
        return
    _show(cluster.exclude(body), call, "excluded/1")


@topology.command()
@render.of_call
def requests(call: render.Call) -> None:
    """List requests: queued, running, and those that ended lately."""
    answer = call.cluster().requests()
    if call.as_json(answer, "requests/1"):
        return
    rows = read(Requests, answer).requests
    if not rows:
        click.echo("no requests")
    table = [
        [
            row.id,
            title(row),
            row.state,
            row.stage,
            epochs_text(row),
            progress_text(row.progress),
            "; ".join(waiting_lines(row.waiting)),
        ]
        for row in rows
    ]
    render.table(["id", "request", "state", "stage", "epochs", "moved", "waits"], table)


def follow(
    cluster: ClusterClient, request_id: str, timeout_s: float, poll_s: float = POLL_S
) -> dict[str, Any]:
    """The request once it has ended; every change on the way is told on stderr.

    Raises OutcomeUnknown when it still runs after `timeout_s`. A node that does not answer is asked again:
    the operation itself does not depend on it.
    """
    deadline = time.monotonic() + timeout_s
    told, shape, told_at = "", "", 0.0
    while True:
        try:
            request = cluster.request(request_id)
            seen = read(Request, request)
            line = "\n".join(progress_lines(seen))
            now_shape = "\n".join(progress_lines(seen, counts=False))
        except PeerError as error:
            request, line = {}, f"no answer: {error.message}"
            now_shape = line
        if request.get("state") in ENDED:
            return request
        now = time.monotonic()
        if now_shape != shape or (line != told and now - told_at >= NUMBERS_EVERY_S):
            click.echo(line, err=True)
            told, shape, told_at = line, now_shape, now
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"request {request_id} still runs after {timeout_s:g} s",
                hint=f"lockstep topology watch {request_id}",
            )
        time.sleep(poll_s)


def _show(answer: Mapping[str, Any], call: render.Call, schema: str) -> None:
    if call.as_json(answer, schema):
        return
    if schema == "request-plan/1":
        plans.show(answer)
    elif schema == "excluded/1":
        show_excluded(read(ExcludedNodes, answer))
    elif schema == "force-remove/1":
        show_forced(read(ForceRemove, answer))
    else:
        show_request(read(Request, answer))


def _exit_code(request: Mapping[str, Any]) -> int:
    return 0 if request.get("state") == "done" else 1
