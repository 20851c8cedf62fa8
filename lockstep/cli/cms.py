"""Owns `lockstep cms`: the metadata group, who votes in it and when it rests, and what bounds the log it
keeps.

Invariant: the change is made by one entry; waiting for the nodes only tells when each has done its part, and
a wait that ends early never says that the change failed. A wait that ends early never says the change failed;
it says that it goes on, and exits 5. Says nothing that the `cms/1` document does not hold.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from lockstep.cli.shared import client, dumps, render, runs
from lockstep.cli.shared.runs import Unfinished, wait_for_nodes
from lockstep.documents import read
from lockstep.documents.service import KeptLog, LoggedEntry, Service, ServicePlan, Snapshots, Voters
from lockstep.documents.status import Status
from lockstep.values.errors import ConfigurationError, OutcomeUnknown, PeerError

#: How often a wait asks again; a person sees no delay, a node no load.
POLL_S: Final = 0.2
STATUS_PATH: Final = "/v1/cms/reconfiguration"
_ENDED: Final = ("settled", "paused")


@click.command()
@click.argument("size", metavar="[SIZE]", required=False)
@click.option("--nodes", metavar="ID,…", help="Exactly these voters instead of a number.")
@click.option("--status", is_flag=True, help="Show the voters and a running change.")
@click.option("--cancel", is_flag=True, help="Stop the running change; what is done stays.")
@click.option("--resume", is_flag=True, help="Let voters be changed automatically again after a cancel.")
@render.of_change
def reconfigure(
    size: str | None, nodes: str | None, status: bool, cancel: bool, resume: bool, call: render.Call
) -> int:
    """Set how many nodes vote on metadata: an odd SIZE, or `auto` to follow the size of the cluster."""
    if (size is not None) + (nodes is not None) + status + cancel + resume != 1:
        raise ConfigurationError("say one of SIZE, --nodes, --status, --cancel and --resume")
    if call.dry_run and status:
        raise ConfigurationError("--dry-run goes with what changes something")
    admin = call.cluster().admin
    if status:
        _show(admin.get(STATUS_PATH), call)
        return 0
    if cancel:
        answer = admin.post("/v1/cms/cancel", {"dry_run": call.dry_run})
    elif resume:
        answer = admin.post("/v1/cms/resume", {"dry_run": call.dry_run})
    else:
        answer = admin.post("/v1/cms/reconfigure", {**_wanted(size, nodes), "dry_run": call.dry_run})
    if call.dry_run:
        (show_plan if cancel or resume else _show_plan)(answer, call)
        return 0
    if call.wait:
        with runs.unseen("the change of the voters", "lockstep cms reconfigure --cancel"):
            answer = follow(admin, answer, call.timeout_s)
    _show(answer, call)
    return 0


@click.command()
@click.argument("reason")
@render.of_change
def freeze(reason: str, call: render.Call) -> None:
    """Refuse schema and topology changes from now on, with REASON; reads and writes go on."""
    body = {"reason": reason, "dry_run": call.dry_run}
    _wished("/v1/cms/freeze", body, call)


@click.command()
@render.of_change
def thaw(call: render.Call) -> None:
    """Let the metadata be changed again."""
    body = {"dry_run": call.dry_run}
    _wished("/v1/cms/thaw", body, call)


def _wished(path: str, body: dict[str, Any], call: render.Call) -> None:
    """Send a wish, and wait until every node that is up has applied it."""
    cluster = call.cluster()
    answer = cluster.admin.post(path, body)
    if call.dry_run:
        show_plan(answer, call)
        return
    if call.wait:
        epoch = int(answer.get("epoch", 0))

        def unfinished(there: Snapshots) -> str:
            return "" if there.epoch >= epoch else f"has not applied epoch {epoch}"

        wait_for_nodes(cluster, unfinished, call.timeout_s, f"this is in the log at epoch {epoch}")
    _show(answer, call)


def follow(admin: Any, answer: dict[str, Any], timeout_s: float, poll_s: float = POLL_S) -> dict[str, Any]:
    """The voters once nothing changes any more; every change on the way is told on stderr.

    Raises OutcomeUnknown when a change still runs after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    seen = read(Voters, answer)
    least, told = seen.epoch, ""
    while seen.state not in _ENDED or seen.epoch < least:
        line = _line(seen)
        if line != told:
            click.echo(line, err=True)
            told = line
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"the voters still change after {timeout_s:g} s", hint="lockstep cms reconfigure --status"
            )
        time.sleep(poll_s)
        try:
            answer = admin.get(STATUS_PATH)
        except PeerError as error:
            answer = {"state": f"no answer: {error.message}"}
        seen = read(Voters, answer)
    return answer


