"""Owns `lockstep recovery`: how the consensus groups fare when something is lost."""

from __future__ import annotations

import click

from lockstep.cli.shared import client, options, render
from lockstep.documents import read
from lockstep.documents.groups import GlobalState, LocalStates


@click.group()
def recovery() -> None:
    """How the consensus groups fare when nodes are lost."""


@recovery.group()
def cluster() -> None:
    """The groups that make the nodes one cluster."""


@cluster.command()
@click.argument("group", type=click.Choice(["cmg", "metastorage"]))
@click.option("--local", "scope", flag_value="local", help="What each node says of itself.")
@click.option("--global", "scope", flag_value="global", help="The group as a whole (the default).")
@click.option(
    "--nodes", metavar="NODE,...", help="With --local: these nodes only, by id, host id or address."
)
@options.of_call
def states(
    group: str, scope: str | None, nodes: str | None, host: str, call_timeout_s: float, output: str
) -> None:
    """Show whether the management group (cmg) or the metadata group (metastorage) can do its work.

    Any node answers, also when no leader is left.
    """
    if nodes and scope != "local":
        raise click.UsageError("--nodes goes with --local")
    asked = client.connect(host, call_timeout_s)
    answer = asked.group_local(group, nodes) if scope == "local" else asked.group_global(group)
    if output == "json":
        render.json_out(answer, "group-local-states/1" if scope == "local" else "group-global-state/1")
        return
    if scope == "local":
        _show_local(read(LocalStates, answer))
    else:
        _show_global(read(GlobalState, answer))


def _show_local(told: LocalStates) -> None:
    if not told.states:
        click.echo(f"no node takes part in {told.group}")
    render.table(
        ["node", "address", "state", "role", "term", "index", "epoch", "hash", "reason"],
        [
            [one.node, one.address, one.state, one.role, one.term, one.index, one.epoch,
             (one.hash or "")[:12], one.reason]
            for one in told.states
        ],
    )  # fmt: skip


def _show_global(told: GlobalState) -> None:
    colour = {"Available": "green", "Degraded": "yellow"}.get(told.state, "red")
    click.echo(
        f"{told.group}: {render.styled(told.state, colour, bold=True)}, "
        f"{told.available_peers} of {len(told.voters)} voting members available"
    )
    render.table(
        ["node", "available", "state", "reason"],
        [[one.node, one.available, one.state, one.reason] for one in told.members],
    )
