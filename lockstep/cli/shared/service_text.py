"""Owns how `lockstep cms describe` looks in text: the verdict first, then members, then what changes.

Invariant: says nothing that the `cms/1` document does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.documents.service import KeptLog, Service

_COLOURS: Final = {"Available": "green", "Degraded": "yellow"}
_COLUMNS: Final = ("node", "address", "dc", "rack", "alive", "role", "state", "cmg", "leader", "epoch", "lag")


def show(told: Service) -> None:
    """Print a `cms/1` document."""
    for name, state in told.groups.items():
        what = "metadata group (metastorage)" if name == "metastorage" else f"management group ({name})"
        click.echo(f"{what}: {render.styled(state, _COLOURS.get(state, 'red'), bold=True)}")
    facts = [
        f"leader: {_node(told.leader)}",
        f"term {told.term}",
        f"epoch {told.epoch}",
        f"asked: node {told.asked} ({told.role})",
    ]
    click.echo(", ".join(facts))
    click.echo()
    in_cmg = {one.node: one.state for one in told.management.states}
    rows = [{**msgspec.structs.asdict(member), "cmg": in_cmg.get(member.node)} for member in told.members]
    columns = [*_COLUMNS, *(["reason"] if any(member.reason for member in told.members) else [])]
    render.table(columns, [[row[name] for name in columns] for row in rows])
    click.echo()
    _show_change(told)
    _show_groups(told)
    _show_log(told.log)


def _show_change(told: Service) -> None:
    size, change = told.size, told.change
    click.echo(f"size: {size.actual}, wanted {size.wanted} (set by the {size.set_by}), {told.state}")
    if change is not None:
        moves = [
            f"{word} {_ids(nodes)}"
            for word, nodes in (("adds", change.additions), ("removes", change.removals))
            if nodes
        ]
        steps = f"{change.done} of {change.steps} steps done"
        click.echo(f"  change {change.id} {', '.join(moves)}: {steps} ({change.reason})")
    for one in told.waiting:
        whom = f"node {one.node}: " if one.node else ""
        click.echo(f"  waits for {whom}{one.reason} ({one.since_s or 0:.1f} s)")
    for name, why in (("frozen", told.frozen), ("paused", told.paused)):
        if why:
            click.echo(f"{name}: {why}")
    if told.leaving:
        click.echo(f"leaving: {_ids(told.leaving)}")


def _show_groups(told: Service) -> None:
    raft, management = told.raft, told.management
    text = f"raft: voters {_ids(raft.voters)}"
    if raft.joint:
        text += f", joint with {_ids(raft.outgoing)}"
    if raft.learners:
        text += f", learners {_ids(raft.learners)}"
    processor = f", processor {told.processor}" if told.processor else ""
    click.echo(f"{text}, recovery generation {told.recovery_generation}{processor}")
    text = f"management group: voters {_ids(management.voters)}"
    click.echo(f"{text}, leader {_node(management.leader)}, term {management.term}")


def _show_log(log: KeptLog) -> None:
    if log.snapshot_here is None:
        snapshot = "no snapshot yet"
    else:
        size = render.bytes_text(log.snapshot_bytes or 0)
        snapshot = f"snapshot of epoch {log.snapshot_here}, {size}, {log.snapshot_age_s or 0:.0f} s old"
    since = render.bytes_text(log.bytes_since_snapshot)
    click.echo(
        f"log of the asked node: entries from epoch {log.oldest_entry}, "
        f"values from epoch {log.oldest_value}, {snapshot}, {since} since"
    )


def _node(node: int | None) -> str:
    return "none" if node is None else f"node {node}"


def _ids(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
