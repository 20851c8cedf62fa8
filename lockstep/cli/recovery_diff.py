"""Owns `lockstep recovery diff`: where the log of a node that was away leaves that of the repaired cluster.

Invariant: only reads, of both sides; nothing is claimed about epochs of which neither log tells.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from lockstep.cli.shared import client, render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.service import LoggedEntry
from lockstep.documents.status import Status
from lockstep.values.errors import PreconditionError


class Forked(msgspec.Struct, frozen=True):
    """`common`: the last epoch at which both have one history. `here` and `there`: what the node that was
    away, and the repaired cluster, have behind it."""

    common: int
    here: tuple[LoggedEntry, ...]
    there: tuple[LoggedEntry, ...]


def forked(here: Sequence[LoggedEntry], there: Sequence[LoggedEntry]) -> Forked:
    """From what both keep of their logs, ascending. PreconditionError when that has no epoch in common."""
    own, other = _hashes(here), _hashes(there)
    both = [epoch for epoch in own if own[epoch] == other.get(epoch)]
    if not both:
        shared = sorted(own.keys() & other.keys())
        why = f"they differ at epoch {shared[0]} already" if shared else "no epoch is in both"
        raise PreconditionError(
            f"what the logs keep has no entry in common: {why}",
            hint="ask a node of either side that keeps more of its log",
        )
    common = max(both)
    return Forked(
        common,
        tuple(one for one in here if one.epoch > common),
        tuple(one for one in there if one.epoch > common),
    )


def _hashes(entries: Sequence[LoggedEntry]) -> dict[int, str]:
    """The hashes that the entries tell, each also of the one before it."""
    before = {one.epoch - 1: one.previous_hash for one in entries}
    return before | {one.epoch: one.hash for one in entries}


@click.command("diff")
@click.option("--old-cluster-url", "old", metavar="HOST[:PORT]", required=True, help="A node that was away.")
@click.option(
    "--new-cluster-url", "new", metavar="HOST[:PORT]", required=True, help="A node of the repaired cluster."
)
@render.of_call
def compare(old: str, new: str, call: render.Call) -> None:
    """Show which entries only a node that was away has, and which only the repaired cluster."""
    found = forked(*(_kept(client.connect(url, call.call_timeout_s)) for url in (old, new)))
    answer = msgspec.to_builtins(found)
    if call.as_json(answer, "recovery-diff/1"):
        return
    click.echo(f"one history up to epoch {found.common}")
    for name, entries in ((old, found.here), (new, found.there)):
        click.echo(f"only at {name}: {render.counted(len(entries), 'entry')}")
        render.table(
            ["epoch", "kind", "asked by", "at", "hash", ""],
            [
                [
                    one.epoch,
                    one.kind,
                    one.actor,
                    render.time_text(one.committed_at_us),
                    one.hash[:12],
                    one.summary,
                ]
                for one in entries
            ],
        )


def _kept(asked: ClusterClient) -> list[LoggedEntry]:
    newest = read(Status, asked.status()).epoch
    return [read(LoggedEntry, one) for one in asked.log_entries(1, newest, available=True)]
