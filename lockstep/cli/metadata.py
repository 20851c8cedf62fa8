"""Owns `lockstep metadata`: read the value at an epoch, compare two epochs, prove that nodes agree."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import click

from lockstep.cli import client, options, render
from lockstep.cli.client import ClusterClient
from lockstep.values.errors import ConfigurationError, LockstepError, PeerError

#: Characters of a value that `diff` shows to people: some lines of a terminal.
DIFF_CHARACTERS_MAX = 300


@click.group()
def metadata() -> None:
    """The one value that decides ownership and shape, at any epoch."""


@metadata.command()
@click.option("--epoch", type=int, help="Which epoch; the newest by default.")
@options.host
@options.call_timeout
@options.output
def show(epoch: int | None, host: str, call_timeout_s: float, output: str) -> None:
    """Show the cluster metadata at an epoch."""
    answer = client.connect(host, call_timeout_s).metadata(epoch)
    if output == "json":
        render.json_out(answer, "metadata/1")
        return
    render.document(answer)


@metadata.command()
@click.argument("one", metavar="E1", type=int)
@click.argument("other", metavar="E2", type=int)
@options.host
@options.call_timeout
@options.output
def diff(one: int, other: int, host: str, call_timeout_s: float, output: str) -> None:
    """Show what changed from epoch E1 to epoch E2."""
    answer = client.connect(host, call_timeout_s).metadata_diff(one, other)
    if output == "json":
        render.json_out(answer, "metadata-diff/1")
        return
    changes = answer.get("changes", [])
    if not changes:
        click.echo(f"epochs {one} and {other} do not differ")
    for change in changes:
        click.echo(str(change.get("path", "")))
        for sign, key, colour in (("-", "before", "red"), ("+", "after", "green")):
            if change.get(key) is not None:
                click.echo(render.styled(f"  {sign} {_shortened(render.cell_text(change[key]))}", colour))


def _shortened(text: str) -> str:
    """A whole ring is one value of thousands of characters; JSON has it all."""
    more = len(text) - DIFF_CHARACTERS_MAX
    return text if more <= 0 else f"{text[:DIFF_CHARACTERS_MAX]}… ({more} characters more: -o json)"


@metadata.command()
@click.option("--from", "first", type=int, default=1, show_default=True, help="First epoch to check.")
@options.host
@options.call_timeout
@options.output
def verify(first: int, host: str, call_timeout_s: float, output: str) -> int:
    """Check that every reachable node holds the same unbroken log, as far back as each keeps it.

    Exit code 0: all nodes agree. 1: a chain is broken or nodes differ. 6: what could be read agrees, but
    a node could not be asked.
    """
    cluster = client.connect(host, call_timeout_s)
    newest = int(cluster.status().get("epoch", 0))
    if not 1 <= first <= max(newest, 1):
        raise ConfigurationError(f"epochs {first} to {newest} are no range", hint="the first epoch is 1")
    findings: list[dict[str, Any]] = []
    agreed: dict[int, str] = {}
    for node in cluster.nodes().get("nodes", []):
        findings.append(_verified(cluster, node, first, newest, agreed))
    wrong = [finding for finding in findings if finding["result"] == "differs"]
    unread = [finding for finding in findings if finding["result"] == "unreachable"]
    if output == "json":
        report = {"from": first, "to": newest, "agree": not wrong, "nodes": findings}
        render.json_out(report, "metadata-verify/1")
    else:
        columns = ["node", "address", "entries", "newest", "result", "why"]
        render.table(columns, [[finding[name] for name in columns] for finding in findings])
        sentence = "nodes differ" if wrong else f"all logs read agree from epoch {first} to {newest}"
        click.echo(render.styled(sentence, "red" if wrong else "green", bold=True))
    if wrong:
        return 1
    return 6 if unread else 0


def _verified(
    cluster: ClusterClient, node: Mapping[str, Any], first: int, newest: int, agreed: dict[int, str]
) -> dict[str, Any]:
    """One node's finding; `agreed` collects epoch -> hash over all nodes and is compared with."""
    finding = {"node": node.get("id"), "address": node.get("address"), "entries": 0, "newest": 0}
    try:
        there = cluster.at(str(node["address"]), int(node["admin_port"]))
        entries = there.log_entries(first, newest, available=True)
    except PeerError as error:
        return {**finding, "result": "unreachable", "why": error.message}
    except LockstepError as error:
        return {**finding, "result": "differs", "why": error.message}
    why = broken_chain(entries) or _difference(entries, agreed)
    last = int(entries[-1]["epoch"]) if entries else 0
    result = "differs" if why else "agrees"
    return {**finding, "entries": len(entries), "newest": last, "result": result, "why": why}


def broken_chain(entries: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with the chain of one node's entries, or an empty text."""
    for before, after in itertools.pairwise(entries):
        if int(after["epoch"]) != int(before["epoch"]) + 1:
            return f"epoch {after['epoch']} follows epoch {before['epoch']}"
        if after["previous_hash"] != before["hash"]:
            return f"epoch {after['epoch']} does not continue the hash of epoch {before['epoch']}"
    return ""


def _difference(entries: Sequence[Mapping[str, Any]], agreed: dict[int, str]) -> str:
    for entry in entries:
        if agreed.setdefault(int(entry["epoch"]), str(entry["hash"])) != entry["hash"]:
            return f"another node has a different entry at epoch {entry['epoch']}"
    return ""
