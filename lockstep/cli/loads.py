"""Owns `lockstep pipeline loads`: which bulk loads run or ended lately, and the end of one.

Invariant: nothing here decides whether a load may be ended; the node that is asked does.
"""

from __future__ import annotations

import click

from lockstep.cli.shared import render
from lockstep.documents import read
from lockstep.documents.runs import LoadEnd, LoadRun, Loads

_MICROSECONDS_A_MILLISECOND = 1000


@click.group()
def loads() -> None:
    """Look at bulk loads, and end them."""


@loads.command("list")
@click.option("--running", is_flag=True, help="Leave out those that have ended.")
@render.of_call
def list_(running: bool, call: render.Call) -> None:
    """Show bulk loads that run and that ended lately; `staged` is what the asked node holds of them."""
    answer = call.cluster().loads()
    if running:
        answer = {**answer, "loads": [one for one in answer["loads"] if one["state"] == "running"]}
    if call.as_json(answer, "loads/1"):
        return
    told = read(Loads, answer).loads
    if not told:
        click.echo("no bulk load runs" if running else "no bulk load runs, and none ended lately")
    render.table(
        ["load", "table", "phase", "staged", "rows", "began", "age s", "lease s", "reason"],
        [_row(load) for load in told],
    )


def _row(load: LoadRun) -> list[object]:
    staged = (
        f"{load.staged_files} files, {render.bytes_text(load.staged_bytes)}" if load.staged_files else "-"
    )
    return [
        load.job,
        f"{load.keyspace}.{load.table}",
        load.phase,
        staged if load.staged_files else None,
        load.rows or None,
        render.time_text(load.began_ms * _MICROSECONDS_A_MILLISECOND),
        round(load.age_s),
        None if load.lease_left_s is None else round(load.lease_left_s),
        load.reason or None,
    ]


@loads.command()
@click.argument("job", metavar="JOB")
@click.option("--reason", default="", help="What its job is told; that an operator cancelled it by default.")
@click.option("--dry-run", is_flag=True, help="Say what would be left out; change nothing.")
@render.of_call
def cancel(job: str, reason: str, call: render.Call) -> None:
    """End the bulk load JOB: nothing of it becomes part of the table, and its files go.

    Refused once it was committed. Of one that has ended otherwise, nothing is changed.
    """
    wanted = {"job": job, "dry_run": call.dry_run, **({"reason": reason} if reason else {})}
    answer = call.cluster().cancel_load(wanted)
    if call.as_json(answer, "load-end/1"):
        return
    told = read(LoadEnd, answer).load
    if told.state == "running":
        size = render.bytes_text(told.staged_bytes)
        files = render.counted(told.staged_files, "file")
        click.echo(f"would end load {told.job} of {told.keyspace}.{told.table}: {files}, {size} staged here")
        return
    click.echo(f"load {told.job} of {told.keyspace}.{told.table} is {told.state}: {told.reason}")
