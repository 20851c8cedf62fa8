"""Owns `lockstep recovery`: how the consensus groups fare when something is lost."""

from __future__ import annotations

from typing import Any

import click

from lockstep.cli import client, options, render


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
        _show_local(answer)
    else:
        _show_global(answer)


def _show_local(answer: dict[str, Any]) -> None:
    names = ["node", "address", "state", "role", "term", "index", "epoch", "hash", "reason"]
    rows = [
        [str(row.get(name) or "")[:12] if name == "hash" else row.get(name) for name in names]
        for row in answer.get("states", [])
    ]
    if not rows:
        click.echo(f"no node takes part in {answer.get('group')}")
    render.table(names, rows)


def _show_global(answer: dict[str, Any]) -> None:
    state = str(answer.get("state"))
    colour = {"Available": "green", "Degraded": "yellow"}.get(state, "red")
    count, voters = answer.get("available_peers"), answer.get("voters", [])
    click.echo(
        f"{answer.get('group')}: {render.styled(state, colour, bold=True)}, "
        f"{count} of {len(voters)} voting members available"
    )
    names = ["node", "available", "state", "reason"]
    render.table(names, [[row.get(name) for name in names] for row in answer.get("members", [])])
