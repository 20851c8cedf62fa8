"""Owns `lockstep tablets`: which tables spread by tablets, where those lie, and the picture of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import click

from lockstep.cli.shared import client, render
from lockstep.documents import read
from lockstep.documents.tablets import (
    HeldTablets,
    PlannedMove,
    Replica,
    Tablet,
    TabletMap,
    TabletMigration,
    TabletMoved,
    TabletPlan,
    TabletsResized,
    TabletTable,
    TabletTables,
)
from lockstep.local import tablet_picture
from lockstep.local.admin_client import AdminClient
from lockstep.values.errors import ConfigurationError, LockstepError, OutcomeUnknown

#: As many rows as fit into a terminal's memory at once; JSON has all.
_ROWS_MAX: Final = 4096
#: How often a wait asks again; a person sees no delay, a node no load.
_POLL_S: Final = 0.2


@click.group()
def tablets() -> None:
    """Tables that spread by tablets: where these lie, and how they move."""


@tablets.command("list")
@click.argument("name", metavar="[KEYSPACE[.TABLE]]", required=False, default="")
@render.of_call
def listed(name: str, call: render.Call) -> None:
    """List the tables with tablets, or the tablets of one table."""
    keyspace, _, table = name.partition(".")
    admin = call.cluster().admin
    if not table:
        answer = admin.get("/v1/tablets", keyspace=keyspace or None)
        if call.as_json(answer, "tablets/1"):
            return
        _show_tables(read(TabletTables, answer))
        return
    answer = admin.get("/v1/tablets", keyspace=keyspace, table=table)
    if call.as_json(answer, "tablet-map/1"):
        return
    told = read(TabletMap, answer)
    click.echo(f"{name}, epoch {told.epoch}, {render.counted(len(told.tablets), 'tablet')}")
    render.table(
        ["tablet", "last token", "replicas", "size", "transition"],
        [_row(tablet) for tablet in told.tablets[:_ROWS_MAX]],
    )
    if len(told.tablets) > _ROWS_MAX:
        click.echo(f"... and {len(told.tablets) - _ROWS_MAX} more: `-o json` has all")


def _row(tablet: Tablet) -> list[object]:
    size = "?" if tablet.bytes is None else render.bytes_text(tablet.bytes)
    moving = f"{tablet.kind} to {_places(tablet.next)}: {tablet.stage}" if tablet.stage else ""
    return [tablet.number, tablet.end, _places(tablet.replicas), size, moving]


def _places(replicas: tuple[Replica, ...]) -> str:
    """Nodes, with shards that are not their first."""
    return " ".join(f"{one.node}/{one.shard}" if one.shard else str(one.node) for one in replicas)


def _show_tables(told: TabletTables) -> None:
    if not told.tables:
        click.echo("no table has tablets")
        return
    render.table(
        ["table", "tablets", "moving", "resize", "with it", "balanced", "on nodes", "imbalance"],
        [
            [
                f"{one.keyspace}.{one.table}",
                one.tablets,
                one.moving,
                _resize(one),
                " ".join(one.with_it),
                "yes" if one.is_balanced else "no",
                sum(bool(node.tablets) for node in one.nodes),
                f"{_imbalance(one.nodes):.1%}",
            ]
            for one in told.tables
        ],
    )


def _resize(one: TabletTable) -> str:
    """`split 3: preparing`; nothing where nothing is decided."""
    if one.resize_phase == "none":
        return ""
    what = "new map" if one.resize == "none" else one.resize
    hand = " by hand" if one.is_by_hand else ""
    return f"{what} {one.resize_number}{hand}: {one.resize_phase}"


def _show_resizes(admin: AdminClient, told: TabletTables) -> None:
    """Splits and merges under way; what they wait for is known to the leader alone."""
    resized = [one for one in told.tables if one.resize_phase != "none"]
    if not resized:
        return
    waits = read(TabletPlan, admin.get("/v1/tablets/plan")).resizes
    for one in resized:
        name = f"{one.keyspace}.{one.table}"
        reasons = [wait.reason for wait in waits if wait.table == name]
        click.echo(f"{name}: {_resize(one)}" + "".join([f"; {reason}" for reason in reasons]))


def _imbalance(nodes: tuple[HeldTablets, ...]) -> float:
    return tablet_picture.imbalance([node.tablets for node in nodes])


@tablets.command()
@render.of_call
def status(call: render.Call) -> None:
    """Show how many tablets each node holds, whether the balancer is on, and what splits and merges."""
    admin = call.cluster().admin
    answer = admin.get("/v1/tablets")
    if call.as_json(answer, "tablets/1"):
        return
    told = read(TabletTables, answer)
    moving = sum(one.moving for one in told.tables)
    click.echo(
        f"balancer {'on' if told.is_balanced else 'off'}, {render.counted(len(told.tables), 'table')} with "
        f"{render.counted(sum(one.tablets for one in told.tables), 'tablet')}, {moving} moving"
    )
    _show_resizes(admin, told)
    render.table(
        ["node", "dc", "rack", "tablets", "coming", "leaving"],
        [[one.node, one.dc, one.rack, one.tablets, one.coming, one.leaving] for one in told.nodes],
    )


@tablets.command()
@click.option("--explain", "tablet", default="", metavar="KEYSPACE.TABLE:N", help="Why it moves or not.")
@render.of_call
def plan(tablet: str, call: render.Call) -> None:
    """Show what the balancer moves now and later, what waits, and why."""
    answer = call.cluster().admin.get("/v1/tablets/plan", explain=tablet or None)
    if call.as_json(answer, "tablet-plan/1"):
        return
    told = read(TabletPlan, answer)
    if tablet:
        click.echo(f"tablet {tablet}:")
        for line in told.explained:
            click.echo(f"  {line}")
        return
    click.echo(
        f"balancer {'on' if told.is_balanced else 'off'}: {told.running} moving, "
        f"{render.counted(told.now_count, 'move')} now, {told.later_count} later, "
        f"{render.bytes_text(told.bytes)}, about {told.seconds:.0f} s"
    )
    for drain in told.drains:
        left = f"{render.counted(drain.tablets, 'tablet')}, {render.bytes_text(drain.bytes)} to move"
        click.echo(f"request {drain.request} empties node {drain.node}: {left}, about {drain.seconds:.0f} s")
    for reason in (*told.waits, *(f"{one.table}: {one.reason}" for one in told.resizes)):
        click.echo(f"waits: {reason}")
    rows = [("now", one) for one in told.now] + [("later", one) for one in told.later]
    if rows:
        render.table(
            ["when", "table", "last token", "kind", "from", "to", "size", "why"],
            [_planned_row(when, one) for when, one in rows[:_ROWS_MAX]],
        )


def _planned_row(when: str, one: PlannedMove) -> list[object]:
    size = render.bytes_text(one.bytes)
    return [when, one.table, one.end, one.kind, one.source, one.target, size, one.why]


@tablets.command()
@click.argument("switch", type=click.Choice(["on", "off"]))
@click.argument("name", metavar="[KEYSPACE.TABLE]", required=False, default="")
@render.of_call
def balance(switch: str, name: str, call: render.Call) -> None:
    """Have tablets moved to even out the load, or not; nodes that leave are emptied all the same."""
    answer = call.cluster().admin.post("/v1/tablets/balance", {"on": switch == "on", "table": name})
    if call.as_json(answer, "tablet-balance/1"):
        return
    click.echo(f"the balancer is {switch}{f' for {name}' if name else ''}, epoch {answer['epoch']}")


def _resize_command(kind: str, help_: str) -> None:
    @tablets.command(kind, help=help_)
    @click.argument("name", metavar="KEYSPACE.TABLE[:N]")
    @click.option("--revoke", is_flag=True, help="Take back what is decided of the table and has not ended.")
    @render.of_change
    def resize(name: str, revoke: bool, call: render.Call) -> None:
        _resized(name, "none" if revoke else kind, call)


_resize_command(
    "split",
    "Cut all tablets of a table in two, or tablet N alone, and keep their number. Rows stay where they are.",
)
_resize_command(
    "merge",
    "Make one of each two neighbours of a table, or of tablet N and the one behind it.",
)


def _resized(name: str, kind: str, call: render.Call) -> None:
    full, colon, number = name.partition(":")
    keyspace, _, table = full.partition(".")
    if not table or (colon and not number.isdecimal()):
        raise ConfigurationError(f"{name} is no KEYSPACE.TABLE, nor KEYSPACE.TABLE:NUMBER")
    admin = call.cluster().admin
    wanted: dict[str, object] = {"keyspace": keyspace, "table": table, "kind": kind}
    if colon:
        wanted["tablet"] = int(number)
    answer = admin.post("/v1/tablets/resize", {**wanted, "dry_run": call.dry_run})
    told = read(TabletsResized, answer)
    if call.output != "json":
        click.echo(_resized_text(full, told))
    if call.wait and not call.dry_run and kind != "none":
        _wait_until_resized(admin, told, call.timeout_s)
    call.as_json(answer, "tablet-resize/1")


def _resized_text(name: str, told: TabletsResized) -> str:
    would = "would be " if told.dry_run else ""
    if told.kind == "none":
        return f"{name}: what was decided {would or 'is '}taken back, number {told.number}"
    pairs = f", {render.counted(told.apart, 'pair')} brought together before" if told.apart else ""
    return f"{name}: {told.kind} {told.number} {would}decided, {told.tablets} tablets to {told.after}{pairs}"


def _wait_until_resized(admin: AdminClient, told: TabletsResized, timeout_s: float) -> None:
    """Until the decision has ended; phases, and what they wait for, are told on stderr as they come."""
    deadline, seen, name = time.monotonic() + timeout_s, "", f"{told.keyspace}.{told.table}"
    while True:
        answer = read(TabletTables, admin.get("/v1/tablets", keyspace=told.keyspace))
        one = next(
            (one for one in answer.tables if one.table == told.table or told.table in one.with_it), None
        )
        if one is None:
            raise LockstepError(f"table {name} is not there any more")
        if answer.epoch >= told.epoch and one.resize_number > told.number and one.resize_phase == "none":
            break
        waits = read(TabletPlan, admin.get("/v1/tablets/plan")).resizes
        reasons = [wait.reason for wait in waits if wait.table == f"{one.keyspace}.{one.table}"]
        text = f"phase: {one.resize_phase}" + "".join([f"; {reason}" for reason in reasons])
        if text != seen:
            seen = text
            click.echo(text, err=True)
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"{told.kind} {told.number} of {name} is still {one.resize_phase} after {timeout_s:g} s",
                hint="`lockstep tablets status` shows what it waits for, `--revoke` takes it back",
            )
        time.sleep(_POLL_S)
    if one.tablets != told.after:
        raise LockstepError(
            f"{name} has {one.tablets} tablets, not {told.after}",
            hint=f"{told.kind} {told.number} was taken back, or another one came after it",
        )
    click.echo(f"{name} has {one.tablets} tablets", err=True)


@tablets.command()
@click.argument("keyspace", metavar="KEYSPACE")
@click.argument("step", type=click.Choice(["start", "status", "finalize", "rollback"]))
@render.of_call
def migrate(keyspace: str, step: str, call: render.Call) -> None:
    """Take a keyspace from the ring to tablets, under load. Nothing moves with start: the ranges of the
    ring become tablets. With finalize these may move; rollback goes back to the ring before that."""
    admin = call.cluster().admin
    path = "/v1/tablets/migrate"
    if step == "status":
        answer = admin.get(path, keyspace=keyspace)
    else:
        answer = admin.post(path, {"keyspace": keyspace, "step": step})
    if call.as_json(answer, "tablet-migration/1"):
        return
    told = read(TabletMigration, answer)
    click.echo(
        f"{told.keyspace}: {told.state}, {render.counted(told.tables, 'table')}"
        + (f", {render.counted(told.tablets, 'tablet')}" if told.state != "ring" else "")
        + (f", {told.apart} not where the ring has them: no way back" if told.apart else "")
    )


@tablets.command("map")
@click.argument("name", metavar="KEYSPACE.TABLE")
@click.option("-o", "--output", type=click.Choice(["svg", "png", "json"]), default="svg", show_default=True)
@click.option("--to", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@click.option("--animate", "is_animated", is_flag=True, help="What the balancer's plan makes of it, as SVG.")
@render.host
@render.token_file
@render.user
@render.ca_file
@render.call_timeout
def picture(
    name: str, output: str, target: Path | None, is_animated: bool, host: str, call_timeout_s: float
) -> None:
    """Draw the tablets of a table: tokens from left to right, a lane for each node, colour by size."""
    keyspace, _, table = name.partition(".")
    if not table:
        raise ConfigurationError(f"{name} is no KEYSPACE.TABLE")
    if is_animated and output != "svg":
        raise ConfigurationError("only SVG shows an animation", hint=f"leave `-o {output}` out")
    admin = client.connect(host, call_timeout_s).admin
    answer = admin.get("/v1/tablets", keyspace=keyspace, table=table)
    if output == "json":
        render.json_out(answer, "tablet-map/1")
        return
    told = read(TabletMap, answer)
    if is_animated:
        plan = read(TabletPlan, admin.get("/v1/tablets/plan"))
        moves = [one for one in (*plan.now, *plan.later) if one.table == name]
        drawn = tablet_picture.animated(
            [tablet_picture.picture(one) for one in tablet_picture.steps(told, moves)]
        ).encode()
    elif output == "png":
        drawn = tablet_picture.png(tablet_picture.picture(told))
    else:
        drawn = tablet_picture.svg(tablet_picture.picture(told)).encode()
    if target is None:
        sys.stdout.buffer.write(drawn)
        return
    target.write_bytes(drawn)
    click.echo(f"wrote {target}")


@tablets.command()
@click.argument("name", metavar="KEYSPACE.TABLE")
@click.argument("tablet", type=click.INT)
@click.option("--from", "source", type=click.INT, required=True, help="The node that gives its replica up.")
@click.option("--to", "target", type=click.INT, required=True, help="The node that gets it.")
@click.option("--force", is_flag=True, help="Also to another data centre, or a fuller rack.")
@render.of_change
def move(name: str, tablet: int, source: int, target: int, force: bool, call: render.Call) -> None:
    """Move the replica of a TABLET, by its number, from one node to another."""
    keyspace, _, table = name.partition(".")
    if not table:
        raise ConfigurationError(f"{name} is no KEYSPACE.TABLE")
    admin = call.cluster().admin
    wanted = {"keyspace": keyspace, "table": table, "tablet": tablet, "from": source, "to": target}
    answer = admin.post("/v1/tablets/move", {**wanted, "force": force, "dry_run": call.dry_run})
    told = read(TabletMoved, answer)
    if call.output != "json":
        does = "would move" if call.dry_run else "moves"
        click.echo(f"tablet {tablet} of {name} {does} from {_places(told.replicas)} to {_places(told.next)}")
    replicas = told.replicas
    if call.wait and not call.dry_run:
        replicas = _wait_until_there(admin, told, call.timeout_s)
    call.as_json(answer, "tablet-move/1")
    if not call.wait or call.dry_run:
        return
    if _nodes(replicas) != _nodes(told.next):
        raise LockstepError(
            f"tablet {tablet} of {name} went back: it is on {_places(replicas)}",
            hint="a node that was to get it is excluded, or its work failed: the node's log says why",
        )
    if call.output != "json":
        click.echo(f"tablet {tablet} of {name} is on {_places(replicas)}")


def _nodes(replicas: tuple[Replica, ...]) -> list[int]:
    return sorted(one.node for one in replicas)


def _wait_until_there(admin: AdminClient, told: TabletMoved, timeout_s: float) -> tuple[Replica, ...]:
    """The replicas once the tablet is not on its way any more, or is there and moved on by the balancer.
    Stages are told on stderr as they come."""
    deadline, seen = time.monotonic() + timeout_s, ""
    while True:
        answer = admin.get("/v1/tablets", keyspace=told.keyspace, table=told.table)
        at = read(TabletMap, answer)
        found = next((one for one in at.tablets if one.end == told.end), None)
        if found is None:
            raise LockstepError(f"tablet {told.tablet} of {told.keyspace}.{told.table} is not there any more")
        is_moved_on = _nodes(found.replicas) == _nodes(told.next) != _nodes(found.next)
        if at.epoch >= told.epoch and (is_moved_on or not found.stage):
            return found.replicas
        if found.stage != seen:
            seen = found.stage
            click.echo(f"stage: {seen}", err=True)
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"tablet {told.tablet} is still in {seen} after {timeout_s:g} s; the move goes on",
                hint=f"`lockstep tablets list {told.keyspace}.{told.table}` shows it",
            )
        time.sleep(_POLL_S)
