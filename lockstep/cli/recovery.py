"""Owns `lockstep recovery`: how the two groups fare, making them anew after their majority was lost, and
bringing nodes that were away to the cluster that came of it.

Invariant: what changes something shows its plan first and asks, unless `--yes` says so; nothing is decided
here.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import click

from lockstep.cli import replacing
from lockstep.cli.recovery_diff import compare
from lockstep.cli.recovery_export import export
from lockstep.cli.recovery_metadata import metadata
from lockstep.cli.shared import apart, client, render
from lockstep.cli.shared.apart import Apart
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.recovery import (
    ClusterMigration,
    ClusterReset,
    ClusterState,
    GroupReconfiguration,
    GroupRestart,
    ManagementTruncation,
    MetadataReplacement,
    RecoveryAudit,
)
from lockstep.documents.service import GlobalState, LocalStates
from lockstep.documents.status import Nodes, Status
from lockstep.values.errors import ConfigurationError

#: Between two looks at a cluster that begins anew.
LOOK_S: Final = 0.1
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(invoke_without_command=True)
@render.of_call
@click.pass_context
def recovery(context: click.Context, call: render.Call) -> None:
    """The groups that make the nodes one cluster: how they fare, and what to do when most of them are lost.

    Without a command: look at both groups, and say what to do next.
    """
    if context.invoked_subcommand is not None:
        return
    asked = call.cluster()
    told_state = asked.cluster_state()
    state = read(ClusterState, told_state)
    words = {group: read(GlobalState, asked.group_global(group)) for group in ("cmg", "metastorage")}
    answer = {"state": told_state, "groups": {name: one.state for name, one in words.items()}}
    if call.as_json(answer, "recovery/1"):
        return
    _show_state(state)
    for told in words.values():
        _show_global(told)
    click.echo("next: " + _next_step(state, words, apart.found(asked, state, asked.node_list())))


def _next_step(state: ClusterState, words: dict[str, GlobalState], away: list[Apart]) -> str:
    """`away`: nodes that run under another id; where that is a later one, all else leads further apart."""
    if state.phase == "prepared":
        return (
            "a repair was begun and not decided: begin it again, `lockstep recovery cluster reset --dry-run`"
        )
    ahead = [one for one in away if one.is_ahead]
    if ahead:
        return ahead[0].next_step
    if words["metastorage"].state == "Unavailable":
        return (
            "start the voters that are down; if a majority is gone for good, "
            "`lockstep recovery cluster reset --dry-run` shows how to go on without them"
        )
    if words["cmg"].state == "Unavailable":
        return (
            "start the members of cmg that are down, or `lockstep recovery cluster restart cmg`; if most are "
            "gone for good, `lockstep recovery cluster reset --cluster-management-group NODE,... --dry-run`; "
            "if they stopped at a command, `lockstep recovery cluster truncate cmg --index I --dry-run`"
        )
    if away:
        return away[0].next_step
    if any(one.state == "Degraded" for one in words.values()):
        return "start the voters that are down: one more loss may leave no majority"
    return "nothing is to be done"


def _show_state(state: ClusterState) -> None:
    leader = f"node {state.leader} leads" if state.leader else "nobody is known to lead"
    click.echo(f"cluster {state.cluster_name}, id {state.cluster_id}, epoch {state.epoch}, {leader}")
    if len(state.lineage) > 1:
        render.table(
            ["cluster id", "began by", "asked by", "after epoch", "at", "may lack"],
            [
                [one.cluster_id, one.kind, one.actor, one.epoch or "",
                 render.time_text(one.at_us) if one.at_us else "", one.lost]
                for one in state.lineage
            ],
        )  # fmt: skip


@recovery.command()
@render.of_call
def audit(call: render.Call) -> None:
    """Show what a node recorded of repairs of the groups: who asked for what, and when it was done here.

    Each record has a hash over itself and the one before it; a node whose records do not follow each other
    does not start.
    """
    answer = call.cluster().recovery_audit()
    if call.as_json(answer, "recovery-audit/1"):
        return
    told = read(RecoveryAudit, answer)
    if not told.records:
        click.echo(f"node {told.node} has recorded nothing")
        return
    render.table(
        ["", "at", "step", "asked by", "cluster id", "", "hash"],
        [
            [one.number, render.time_text(one.at_us), one.step, one.actor, one.cluster_id, one.text,
             one.hash[:12]]
            for one in told.records
        ],
    )  # fmt: skip
    if len(told.records) < told.total:
        click.echo(f"the newest {len(told.records)} of {told.total}")


recovery.add_command(metadata)
recovery.add_command(compare)
recovery.add_command(export)


@recovery.group()
def cluster() -> None:
    """The groups that make the nodes one cluster."""


@cluster.command()
@click.option(
    "--cluster-management-group",
    "management",
    metavar="NODE,...",
    help="First members of the new management group, by id, host id or address; the new voters when absent.",
)
@click.option(
    "--node",
    metavar="NODE",
    help="Have this node conduct it, by id or address, with the members that the management group has: its "
    "leader must be alive.",
)
@click.option(
    "--exclude", metavar="NODE,...", help="Leave these out although they answer; they come back by `migrate`."
)
@click.option(
    "--metastorage-replication-factor",
    "size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Voters of the new metadata group; what suits the nodes that answer when absent.",
)
@click.option(
    "--to-ring",
    is_flag=True,
    help="Make no groups anew: what is left goes on on the ring, without those that do not answer.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan; change nothing.")
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="With --dry-run: write the plan there. Else: carry out that plan, and no other.",
)
@_yes
@render.of_call
def reset(
    management: str | None,
    node: str | None,
    exclude: str | None,
    size: int | None,
    to_ring: bool,
    plan_file: str | None,
    yes: bool,
    call: render.Call,
) -> None:
    """Make both groups anew from the nodes that are left, when the majority of one is gone for good.

    The cluster gets another id: nodes that take no part can come back only by `migrate`.
    """
    asked = call.cluster()
    if node is not None and management:
        raise click.UsageError("say --node or --cluster-management-group")
    wanted: dict[str, Any] = {"metastorageReplicationFactor": size or 0}
    if to_ring:
        wanted["toRing"] = True
    if node is not None:
        asked, wanted["keepCmg"] = _conductor(asked, node), True
    for key, names in (("cmgNodeNames", management), ("exclude", exclude)):
        if names:
            wanted[key] = [name.strip() for name in names.split(",") if name.strip()]
    answer = asked.cluster_reset(wanted | {"dryRun": True})
    planned = read(ClusterReset, answer)
    if call.dry_run:
        if plan_file is not None:
            Path(plan_file).write_text(json.dumps(answer, indent=2) + "\n")
        if not call.as_json(answer, "cluster-reset/1"):
            _show_reset(planned)
        return
    digest = _digest_in(plan_file) if plan_file is not None else planned.digest
    if call.output != "json":
        _show_reset(planned)
    render.confirm(yes, "Nodes that are absent can come back only by `migrate`. Go on?")
    began_s = time.monotonic()
    answer = asked.cluster_reset(wanted | {"digest": digest})
    done = read(ClusterReset, answer)
    state = replacing.verified(
        asked,
        done.cluster_id,
        max(call.call_timeout_s, 30.0),
        late="the new group has no leader yet",
        hint="start the participants that are down; `lockstep recovery` shows how it stands",
    )
    if call.as_json(answer, "cluster-reset/1"):
        return
    took_s = time.monotonic() - began_s
    agrees = f"node {state.leader} leads voters {_listed(state.voters)}"
    if done.ring_mode:
        agrees = f"on the ring without a log, changes go through node {state.leader}"
    click.echo(
        f"cluster {state.cluster_name} goes on under id {state.cluster_id} at epoch {state.epoch}: "
        f"{agrees}; it took {took_s:.1f} s"
    )
    late = sorted({one.node for one in done.participants} - {*done.told})
    if late:
        click.echo(f"nodes {_listed(late)} have not confirmed it; they follow once they hear of it")
    for one in done.absent:
        click.echo(
            f"node {one.node} is absent: start it and `lockstep recovery cluster migrate`, or give it up: "
            f"`lockstep topology remove {one.node} --force`"
        )


def _conductor(asked: ClusterClient, wanted: str) -> ClusterClient:
    listed = read(Nodes, asked.nodes()).nodes
    node = client.node_id(listed, wanted)
    (one,) = (one for one in listed if one.id == node)
    return asked.at(one.address, one.admin_port)


def _digest_in(plan_file: str) -> str:
    try:
        return str(json.loads(Path(plan_file).read_text())["digest"])
    except OSError as error:
        raise ConfigurationError(f"{plan_file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{plan_file} is no plan of a repair") from error


def _show_reset(told: ClusterReset) -> None:
    what = "what is left goes on on the ring" if told.ring_mode else "both groups are made anew"
    click.echo(f"cluster {told.cluster_name}, id {told.former_id}: {what}")
    if told.by_log:
        click.echo("metastorage works: its log goes on, with one more entry")
    render.table(
        ["node", "epoch", "log to epoch", "term", "its log goes on", "votes", "manages"],
        [
            [one.node, one.epoch, one.log_epoch, one.log_term, one.source, one.voter, one.manager]
            for one in told.participants
        ],
    )
    if told.entries:
        click.echo(f"{render.counted(told.entries, 'entry')} that no majority is known to have had is kept")
    render.table(
        ["absent", "address", "voted", "reason"],
        [[one.node, one.address, one.voted, one.reason] for one in told.absent],
    )
    click.echo(f"may be lost: {told.lost or 'nothing'}")


@cluster.command()
@click.option("--old-cluster-url", "old", metavar="HOST[:PORT]", required=True, help="A node that was away.")
@click.option(
    "--new-cluster-url", "new", metavar="HOST[:PORT]", required=True, help="A node of the repaired cluster."
)
@click.option("--dry-run", is_flag=True, help="Say which nodes would go; change nothing.")
@click.option(
    "--park-diverged",
    "parks",
    is_flag=True,
    help="Nodes that have diverged vote and serve no more, and are only read from: see `export`.",
)
@_yes
@render.of_call
def migrate(old: str, new: str, parks: bool, yes: bool, call: render.Call) -> None:
    """Bring nodes that were away while the groups were made anew to the repaired cluster.

    Each node that the old one can reach goes, unless it has applied what the repaired cluster lacks.
    """
    at_new = client.connect(new, call.call_timeout_s)
    state = at_new.cluster_state()
    at_old = client.connect(old, call.call_timeout_s)
    answer = at_old.cluster_migrate({"state": state, "dryRun": True})
    if not call.dry_run:
        if call.output != "json":
            _show_migration(read(ClusterMigration, answer))
        render.confirm(yes, "These nodes leave the cluster that they are in. Go on?")
        answer = at_old.cluster_migrate({"state": state} | ({"parkDiverged": True} if parks else {}))
    told = read(ClusterMigration, answer)
    shut_out = _shut_out_zombies(at_new, told)
    if not call.as_json(answer, "cluster-migration/1"):
        _show_migration(told)
        for node in shut_out:
            click.echo(f"node {node} is excluded from cluster {told.cluster_id} until it is removed there")


def _shut_out_zombies(repaired: ClusterClient, told: ClusterMigration) -> list[int]:
    """Have the repaired cluster list them apart, where they are members of it: nobody asks them, waits for
    them or counts on them. Who is excluded there now and was not before."""
    zombies = {one.node: one for one in told.nodes if one.zombie}
    if not zombies:
        return []
    seen = read(Status, repaired.status())
    members = {one.id for one in seen.nodes} - {one.node for one in seen.excluded}
    added = sorted(members & set(zombies))
    for node in added:
        reason = f"a zombie: it has another history from epoch {zombies[node].diverged_at} on"
        repaired.exclude({"nodes": [node], "reason": reason})
    return added


@cluster.command()
@click.argument("group", type=click.Choice(["cmg", "metastorage"]))
@click.option("--nodes", metavar="NODE,...", help="These nodes only, by id, host id or address.")
@render.of_call
def restart(group: str, nodes: str | None, call: render.Call) -> None:
    """Start members of a group again, as after one broke: each with its node, in its process, one by one.

    All voting members when no node is named. Clients of a node connect again.
    """
    named = [name.strip() for name in (nodes or "").split(",") if name.strip()]
    answer = call.cluster().group_restart(group, named)
    if call.as_json(answer, "group-restart/1"):
        return
    told = read(GroupRestart, answer)
    render.table(
        ["node", "", "reason"],
        [[one.node, "failed" if one.failed else "started again", one.failed] for one in told.nodes],
    )


@cluster.command()
@click.argument("group", type=click.Choice(["cmg", "metastorage"]))
@click.option(
    "--index",
    type=click.IntRange(min=2),
    required=True,
    metavar="I",
    help="The epoch of the first that goes.",
)
@click.option(
    "--below-commit-index",
    "committed",
    is_flag=True,
    help="Also entries that are committed: whoever asked for them may have been told that they are there.",
)
@click.option("--dry-run", is_flag=True, help="Show which entries go; change nothing.")
@_yes
@render.of_call
def truncate(group: str, index: int, committed: bool, yes: bool, call: render.Call) -> None:
    """Take entries out of the log that no node can apply: the one of index I, and all behind it.

    Every node that answers takes part, and restarts in its process. The cluster gets another id: nodes that
    take no part can come back only by `migrate`. The token of each node is needed; of cmg, that of the asked
    node: there the metadata group decides it, and what the metadata say of nodes holds.
    """
    asked = call.cluster()
    if group == "cmg":
        _truncate_management(asked, index, committed, yes, call)
        return
    sites = replacing.look(asked, asked.node_list(), index)
    if replacing.went_on(sites, dry_run=call.dry_run):
        return
    planner = sites.planner
    answer = sites.clients[planner].group_truncate(
        group, sites.wish(index=index, belowCommitIndex=committed or call.dry_run)
    )
    planned = read(MetadataReplacement, answer)
    if call.dry_run:
        if not call.as_json(answer, "metadata-replacement/1"):
            replacing.show(planned)
            click.echo("index is the epoch of an entry; what is committed takes --below-commit-index")
        return
    if call.output != "json":
        replacing.show(planned)
    render.confirm(yes, "These entries are lost, and absent nodes can come back only by `migrate`. Go on?")
    late = replacing.carry_out(sites, planned, planner)
    if call.as_json(answer, "metadata-replacement/1"):
        return
    replacing.end(sites, planned, planner, late)


def _truncate_management(
    asked: ClusterClient, index: int, committed: bool, yes: bool, call: render.Call
) -> None:
    wish = {"index": index, "belowCommitIndex": committed or call.dry_run}
    answer = asked.group_truncate("cmg", wish)
    planned = read(ManagementTruncation, answer)
    if call.output != "json":
        _show_truncation(planned)
    if call.dry_run:
        if not call.as_json(answer, planned.schema):
            click.echo("what is committed takes --below-commit-index")
        return
    render.confirm(yes, "These commands go, and absent nodes can come back only by `migrate`. Go on?")
    answer = asked.group_truncate("cmg", {**wish, "digest": planned.digest})
    done = read(ManagementTruncation, answer)
    state = replacing.verified(asked, done.cluster_id)
    if call.as_json(answer, done.schema):
        return
    click.echo(
        f"cluster {state.cluster_name} goes on under id {state.cluster_id} at epoch {state.epoch}: "
        f"node {state.leader} leads, cmg has members {_listed(state.management or done.management)}"
    )
    if done.absent:
        click.echo(
            f"nodes {_listed(done.absent)} took no part: start them and `lockstep recovery cluster migrate`"
        )


def _show_truncation(planned: ManagementTruncation) -> None:
    render.table(
        ["goes", "term", "kind", "asked by", "committed", "at nodes", ""],
        [
            [one.index, one.term, one.kind, one.actor, one.committed, _listed(one.nodes), one.summary]
            for one in planned.dropped
        ],
    )  # fmt: skip
    if planned.inside:
        click.echo(f"and {render.counted(planned.inside, 'command')} before, which snapshots alone hold")
    if planned.more:
        click.echo(f"and {render.counted(planned.more, 'command')} more")
    render.table(
        ["member", "applied", "committed", "last", "snapshot", "can plan", "reason"],
        [
            [one.node, one.applied, one.committed, one.last, one.snapshot, one.can_plan, one.broken]
            for one in planned.members
        ],
    )
    render.table(
        ["absent", "address", "voted", "reason"],
        [[one.node, one.address, one.voted, one.reason] for one in planned.silent],
    )
    whose = (
        f"the state of node {planned.source} before index {planned.index} goes on"
        if planned.source
        else "no member can make the state before: what the metadata say goes on"
    )
    click.echo(f"{whose}; cmg on nodes {_listed(planned.management)}; goes: {planned.lost}")
    if planned.admitted:
        click.echo(f"let in and not registered yet: {', '.join(planned.admitted)}")


def _show_migration(told: ClusterMigration) -> None:
    would = "would go" if told.dry_run else "goes"
    click.echo(f"to cluster {told.cluster_id}:")
    render.table(
        ["node", "epoch", "", "reason"],
        [
            [one.node, one.epoch or "", "zombie" if one.zombie else
             would if not one.refused else "stays" if one.answered else "silent",
             one.refused or (f"gives up {one.waived}" if one.waived else "")]
            for one in told.nodes
        ],
    )  # fmt: skip
    for one in told.nodes:
        if one.diverged_at:
            hashes = f"{one.own_hash[:12] or 'unknown'} and {one.other_hash[:12] or 'none'}"
            click.echo(
                f"node {one.node} has diverged at epoch {one.diverged_at} (hashes {hashes}): "
                "save what only it has, empty its "
                "data directory, and let it join as a new node"
            )


def _listed(nodes: Any) -> str:
    return ", ".join(str(node) for node in nodes)


@cluster.command()
@click.argument("group", type=click.Choice(["cmg", "metastorage"]))
@click.option("--local", "scope", flag_value="local", help="What each node says of itself.")
@click.option("--global", "scope", flag_value="global", help="The group as a whole (the default).")
@click.option(
    "--nodes", metavar="NODE,...", help="With --local: these nodes only, by id, host id or address."
)
@render.of_call
def states(group: str, scope: str | None, nodes: str | None, call: render.Call) -> None:
    """Show whether the management group (cmg) or the metadata group (metastorage) can do its work.

    Any node answers, also when no leader is left.
    """
    if nodes and scope != "local":
        raise click.UsageError("--nodes goes with --local")
    asked = call.cluster()
    answer = asked.group_local(group, nodes) if scope == "local" else asked.group_global(group)
    if call.as_json(answer, "group-local-states/1" if scope == "local" else "group-global-state/1"):
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


@cluster.command()
@click.argument("group", type=click.Choice(["cmg", "metastorage"]))
@click.option("--nodes", metavar="NODE,...", help="The new members, by id, host id or address.")
@click.option(
    "--follow", is_flag=True, help="Of cmg: live on the voters of metastorage again, whoever they are."
)
@click.option("--dry-run", is_flag=True, help="Say what would change; change nothing.")
@render.of_call
def reconfigure(group: str, nodes: str | None, follow: bool, call: render.Call) -> None:
    """Give a group other members while its majority lives, as before a node goes that is known to fail.

    They come and go one by one; `states` shows how far that is.
    """
    named = [name.strip() for name in (nodes or "").split(",") if name.strip()]
    if bool(named) == follow or (follow and group != "cmg"):
        raise click.UsageError("say one of --nodes and, of cmg, --follow")
    answer = call.cluster().group_reconfigure(group, named, dry_run=call.dry_run)
    if call.as_json(answer, "group-reconfiguration/1"):
        return
    told = read(GroupReconfiguration, answer)
    would = "would go" if told.dry_run else "goes"
    where = "the voters of metastorage, now " if told.follows else ""
    click.echo(f"{told.group} {would} from nodes {_listed(told.before)} to {where}{_listed(told.after)}")
