"""Owns `lockstep cms reconfigure`, `freeze` and `thaw`: who votes in the metadata group, and when it rests.

Invariant: a wait that ends early never says the change failed; it says that it goes on, and exits 5.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from lockstep.cli.shared import client, options, render
from lockstep.cli.shared.node_waits import wait_for_nodes
from lockstep.cli.snapshots import show_plan
from lockstep.documents import read
from lockstep.documents.service import ServicePlan, Voters
from lockstep.values.errors import ConfigurationError, OutcomeUnknown, PeerError

#: How often a wait asks again; a person sees no delay, a node no load.
POLL_S: Final = 0.2
STATUS_PATH: Final = "/v1/cms/reconfiguration"
_ENDED: Final = ("settled", "paused")


@click.command()
@click.argument("size", metavar="[SIZE]", required=False)
@click.option("--nodes", metavar="ID,…", help="Exactly these voters instead of a number.")
@click.option("--status", is_flag=True, help="Show the voters and a running change.")
@click.option("--cancel", is_flag=True, help="Stop the running change; what is done stays.")
@click.option("--resume", is_flag=True, help="Let voters be changed automatically again after a cancel.")
@options.of_change
def reconfigure(
    size: str | None,
    nodes: str | None,
    status: bool,
    cancel: bool,
    resume: bool,
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    host: str,
    call_timeout_s: float,
    output: str,
) -> int:
    """Set how many nodes vote on metadata: an odd SIZE, or `auto` to follow the size of the cluster."""
    if (size is not None) + (nodes is not None) + status + cancel + resume != 1:
        raise ConfigurationError("say one of SIZE, --nodes, --status, --cancel and --resume")
    if dry_run and status:
        raise ConfigurationError("--dry-run goes with what changes something")
    admin = client.connect(host, call_timeout_s).admin
    if status:
        _show(admin.get(STATUS_PATH), output)
        return 0
    if cancel:
        answer = admin.post("/v1/cms/cancel", {"dry_run": dry_run})
    elif resume:
        answer = admin.post("/v1/cms/resume", {"dry_run": dry_run})
    else:
        answer = admin.post("/v1/cms/reconfigure", {**_wanted(size, nodes), "dry_run": dry_run})
    if dry_run:
        (show_plan if cancel or resume else _show_plan)(answer, output)
        return 0
    if wait:
        answer = follow(admin, answer, timeout_s)
    _show(answer, output)
    return 0


@click.command()
@click.argument("reason")
@options.of_change
def freeze(
    reason: str,
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    host: str,
    call_timeout_s: float,
    output: str,
) -> None:
    """Refuse schema and topology changes from now on, with REASON; reads and writes go on."""
    body = {"reason": reason, "dry_run": dry_run}
    _wished("/v1/cms/freeze", body, wait, timeout_s, client.connect(host, call_timeout_s), output)


@click.command()
@options.of_change
def thaw(dry_run: bool, wait: bool, timeout_s: float, host: str, call_timeout_s: float, output: str) -> None:
    """Let the metadata be changed again."""
    body = {"dry_run": dry_run}
    _wished("/v1/cms/thaw", body, wait, timeout_s, client.connect(host, call_timeout_s), output)


def _wished(
    path: str,
    body: dict[str, Any],
    wait: bool,
    timeout_s: float,
    cluster: client.ClusterClient,
    output: str,
) -> None:
    """Send a wish, and wait until every node that is up has applied it."""
    answer = cluster.admin.post(path, body)
    if body["dry_run"]:
        show_plan(answer, output)
        return
    if wait:
        epoch = int(answer.get("epoch", 0))

        def unfinished(there: dict[str, Any]) -> str:
            return "" if int(there.get("epoch", 0)) >= epoch else f"has not applied epoch {epoch}"

        wait_for_nodes(cluster, unfinished, timeout_s, f"this is in the log at epoch {epoch}")
    _show(answer, output)


def follow(admin: Any, answer: dict[str, Any], timeout_s: float, poll_s: float = POLL_S) -> dict[str, Any]:
    """The voters once nothing changes any more; every change on the way is told on stderr.

    Raises OutcomeUnknown when a change still runs after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    seen = read(Voters, answer)
    least, told = seen.epoch, ""
    while seen.state not in _ENDED or seen.epoch < least:
        line = _line(seen)
        if line != told:
            click.echo(line, err=True)
            told = line
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"the voters still change after {timeout_s:g} s", hint="lockstep cms reconfigure --status"
            )
        time.sleep(poll_s)
        try:
            answer = admin.get(STATUS_PATH)
        except PeerError as error:
            answer = {"state": f"no answer: {error.message}"}
        seen = read(Voters, answer)
    return answer


def _wanted(size: str | None, nodes: str | None) -> dict[str, Any]:
    if nodes is not None:
        try:
            return {"nodes": [int(node) for node in nodes.split(",")]}
        except ValueError:
            raise ConfigurationError(f"{nodes!r} is no list of node ids", hint="--nodes 3,4,5") from None
    if size == "auto":
        return {"automatic": True}
    if size is None or not size.lstrip("-").isdecimal():
        raise ConfigurationError(f"{size} is no number of voters", hint="an odd number, or auto")
    return {"size": int(size)}


def _line(told: Voters) -> str:
    """The voters and the position in a change, in one line without ages."""
    change = told.change
    text = f"{told.state}: voters {_ids(told.voters)}"
    if change is not None:
        parts = [
            f"{word} {_ids(nodes)}"
            for word, nodes in (("adds", change.additions), ("removes", change.removals))
            if nodes
        ]
        text += f"; change {change.id} {', '.join(parts)}: {change.done} of {change.steps} steps"
    for one in told.waiting:
        text += f"; waits: {f'node {one.node} ' if one.node else ''}{one.reason}"
    return text


def _show(answer: Mapping[str, Any], output: str) -> None:
    if output == "json":
        render.json_out(answer, "cms-reconfiguration/1")
        return
    told = read(Voters, answer)
    click.echo(_line(told))
    size = told.size
    wanted = f"{size}, set by an operator" if size else f"{told.target}, as the cluster's size asks"
    click.echo(f"  wanted voters: {wanted}")
    for name, why in (("paused", told.paused), ("frozen", told.frozen)):
        if why:
            click.echo(f"  {name}: {why}")
    if told.leaving:
        click.echo(f"  leaving: {_ids(told.leaving)}")


def _show_plan(answer: Mapping[str, Any], output: str) -> None:
    if output == "json":
        render.json_out(answer, "cms-plan/1")
        return
    plan = read(ServicePlan, answer)
    click.echo(f"at epoch {plan.epoch}: voters {_ids(plan.voters or ())} -> {_ids(plan.voters_after or ())}")
    for number, step in enumerate(plan.steps, 1):
        click.echo(f"  {number}. {step}")
    if not plan.steps:
        click.echo("  nothing to do")
    for name, what in (("waits for", plan.waits_for), ("way back", plan.way_back)):
        if what:
            click.echo(f"{name}: {what}")


def _ids(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
