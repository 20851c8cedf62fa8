"""Owns `lockstep ring`: who owns which tokens; and the ring of a cluster that runs without a log, what its
members have promised, why nothing is agreed on, and an operator's abort.

Invariant: nothing is decided here; an abort of what may be committed is refused by the node unless `--force`
says so. Changes that `propose` asks for are the operations of `lockstep topology`.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from lockstep.cli import answers, topology
from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.ring import Promised, Promises, RingAborted, RingReport, RingWhy
from lockstep.values.errors import LockstepError

_ALL = "all members"
_MOST = "a majority of the members"


class _Ring(click.Group):
    """Without a subcommand it shows tokens and ranges."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ("--help", "-h"))
        return super().parse_args(ctx, args if named else ["show", *args])


@click.group(cls=_Ring)
def ring() -> None:
    """Show each node's share of the ring; with KEYSPACE, who holds each range of it.

    `lockstep ring [KEYSPACE[.TABLE]]` is short for `lockstep ring show`. The other commands are of a cluster
    that runs on the ring without a log.
    """


ring.add_command(answers.ring, "show")


@ring.command()
@render.of_call
def status(call: render.Call) -> None:
    """Show the ring as the asked node has it, and whether anything can be agreed on."""
    answer = call.cluster().ring()
    if call.as_json(answer, "ring/1"):
        return
    told = read(RingReport, answer)
    whose = _ALL if told.mode == "unanimous" else _MOST
    click.echo(f"no log: {whose} must accept each change (mode {told.mode})")
    through = f"node {told.designated}" if told.designated else "nobody, no member seems alive"
    click.echo(f"ring {told.epoch} {told.fingerprint[:16]}, changes go through {through}")
    for line in _trouble(told):
        click.echo(line)
    click.echo()
    render.table(
        ["member", "state", "voice", "alive", "has this ring"],
        [
            [
                name,
                state,
                "yes" if name in told.voters else "",
                "no" if name in told.silent else "yes",
                "not said" if name in told.laggards else "yes",
            ]
            for name, state in sorted(told.members.items(), key=lambda one: int(one[0]))
            if state != "left"
        ],
    )
    for line in told.ended:
        click.echo(f"ended here: {line}")


@ring.command()
@render.of_call
def promises(call: render.Call) -> None:
    """Show what each node has promised, or accepted, and does not know the end of."""
    told = _promises(call.cluster())
    if call.as_json(msgspec.to_builtins(told), "ring-promises/1"):
        return
    render.table(
        ["node", "ring", "holds", "of", "carries", "asked by"],
        [
            [
                one.node,
                one.epoch if not one.silent else None,
                one.silent or (one.pending.name if one.pending is not None else "nothing"),
                one.pending.initiator if one.pending is not None else None,
                one.pending.what if one.pending is not None else None,
                one.pending.actor if one.pending is not None else None,
            ]
            for one in told.nodes
        ],
    )


@ring.command()
@render.of_call
def why(call: render.Call) -> None:
    """Say why nothing is agreed on, or that nothing is in the way."""
    report = read(RingReport, call.cluster().ring())
    lines = _trouble(report) or ["nothing is in the way: what is proposed is agreed on"]
    told = RingWhy(epoch=report.epoch, reasons=tuple(lines))
    if not call.as_json(msgspec.to_builtins(told), "ring-why/1"):
        for line in lines:
            click.echo(line)


@ring.command()
@click.argument("name", metavar="PROPOSAL")
@click.option("--force", is_flag=True, help="Although its initiator may have committed it.")
@render.of_call
def abort(name: str, force: bool, call: render.Call) -> None:
    """End a pending PROPOSAL at the asked node; `promises` lists them.

    In the mode of majorities the ring is ended without a change, or the proposal is finished if it may be
    decided. In the mode unanimous the node gives its promise back, which can contradict a commit that its
    initiator has not told anybody of: ask the initiator itself where it can be reached.
    """
    answer = call.cluster().admin.post("/v1/ring/abort", {"name": name, "force": force})
    if not call.as_json(answer, "ring-abort/1"):
        click.echo(read(RingAborted, answer).text)


@ring.group()
def propose() -> None:
    """Propose a change of the members, which moves data between its two steps.

    A node that joins or replaces another one proposes that itself when it is started: `lockstep cluster add`.
    """


propose.add_command(topology.decommission, "leave")
propose.add_command(topology.remove, "remove")
propose.add_command(topology.move, "move")


def _promises(cluster: ClusterClient) -> Promises:
    found = []
    for node in cluster.node_list():
        try:
            report = read(RingReport, cluster.at(node.address, node.admin_port).ring())
        except LockstepError as error:
            found.append(Promised(node.id, silent=error.message))
        else:
            found.append(Promised(node.id, report.epoch, report.pending))
    return Promises(nodes=tuple(found))


def _trouble(told: RingReport) -> list[str]:
    """What is in the way of a change, or went wrong."""
    lines: list[Any] = []
    if told.blocked:
        lines.append(f"nothing can be agreed on: {told.blocked}")
    if told.proposing is not None:
        whom = ", ".join(told.proposing.missing)
        waits = f", waits for {whom}" if whom else ""
        lines.append(f"proposes {told.proposing.name} ({told.proposing.what}){waits}")
    if told.pending is not None:
        lines.append(f"holds {told.pending.name} ({told.pending.what}) of node {told.pending.initiator}")
    if told.waiting:
        lines.append(f"{render.counted(told.waiting, 'change')} wait to be proposed")
    lines += [f"ALARM: {alarm}" for alarm in told.alarms]
    return lines
