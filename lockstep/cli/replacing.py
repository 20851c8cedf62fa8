"""Owns repairs that replace the metadata: every node is asked what it holds, one plans, all write the plan
down, and the first that carries it out has decided it.

Invariant: nothing is decided before every participant has the plan; a command that was cut off is given
again, and then carries out what was decided before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.recovery import ClusterState, HeldMetadata, MetadataReplacement
from lockstep.documents.status import ListedNode
from lockstep.values.errors import LockstepError, OutcomeUnknown, PreconditionError

#: Between two looks at a cluster that begins anew.
LOOK_S: Final = 0.1
#: A node reads its disk and takes part again.
BACK_S: Final = 60.0


class Sites(msgspec.Struct, frozen=True):
    """The nodes that answered, what they hold, and why others did not answer."""

    clients: Mapping[int, ClusterClient]
    held: Mapping[int, HeldMetadata]
    silent: Mapping[int, str]

    @property
    def planner(self) -> int:
        """Who can make the value that goes on. PreconditionError when nobody can."""
        able = [node for node, told in self.held.items() if told.can_plan]
        if not able:
            raise PreconditionError("none of the nodes that answer can make the metadata that would go on")
        return max(able, key=lambda node: (self.held[node].epoch, -node))

    def wish(self, **more: Any) -> dict[str, Any]:
        """What a plan is asked for with."""
        silent = [{"node": node, "reason": why} for node, why in sorted(self.silent.items())]
        return {"held": [told.data for told in self.held.values()], "silent": silent, **more}

    def begun(self) -> tuple[str, list[int]] | None:
        """The attempt that some of them prepared and another carried out already, and who is behind."""
        reached = {told.cluster_id for told in self.held.values()}
        late = [n for n, told in self.held.items() if told.planned in reached and told.phase == "prepared"]
        return (self.held[late[0]].attempt, late) if late else None


def look(asked: ClusterClient, nodes: Sequence[ListedNode], epoch: int) -> Sites:
    """Ask every node what it holds from an epoch on."""
    clients: dict[int, ClusterClient] = {}
    held: dict[int, HeldMetadata] = {}
    silent: dict[int, str] = {}
    for node in nodes:
        client = asked.at(node.address, node.admin_port)
        try:
            held[node.id] = read(HeldMetadata, client.metadata_held(epoch))
            clients[node.id] = client
        except LockstepError as error:
            silent[node.id] = error.message
    if not held:
        raise PreconditionError(f"no node says what it holds: {next(iter(silent.values()), 'there is none')}")
    return Sites(clients, held, silent)


def carry_out(sites: Sites, planned: MetadataReplacement, planner: int) -> list[str]:
    """Have every participant write the plan down, then carry it out, the planner first; who is behind, and
    why. PreconditionError, and nothing is changed, when one of them does not take part."""
    others = [node for node in planned.participants if node != planner]
    for node in (*others, planner):
        try:
            sites.clients[node].replacement_prepare(planned.plan)
        except LockstepError as error:
            for told in planned.participants:
                _tried(lambda told=told: _decide(sites, told, planned.attempt, go=False))  # type: ignore[misc]
            raise PreconditionError(
                f"nothing was changed: node {node} takes no part in the repair: {error.message}",
                hint="look at a new dry run",
            ) from error
    _decide(sites, planner, planned.attempt, go=True)
    return finish(sites, planned.attempt, others)


def finish(sites: Sites, attempt: str, nodes: Sequence[int]) -> list[str]:
    """Have nodes carry out what was decided; who did not answer, and why."""
    late = []
    for node in nodes:
        why = _tried(lambda node=node: _decide(sites, node, attempt, go=True))  # type: ignore[misc]
        if why:
            late.append(f"node {node}: {why}")
    return late


def _decide(sites: Sites, node: int, attempt: str, *, go: bool) -> None:
    sites.clients[node].replacement_decide(attempt, go=go)


def _tried(step: Callable[[], None]) -> str:
    try:
        step()
    except LockstepError as error:
        return error.message or error.code
    return ""


def went_on(sites: Sites, *, dry_run: bool) -> bool:
    """Have nodes carry out what was decided before, if they have not; whether there was such a thing."""
    begun = sites.begun()
    if begun is None:
        return False
    attempt, nodes = begun
    if dry_run:
        click.echo(
            f"nodes {_listed(nodes)} have not carried out yet what was decided; the command has them do so"
        )
        return True
    late = finish(sites, attempt, nodes)
    click.echo("; ".join(late) or f"nodes {_listed(nodes)} carry out what was decided")
    return True


def verified(
    client: ClusterClient,
    cluster_id: str,
    timeout_s: float = BACK_S,
    *,
    late: str = "its group has no leader yet",
    hint: str = "give the command again; `lockstep recovery` shows how it stands",
) -> ClusterState:
    """The state of a node once it is of the new cluster and knows a leader. OutcomeUnknown when that takes
    too long: the repair goes on, and `late` and `hint` say so."""
    deadline_s = time.monotonic() + timeout_s
    last = "it did not answer"
    while time.monotonic() < deadline_s:
        try:
            state = read(ClusterState, client.cluster_state())
        except LockstepError as error:
            last = error.message
        else:
            if state.cluster_id == cluster_id and state.leader:
                return state
            last = f"it is of cluster {state.cluster_id}, and knows {state.leader or 'nobody'} as leader"
        time.sleep(LOOK_S)
    raise OutcomeUnknown(
        f"the repair was decided, and {late}: {last}",
        hint=hint,
    )


def show(planned: MetadataReplacement) -> None:
    click.echo(
        f"cluster {planned.cluster_name}, id {planned.former_id}: the metadata of nodes "
        f"{_listed(planned.participants)} are replaced, and go on at epoch {planned.epoch} under another id"
    )
    if planned.kind == "force-cms":
        click.echo(
            "both groups have these voters: the metadata group (metastorage), and the management group (cmg)"
        )
    render.table(
        ["goes", "kind", "asked by", "at", "committed", "at nodes", ""],
        [
            [one.epoch, one.kind, one.actor, render.time_text(one.at_us), one.committed, _listed(one.nodes),
             one.summary]
            for one in planned.dropped
        ],
    )  # fmt: skip
    if planned.more:
        click.echo(f"and {render.counted(planned.more, 'entry')} more")
    render.table(
        ["absent", "address", "voted", "reason"],
        [[one.node, one.address, one.voted, one.reason] for one in planned.absent],
    )
    click.echo(f"voters: {_listed(planned.voters)}; is lost: {planned.lost or 'nothing'}")


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(str(node) for node in nodes)


def end(sites: Sites, planned: MetadataReplacement, planner: int, late: Sequence[str]) -> None:
    """Prove what came of it, and tell."""
    state = verified(sites.clients[planner], planned.cluster_id)
    click.echo(
        f"cluster {state.cluster_name} goes on under id {state.cluster_id} at epoch {state.epoch}: "
        f"node {state.leader} leads voters {_listed(state.voters)}"
    )
    for one in late:
        click.echo(f"{one}; give the command again")
    for absent in planned.absent:
        click.echo(
            f"node {absent.node} took no part: start it and `lockstep recovery cluster migrate`, or let it "
            "join as a new node"
        )
