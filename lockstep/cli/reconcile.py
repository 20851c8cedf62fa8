"""Owns `lockstep reconcile`: what replicas of tracked ranges lack, as the asked node knows it, why its
journal keeps what it keeps, and how that shrinks.

Invariant: nothing is decided or changed here.
"""

from __future__ import annotations

import time

import click

from lockstep.cli.shared import render
from lockstep.documents import read
from lockstep.documents.runs import ReconcileAudit, Reconciling, ReplicaLag

#: Ranges of one replica that `why` lists: who wants all of them asks for JSON.
_RANGES_MAX = 8


@click.group()
def reconcile() -> None:
    """Look at tracked tables: what each replica lacks, and why the journal keeps it."""


@reconcile.command()
@render.of_call
def status(call: render.Call) -> None:
    """Show the journal of the asked node, and what each other replica lacks of its ranges."""
    answer = call.cluster().reconciling()
    if call.as_json(answer, "reconcile/1"):
        return
    told = read(Reconciling, answer)
    click.echo(_journal(told))
    render.table(
        ["node", "alive", "ranges", "lacks", "bytes", "for s", "lacked here", "ready in s", "witness of"],
        [_row(node, lags) for node, lags in _by_node(told).items()],
    )


@reconcile.command()
@render.of_call
def why(call: render.Call) -> None:
    """Say for whom the journal of the asked node keeps what, and since when."""
    answer = call.cluster().reconciling()
    if call.as_json(answer, "reconcile/1"):
        return
    told = read(Reconciling, answer)
    click.echo(_journal(told))
    for node, lags in _by_node(told).items():
        behind = sorted((lag for lag in lags if lag.lacks), key=lambda lag: -lag.lacks)
        for lag in behind[:_RANGES_MAX]:
            since = f", the oldest for {lag.lacks_s} s" if lag.lacks_s is not None else ""
            click.echo(
                f"{_where(lag)} up to {lag.last_token}: {lag.lacks} mutations are kept for node {node}"
                f"{since}: {_reason(lag)}"
            )
        if len(behind) > _RANGES_MAX:
            click.echo(f"and {len(behind) - _RANGES_MAX} ranges more for node {node}")
        lacked = sum(lag.is_lacked for lag in lags)
        if lacked:
            click.echo(f"node {node} holds {lacked} mutations that the asked node lacks and fetches")
    unheard = _unheard(told)
    for node in unheard:
        click.echo(f"node {node} is not heard of: what else it holds is not known to the asked node")
    if not unheard and not any(lag.lacks or lag.is_lacked for lag in told.lags):
        click.echo("every replica holds the same")


@reconcile.command()
@render.of_call
def audit(call: render.Call) -> int:
    """Compare the entries of the asked node's journal with those of each other replica, by their content.

    Exits with 1 when some differ, with 6 when what was compared is the same, and not all was. What every
    replica has is kept no more, and `lockstep repair` compares it.
    """
    answer = call.cluster().reconcile_audit()
    told = read(ReconcileAudit, answer)
    if not call.as_json(answer, "reconcile-audit/1"):
        of_what = f"{told.compared} entries of {render.counted(told.ranges, 'range')} compared"
        click.echo(f"node {told.node}: {of_what}, {len(told.differing)} differ")
        for one in told.differing[:_RANGES_MAX]:
            given = f"mutation {one.offset} of node {one.given_by}, log {one.start}"
            click.echo(f"{given}, is another one at node {one.node}")
        if len(told.differing) > _RANGES_MAX:
            click.echo(f"and {len(told.differing) - _RANGES_MAX} more")
        if told.differing:
            click.echo(
                "one of the two is damaged: `lockstep node scrub` on both, then `lockstep repair --full`"
            )
        for silent in told.silent:
            click.echo(f"node {silent.node} was not compared with: {silent.reason}")
        if not told.ended:
            click.echo("not all were compared: there are too many, or too many differ")
    return 1 if told.differing else 0 if told.ended and not told.silent else 6


@reconcile.command()
@click.option(
    "--every", "every_s", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between lines."
)
@click.option("--lines", type=click.IntRange(min=1), default=None, help="Stop after so many.")
@render.of_call
def watch(every_s: float, lines: int | None, call: render.Call) -> None:
    """Follow what replicas lack until all are heard of and nobody lacks anything; with `-o json` a document
    a line."""
    cluster, shown = call.cluster(), 0
    while True:
        answer = cluster.reconciling()
        told = read(Reconciling, answer)
        if not call.as_json(answer, "reconcile/1"):
            behind = {node: sum(lag.lacks for lag in lags) for node, lags in _by_node(told).items()}
            parts = [f"node {node} lacks {lacks}" for node, lacks in behind.items() if lacks]
            parts += [f"node {node} is not heard of" for node in _unheard(told)]
            click.echo(f"{_journal(told)}; {', '.join(parts) or 'nobody lacks anything'}")
        shown += 1
        is_over = not _unheard(told) and not any(lag.lacks or lag.is_lacked for lag in told.lags)
        if is_over or shown == lines:
            return
        time.sleep(every_s)


def _journal(told: Reconciling) -> str:
    size = render.bytes_text(told.entry_bytes)
    said = (
        f"node {told.node}: {told.entries} mutations ({size}) in the journal, of {told.ranges} tracked ranges"
    )
    if told.witnessed:
        most = render.bytes_text(told.witness_bytes_max)
        said += (
            f"; {told.witnessed} of them ({render.bytes_text(told.witness_bytes)} of at most {most}) as a "
            "witness, which keeps them until all full replicas have them"
        )
    if told.in_cohorts:
        said += f"; {told.in_cohorts} in its tables alone, for who was away"
    if told.getting:
        said += f"; it gets what it missed of {told.getting} ranges"
    return said


def _unheard(told: Reconciling) -> list[int]:
    """Replicas that may hold what nobody here knows of."""
    return sorted({lag.node for lag in told.lags if not (lag.alive and lag.heard)})


def _by_node(told: Reconciling) -> dict[int, list[ReplicaLag]]:
    found: dict[int, list[ReplicaLag]] = {}
    for lag in sorted(told.lags, key=lambda lag: (lag.node, lag.last_token)):
        found.setdefault(lag.node, []).append(lag)
    return found


def _row(node: int, lags: list[ReplicaLag]) -> list[object]:
    lacks = sum(lag.lacks for lag in lags)
    ages = [lag.lacks_s for lag in lags if lag.lacks_s is not None]
    return [
        str(node),
        "yes" if lags[0].alive else "no",
        len(lags),
        lacks,
        render.bytes_text(sum(lag.lacks_bytes for lag in lags)) if lacks else None,
        max(ages) if ages else None,
        sum(lag.is_lacked for lag in lags),
        lags[0].left_s if lacks else None,
        sum(lag.witness for lag in lags),
    ]


def _where(lag: ReplicaLag) -> str:
    return f"tablet of {lag.table}" if lag.table else "range"


def _reason(lag: ReplicaLag) -> str:
    if not lag.alive:
        return "it seems dead; it gets them when it is back, or remove or replace it"
    if not lag.heard:
        return "it has not told what it holds since this node started, or since its ranges changed"
    return "it is fetching them"