def _wanted(size: str | None, nodes: str | None) -> dict[str, Any]:
    if nodes is not None:
        try:
            return {"nodes": [int(node) for node in nodes.split(",")]}
        except ValueError:
            raise ConfigurationError(f"{nodes!r} is no list of node ids", hint="--nodes 3,4,5") from None
    if size == "auto":
        return {"automatic": True}
    if size is None or not size.lstrip("-").isdecimal():
        raise ConfigurationError(f"{size} is no number of voters", hint="an odd number, or auto")
    return {"size": int(size)}


def _line(told: Voters) -> str:
    """The voters and the position in a change, in one line without ages."""
    change = told.change
    text = f"{told.state}: voters {_ids(told.voters)}"
    if change is not None:
        parts = [
            f"{word} {_ids(nodes)}"
            for word, nodes in (("adds", change.additions), ("removes", change.removals))
            if nodes
        ]
        text += f"; change {change.id} {', '.join(parts)}: {change.done} of {change.steps} steps"
    for one in told.waiting:
        text += f"; waits: {f'node {one.node} ' if one.node else ''}{one.reason}"
    return text


def _show(answer: Mapping[str, Any], call: render.Call) -> None:
    if call.as_json(answer, "cms-reconfiguration/1"):
        return
    told = read(Voters, answer)
    click.echo(_line(told))
    size = told.size
    wanted = f"{size}, set by an operator" if size else f"{told.target}, as the cluster's size asks"
    click.echo(f"  wanted voters: {wanted}")
    for name, why in (("paused", told.paused), ("frozen", told.frozen)):
        if why:
            click.echo(f"  {name}: {why}")
    if told.leaving:
        click.echo(f"  leaving: {_ids(told.leaving)}")


def _show_plan(answer: Mapping[str, Any], call: render.Call) -> None:
    if call.as_json(answer, "cms-plan/1"):
        return
    plan = read(ServicePlan, answer)
    click.echo(f"at epoch {plan.epoch}: voters {_ids(plan.voters or ())} -> {_ids(plan.voters_after or ())}")
    for number, step in enumerate(plan.steps, 1):
        click.echo(f"  {number}. {step}")
    if not plan.steps:
        click.echo("  nothing to do")
    for name, what in (("waits for", plan.waits_for), ("way back", plan.way_back)):
        if what:
            click.echo(f"{name}: {what}")


