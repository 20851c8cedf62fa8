"""Entries by which a cluster that runs on the ring gets a log: one that begins it and holds everything else
back, one that builds the log, and one that gives it up.

Each is agreed on as every change of the ring is. Invariant: the log is built by ONE entry, the last one that
members agree on: whoever applies it has a log from there on, and before it nothing of a log exists anywhere.
What is under way stands in the metadata, so it can neither be lost nor held by a node alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.cdc import GENERATIONS, Generation, first_generation
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import EXCLUDED, METADATA_LOG, Exclusion, NodeInfo, NodeState
from lockstep.metadata.features import unsupporting
from lockstep.metadata.groups.ringed import QUORUM, RINGED, Ringed, Upgrading
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    CDC_GENERATIONS_KEPT_MAX,
    METADATA_VOTERS_MAX,
    SERVICE_TEXT_CHARACTERS_MAX,
)

#: Why a node that was ignored is shut out, for people.
IGNORED: Final = "it was ignored by name when the cluster got a log"
#: Who keeps a log: a node that fills its ranges anew has the metadata as before.
_KEEPING: Final = (NodeState.NORMAL, NodeState.REBUILDING)


class BeginUpgrade(msgspec.Struct, frozen=True, array_like=True):
    """Members agree to get a log, and on nothing else until that has ended. `initiator`: the node that was
    asked for it. `ignored`: nodes that need not say what they have, ascending; they are shut out by it."""

    initiator: NodeId
    actor: str = ""
    ignored: tuple[NodeId, ...] = ()

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        ring: Ringed = cluster.parts[RINGED]
        if not cluster.is_on_ring:
            raise Rejected("this cluster has a log already")
        if ring.upgrading is not None:
            raise Rejected(
                f"node {ring.upgrading.initiator} began an upgrade at epoch {ring.upgrading.begun_epoch}",
                hint="lockstep upgrade status",
            )
        _refuse_busy(cluster)
        _refuse_ignoring(cluster, ring, self.ignored, self.initiator)
        old = [node for node in unsupporting(cluster.directory, METADATA_LOG) if node not in self.ignored]
        if old or METADATA_LOG not in cluster.features_enabled:
            raise Rejected(
                f"nodes {_listed(old)} do not support {METADATA_LOG}",
                hint="start a version that does on every node: `lockstep features`",
            )
        begun = Upgrading(epoch, self.initiator, self.actor[:SERVICE_TEXT_CHARACTERS_MAX], self.ignored)
        return cluster.changed(RINGED.set(msgspec.structs.replace(ring, upgrading=begun, gave_up="")))


class BuildLog(msgspec.Struct, frozen=True, array_like=True):
    """The last entry that members of a ring agree on: from here on the `voters`, ascending, write the log.

    `begun_epoch`: of the upgrade that this ends. `at_ms`: the wall clock of who proposes it; from then on a
    generation of change data capture counts that the log begins with.
    """

    begun_epoch: int
    voters: tuple[NodeId, ...]
    at_ms: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        ring, running = _running(cluster, self.begun_epoch)
        able = {node.id for node in able_to_vote(cluster, running.ignored)}
        if self.voters != tuple(sorted(set(self.voters))) or not self.voters:
            raise Rejected("voters are distinct and ascending, and there is one at least")
        if len(self.voters) > METADATA_VOTERS_MAX or len(self.voters) % 2 == 0:
            raise Rejected(f"a log has an odd number of voters up to {METADATA_VOTERS_MAX}")
        if not {*self.voters} <= able:
            raise Rejected(f"nodes {_listed(sorted({*self.voters} - able))} cannot vote")
        present = cluster.directory.present_ids
        shut_out = [node for node in (*running.ignored, *ring.silenced) if node in present]
        added = [Exclusion(n, epoch, IGNORED) for n in shut_out if n not in cluster.excluded_by_node]
        excluded = tuple(sorted((*cluster.excluded, *added), key=lambda one: one.node))
        known: tuple[Generation, ...] = cluster.parts[GENERATIONS]
        at_ms = max(self.at_ms, known[-1].timestamp_ms + 1) if known else self.at_ms
        tokens = cluster.directory.circle.tokens
        generation = first_generation(cluster.identity.cluster_id, tokens, at_ms, epoch)
        service = msgspec.structs.replace(
            cluster.service, voters=self.voters, snapshot_voters=self.voters, change=None, leaving=()
        )
        return cluster.changed(
            RINGED.set(Ringed(built_epoch=epoch)),
            SERVICE.set(service),
            EXCLUDED.set(excluded),
            GENERATIONS.set((*_kept(known), generation)),
        )


class AbortUpgrade(msgspec.Struct, frozen=True, array_like=True):
    """The upgrade that began at `begun_epoch` comes to nothing, for a reason that people read."""

    begun_epoch: int
    reason: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        ring, _ = _running(cluster, self.begun_epoch)
        reason = self.reason[:SERVICE_TEXT_CHARACTERS_MAX] or "an operator gave it up"
        return cluster.changed(RINGED.set(msgspec.structs.replace(ring, upgrading=None, gave_up=reason)))


def able_to_vote(cluster: ClusterMetadata, ignored: tuple[NodeId, ...]) -> tuple[NodeInfo, ...]:
    """Nodes that can keep the log that is built, ascending."""
    shut_out = {*ignored, *cluster.excluded_by_node, *cluster.parts[RINGED].silenced}
    return tuple(
        node
        for node in cluster.directory.nodes
        if node.state in _KEEPING and node.may_vote and node.id not in shut_out
    )


def _kept(known: tuple[Generation, ...]) -> tuple[Generation, ...]:
    """Nobody captured changes on the ring: of what operations there made, only what counts stays."""
    published = tuple(one for one in known if one.is_published)
    return published[-(CDC_GENERATIONS_KEPT_MAX - 1) :]


def _running(cluster: ClusterMetadata, begun_epoch: int) -> tuple[Ringed, Upgrading]:
    ring: Ringed = cluster.parts[RINGED]
    if ring.upgrading is None or ring.upgrading.begun_epoch != begun_epoch:
        raise Rejected(f"no upgrade that began at epoch {begun_epoch} is under way")
    return ring, ring.upgrading


def _refuse_busy(cluster: ClusterMetadata) -> None:
    names = [operation.title() for operation in cluster.operations]
    names += [f"request {request.id}" for request in cluster.requests.live if not request.operation_id]
    names += [f"repair {repair.id}" for repair in cluster.repairs.running]
    coming = (NodeState.LEFT, *_KEEPING)
    names += [f"node {n.id}, which is {n.state}" for n in cluster.directory.nodes if n.state not in coming]
    if names:
        raise Rejected(
            f"an upgrade waits for what is under way: {', '.join(names[:5])}",
            hint="lockstep topology requests; begin it once that has ended",
        )


def _refuse_ignoring(
    cluster: ClusterMetadata, ring: Ringed, ignored: tuple[NodeId, ...], initiator: NodeId
) -> None:
    if ignored != tuple(sorted(set(ignored))):
        raise Rejected("nodes to ignore are named once each, in order")
    if ignored and ring.mode != QUORUM:
        raise Rejected(
            f"in the mode {ring.mode} all members must accept each change, so none can be ignored",
            hint="start that node again",
        )
    present = cluster.directory.present_ids
    unknown = [node for node in ignored if node not in present]
    if unknown:
        raise Rejected(f"there are no nodes {_listed(unknown)}")
    if initiator in ignored:
        raise Rejected("the node that is asked for the upgrade is one of those to ignore")
    owners = [
        node.id for node in cluster.directory.nodes if node.owns_tokens and node.id not in ring.silenced
    ]
    if 2 * len({*ignored} & {*owners}) >= len(owners):
        raise Rejected("most members of the ring are to be ignored", hint="name only nodes that are dead")


def _listed(nodes: tuple[NodeId, ...] | list[NodeId]) -> str:
    return ", ".join(str(node) for node in nodes) or "none"


KINDS: dict[int, type] = {
    EntryKind.BEGIN_UPGRADE: BeginUpgrade,
    EntryKind.BUILD_LOG: BuildLog,
    EntryKind.ABORT_UPGRADE: AbortUpgrade,
}
