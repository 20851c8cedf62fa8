"""Owns how `lockstep cms describe` looks in text: the verdict first, then members, then what changes.

Invariant: says nothing that the `cms/1` document does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from lockstep.cli import render

_COLOURS: Final = {"Available": "green", "Degraded": "yellow"}
_COLUMNS: Final = ("node", "address", "dc", "rack", "alive", "role", "state", "cmg", "leader", "epoch", "lag")


def show(answer: Mapping[str, Any]) -> None:
    """Print a `cms/1` document."""
    for name, state in (answer.get("groups") or {}).items():
        what = "metadata group (metastorage)" if name == "metastorage" else f"management group ({name})"
        click.echo(f"{what}: {render.styled(str(state), _COLOURS.get(str(state), 'red'), bold=True)}")
    leader = answer.get("leader")
    facts = [
        f"leader: {'none' if leader is None else f'node {leader}'}",
        f"term {answer.get('term')}",
        f"epoch {answer.get('epoch')}",
        f"asked: node {answer.get('asked')} ({answer.get('role')})",
    ]
    click.echo(", ".join(facts))
    click.echo()
    in_cmg = {one["node"]: one.get("state") for one in (answer.get("management") or {}).get("states", [])}
    members = [{**member, "cmg": in_cmg.get(member["node"])} for member in answer.get("members", [])]
    columns = [*_COLUMNS, *(["reason"] if any(member.get("reason") for member in members) else [])]
    render.table(columns, [[member.get(name) for name in columns] for member in members])
    click.echo()
    _show_change(answer)
    _show_groups(answer)
    _show_log(answer.get("log") or {})


def _show_change(answer: Mapping[str, Any]) -> None:
    size, change = answer.get("size") or {}, answer.get("change")
    click.echo(
        f"size: {size.get('actual')}, wanted {size.get('wanted')} (set by the {size.get('set_by')}), "
        f"{answer.get('state')}"
    )
    if change:
        steps = f"{change.get('done')} of {change.get('steps')} steps done"
        moves = [
            f"{word} {_ids(change.get(key))}"
            for word, key in (("adds", "additions"), ("removes", "removals"))
            if change.get(key)
        ]
        click.echo(f"  change {change.get('id')} {', '.join(moves)}: {steps} ({change.get('reason')})")
    for one in answer.get("waiting") or []:
        whom = f"node {one['node']}: " if one.get("node") else ""
        click.echo(f"  waits for {whom}{one.get('reason')} ({float(one.get('since_s', 0)):.1f} s)")
    for name in ("frozen", "paused"):
        if answer.get(name):
            click.echo(f"{name}: {answer[name]}")
    if answer.get("leaving"):
        click.echo(f"leaving: {_ids(answer['leaving'])}")


def _show_groups(answer: Mapping[str, Any]) -> None:
    raft, management = answer.get("raft") or {}, answer.get("management") or {}
    text = f"raft: voters {_ids(raft.get('voters'))}"
    if raft.get("joint"):
        text += f", joint with {_ids(raft.get('outgoing'))}"
    if raft.get("learners"):
        text += f", learners {_ids(raft.get('learners'))}"
    generation, processor = answer.get("recovery_generation"), answer.get("processor")
    click.echo(
        f"{text}, recovery generation {generation}" + (f", processor {processor}" if processor else "")
    )
    led = management.get("leader")
    text = f"management group: voters {_ids(management.get('voters'))}"
    text += f", leader {'none' if led is None else f'node {led}'}, term {management.get('term')}"
    click.echo(text)


def _show_log(log: Mapping[str, Any]) -> None:
    here = log.get("snapshot_here")
    if here is None:
        snapshot = "no snapshot yet"
    else:
        size, age_s = render.bytes_text(int(log.get("snapshot_bytes") or 0)), log.get("snapshot_age_s")
        snapshot = f"snapshot of epoch {here}, {size}, {float(age_s or 0):.0f} s old"
    since = render.bytes_text(int(log.get("bytes_since_snapshot") or 0))
    click.echo(
        f"log of the asked node: entries from epoch {log.get('oldest_entry')}, "
        f"values from epoch {log.get('oldest_value')}, {snapshot}, {since} since"
    )


def _ids(nodes: Any) -> str:
    return ", ".join(str(node) for node in nodes or []) or "none"
