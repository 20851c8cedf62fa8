"""Owns `lockstep upgrade`: a cluster's way from the ring to a log.

Invariant: nothing is decided here; it is over once every node says that it is.
"""

from __future__ import annotations

import time

import click
import msgspec

from lockstep.cli.shared import render, runs
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.ring import UpgradeAborted, UpgradeReport
from lockstep.values.errors import LockstepError, PeerTimeout

PATH = "/storage_service/raft_topology/upgrade"
_DONE = "done"


class UpgradeStates(msgspec.Struct, frozen=True):
    """`upgrade-states/1`: what each node says; `silent` ones by id, with why."""

    schema: str = "upgrade-states/1"
    done: bool = False
    nodes: tuple[UpgradeReport, ...] = ()
    silent: dict[str, str] = {}


@click.group()
def upgrade() -> None:
    """From the ring without a log to a cluster with one, while clients go on.

    All nodes must have the same metadata; nothing else changes until that has ended. It can be given up as
    long as the log is not built.
    """


@upgrade.command()
@render.of_call
def status(call: render.Call) -> None:
    """Show where each node is: not_upgraded, build_coordinator_state or done."""
    told = _states(call.cluster())
    if not call.as_json(msgspec.to_builtins(told), told.schema):
        _show(told)


@upgrade.command()
@click.option("--ignore", metavar="NODES", help="Dead nodes that need not agree, separated by commas.")
@click.option(
    "--wait", "wait_s", type=float, default=60.0, show_default=True, help="Seconds; 0: do not wait."
)
@render.of_call
def start(ignore: str | None, wait_s: float, call: render.Call) -> None:
    """Have the cluster get a log, and wait until every node that was not ignored has it.

    Asked for again, it is the same upgrade. Ignored nodes are shut out until an operator takes them back.
    """
    names = [name.strip() for name in (ignore or "").split(",") if name.strip()]
    cluster = call.cluster()
    ids = {str(node.id) for node in cluster.node_list() if {str(node.id), node.address} & {*names}}
    begun = read(UpgradeReport, cluster.admin.post(PATH, {"ignore": names}))
    told = _states(cluster)
    if wait_s:
        told = _waited(cluster, wait_s, begun, ids)
    if not call.as_json(msgspec.to_builtins(told), told.schema):
        _show(told)


@upgrade.command()
@render.of_call
def abort(call: render.Call) -> None:
    """Give up the upgrade under way, at any node; refused once the log is built."""
    answer = call.cluster().admin.post("/v1/upgrade/abort", {})
    if not call.as_json(answer, "upgrade-abort/1"):
        click.echo(read(UpgradeAborted, answer).text)


def _waited(cluster: ClusterClient, wait_s: float, begun: UpgradeReport, ignored: set[str]) -> UpgradeStates:
    deadline_s = time.monotonic() + wait_s
    while True:
        told = _states(cluster)
        if told.done and not {*told.silent} - ignored:
            return told
        gave_up = [one.gave_up for one in told.nodes if one.gave_up and one.epoch > begun.epoch]
        if gave_up and not any(one.begun_epoch for one in told.nodes):
            raise LockstepError(f"the upgrade was given up: {gave_up[0]}", hint="lockstep upgrade status")
        if time.monotonic() >= deadline_s:
            raise PeerTimeout(f"not all nodes are done within {wait_s:g} s", hint="lockstep upgrade status")
        time.sleep(runs.POLL_S)


def _states(cluster: ClusterClient) -> UpgradeStates:
    found, silent = list[UpgradeReport](), dict[str, str]()
    for node in cluster.node_list():
        try:
            found.append(read(UpgradeReport, cluster.at(node.address, node.admin_port).admin.get(PATH)))
        except LockstepError as error:
            silent[str(node.id)] = error.message
    done = bool(found) and all(one.state == _DONE and one.joined for one in found)
    return UpgradeStates(done=done, nodes=tuple(found), silent=silent)


def _show(told: UpgradeStates) -> None:
    running = next((one for one in told.nodes if one.begun_epoch), None)
    if told.done:
        click.echo("done: the cluster has a log")
    elif running is not None:
        apart = f", without nodes {', '.join(map(str, running.ignored))}" if running.ignored else ""
        click.echo(
            f"under way since epoch {running.begun_epoch}, asked for at node {running.initiator}{apart}"
        )
    else:
        click.echo("not upgraded: the cluster runs on the ring without a log")
    for line in dict.fromkeys(one.waits for one in told.nodes if one.waits):
        click.echo(f"waits: {line}")
    for line in dict.fromkeys(one.gave_up for one in told.nodes if one.gave_up):
        click.echo(f"the last one was given up: {line}")
    click.echo()
    rows: list[list[object]] = [
        [one.node, one.epoch, one.state, "yes" if one.joined else ""] for one in told.nodes
    ]
    rows += [[int(node), None, f"no answer: {why}", None] for node, why in told.silent.items()]
    render.table(["node", "epoch", "state", "in the log"], rows)