def _ids(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"


@click.command("snapshots")
@render.of_call
def snapshots(call: render.Call) -> None:
    """Show the snapshots that a node keeps, and from which epoch on it has the log."""
    answer = call.cluster().cms_snapshots()
    if call.as_json(answer, "cms-snapshots/1"):
        return
    render.document(answer)


@click.command("snapshot")
@click.option("--reason", default="", help="Kept in the log.")
@render.of_change
def snapshot(reason: str, call: render.Call) -> None:
    """Take a snapshot of the metadata now, on every node."""
    cluster = call.cluster()
    answer = cluster.cms_snapshot(reason, dry_run=call.dry_run)
    if call.dry_run:
        show_plan(answer, call)
        return
    epoch = int(answer["epoch"])

    def unfinished(there: Snapshots) -> str:
        if any(kept.epoch >= epoch for kept in there.snapshots):
            return ""
        return f"has not written the snapshot of epoch {epoch}"

    text = f"epoch {epoch}: every node writes its snapshot"
    _finished(cluster, answer, unfinished, text, call)


@click.command("truncate")
@click.option("--epoch", type=int, help="Last epoch to drop; that of the latest snapshot by default.")
@render.of_change
def truncate(epoch: int | None, call: render.Call) -> None:
    """Let every node drop log entries that the latest snapshot holds."""
    cluster = call.cluster()
    answer = cluster.cms_truncate(epoch, dry_run=call.dry_run)
    if call.dry_run:
        show_plan(answer, call)
        return
    at, wanted = int(answer["epoch"]), int(answer["truncated_epoch"])

    def unfinished(there: Snapshots) -> str:
        if there.epoch < at:
            return f"has not applied epoch {at}"
        return "" if there.truncated_here >= wanted else f"keeps entries up to epoch {wanted}"

    text = f"epoch {at}: entries up to epoch {answer['truncated_epoch']} may go"
    _finished(cluster, answer, unfinished, text, call)


def show_plan(plan: dict[str, Any], call: render.Call) -> None:
    """Print a `cms-plan/1` document."""
    if call.as_json(plan, "cms-plan/1"):
        return
    told = read(ServicePlan, plan)
    click.echo(f"at epoch {told.epoch} this would be done:")
    for number, step in enumerate(told.steps, 1):
        click.echo(f"  {number}. {step}")
    if not told.steps:
        click.echo("  nothing")
    for name, what in (("waits for", told.waits_for), ("way back", told.way_back)):
        if what:
            click.echo(f"{name}: {what}")
    if told.changes:
        click.echo("the entry would change")
    for change in told.changes or ():
        before, after = (render.cell_text(value) for value in (change.before, change.after))
        click.echo(f"  {change.path}: {before or '(empty)'} -> {after or '(empty)'}")


def _finished(
    cluster: client.ClusterClient,
    answer: dict[str, Any],
    unfinished: Unfinished,
    text: str,
    call: render.Call,
) -> None:
    if call.wait:
        answer = {**answer, "nodes": wait_for_nodes(cluster, unfinished, call.timeout_s, text)}
    if call.as_json(answer, "cms-change/1"):
        return
    click.echo(text)
    for node in answer.get("nodes", []):
        if node["result"] == "down":
            click.echo(f"  node {node['node']} is down: it follows when it is back")


#: Entries shown when no range is asked for: a screenful.
LOG_ENTRIES_SHOWN = 30


@click.group()
def cms() -> None:
    """The metadata group: its members and its log."""


for _command in (
    reconfigure,
    snapshots,
    snapshot,
    truncate,
    freeze,
    thaw,
):
    cms.add_command(_command)


@cms.command("describe")
@render.of_call
def describe(call: render.Call) -> None:
    """Show the members and their state, both groups, a running change and what it waits for, and the log."""
    answer = call.cluster().cms()
    if call.as_json(answer, "cms/1"):
        return
    show(read(Service, answer))


@cms.command("log")
@click.option("--from", "first", type=int, help="First epoch.")
@click.option("--to", "last", type=int, help="Last epoch; the newest by default.")
@render.of_call
def log(first: int | None, last: int | None, call: render.Call) -> None:
    """Show entries of the metadata log, by default the newest 30."""
    cluster = call.cluster()
    newest = last if last is not None else read(Status, cluster.status()).epoch
    oldest = first if first is not None else max(1, newest - LOG_ENTRIES_SHOWN + 1)
    if not 1 <= oldest <= max(newest, 1):
        raise ConfigurationError(f"epochs {oldest} to {newest} are no range", hint="the first epoch is 1")
    entries = cluster.log_entries(oldest, newest, available=first is None)
    if call.as_json({"from": oldest, "to": newest, "entries": entries}, "metadata-log/1"):
        return
    if not entries:
        click.echo(f"no entries from epoch {oldest} to {newest}")
    render.table(
        ["epoch", "kind", "actor", "term", "hash", "summary"],
        [
            [entry.epoch, entry.kind, entry.actor, entry.term, entry.hash[:12], entry.summary]
            for entry in (read(LoggedEntry, one) for one in entries)
        ],
    )


@cms.command("dump")
@click.argument("file", metavar="FILE")
@click.option("--epoch", type=int, help="Which epoch; the newest by default.")
@click.option("--value-only", is_flag=True, help="The value of the epoch, without entries since a snapshot.")
@render.of_call
def dump(file: str, epoch: int | None, value_only: bool, call: render.Call) -> None:
    """Write the metadata at an epoch to FILE, which must not exist yet and describes itself.

    Unless asked for the value only, the file begins at the snapshot before the epoch and holds all entries
    since: it can then seed a data directory. Nothing in the cluster is changed.
    """
    target = Path(file)
    if target.exists():
        raise ConfigurationError(f"{file} exists", hint="name a new file")
    cluster = call.cluster()
    wanted = read(Status, cluster.status()).epoch if epoch is None else epoch
    size = dumps.written(target, cluster.cms_dump(wanted, entries=not value_only))
    if call.as_json({"file": file, "epoch": wanted, "size_bytes": size}, "cms-dump-file/1"):
        return
    click.echo(f"{file}: the metadata at epoch {wanted}, {size} bytes")


@cms.command("load")
@click.argument("file", metavar="FILE")
@click.option("--check", is_flag=True, help="Only verify and show the file.")
@click.option("--data-directory", metavar="D", help="An empty directory that a new node will start from.")
@render.dry_run
@render.output
def load(file: str, check: bool, data_directory: str | None, dry_run: bool, output: str) -> None:
    """Verify a dump, and seed an empty data directory of a new node with it.

    Every record, the value's digest, the hash chain and each entry are verified. Nothing is sent to any
    cluster: the node that starts from the directory joins through its seeds like any other, and follows the
    log from the dump's last epoch on; peers of another history refuse it.
    """
    if check == (data_directory is not None):
        raise ConfigurationError("say either --check or --data-directory D")
    if dry_run and data_directory is not None and _holds_something(Path(data_directory)):
        raise ConfigurationError("the data directory is not empty", hint="name a new one")
    # Only these commands need the whole metadata; the others start faster without it.
    from lockstep.metadata.log.snapshot_file import load_file
    from lockstep.node.kinds import every_kind

    loaded = load_file(dumps.parts(Path(file)), every_kind(), file)
    value = loaded.value
    facts: dict[str, Any] = {
        "file": file,
        "cluster": {"id": value.identity.cluster_id, "name": value.identity.cluster_name},
        "begins_at_epoch": loaded.base.epoch,
        "epoch": value.epoch,
        "hash": value.hash.hex(),
        "entries": len(loaded.entries),
        "snapshot_epoch": loaded.snapshot[1].epoch if loaded.snapshot is not None else None,
        "nodes": len(value.directory.nodes),
        "keyspaces": len(value.schema.keyspaces),
        "tables": len(value.schema.tables_by_id),
        "seeded": data_directory if not dry_run else None,
    }
    if data_directory is not None and not dry_run:
        from lockstep.node.log.metadata_store import seed_directory
        from lockstep.runtime.real import real_runtime, run

        directory = data_directory
        run(lambda: seed_directory(real_runtime(directory), loaded))
    if output == "json":
        render.json_out(facts, "cms-load/1")
        return
    render.document(facts)


def _holds_something(directory: Path) -> bool:
    return directory.exists() and any(directory.iterdir())


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
