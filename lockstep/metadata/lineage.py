"""What began each cluster id but the first, and the entry by which a repair of lost groups begins the next.

Invariant: the lineage only grows, and each repair tells the last epoch and hash of the history that it
continues, so whoever has another entry after that epoch is seen to have diverged. The links of the lineage
are those of the management group: a hash of each covers all before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import IDENTITY, LINEAGE, Identity, NodeState, Reset
from lockstep.metadata.groups.management import GENESIS, Former, Host, Link, Repair, link_hash
from lockstep.metadata.groups.ringed import RING_MODES, RINGED, Ringed
from lockstep.metadata.groups.service import MANAGEMENT_PLACE, SERVICE, ManagementPlace
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values import codec
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import METADATA_VOTERS_MAX
from lockstep.values.node_limits import LINEAGE_MAX, MANAGEMENT_KEPT_MAX


def repair_of(repaired: Reset) -> Repair:
    """How the management group keeps it."""
    return Repair(repaired.kind, repaired.actor, codec.encode(repaired))


def former_of(identity: Identity, repairs: Sequence[Reset]) -> tuple[Former, ...]:
    """The ids that came before the present one, each with what began it."""
    begun = (Repair(), *(repair_of(one) for one in repairs))
    assert len(begun) >= len(identity.lineage), "each id but the first was begun by a repair"
    return tuple(Former(id_, repair) for id_, repair in zip(identity.lineage[:-1], begun, strict=False))


def links_of(identity: Identity, repairs: Sequence[Reset]) -> tuple[Link, ...]:
    """The whole lineage, oldest first."""
    begun = (Repair(), *(repair_of(one) for one in repairs))
    links: tuple[Link, ...] = ()
    for id_, repair in zip(identity.lineage, begun, strict=True):
        previous = links[-1].hash if links else GENESIS
        links = (*links, Link(id_, repair, previous, link_hash(id_, repair, previous)))
    return links


class ResetCluster(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of what is left of a history, and the first under another cluster id.

    It never passes through the group that was lost: a repair puts it at the end of every participant's log.
    `voters` ascending: whom the metadata group consists of from then on. `management` ascending: the same of
    the management group; empty: of the voters. With a `ring_mode` there are no groups any more: what is left
    runs on the ring, and members that are `silenced`, ascending, have no voice there.
    """

    repaired: Reset
    voters: tuple[NodeId, ...]
    management: tuple[NodeId, ...] = ()
    ring_mode: str = ""
    silenced: tuple[NodeId, ...] = ()

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        if self.ring_mode:
            self._refuse_ring(cluster)
        identity, repaired, service = cluster.identity, self.repaired, cluster.service
        if repaired.cluster_id in identity.lineage or not repaired.cluster_id:
            raise Rejected(f"cluster id {repaired.cluster_id!r} is not a new one")
        if (repaired.epoch, repaired.hash) != (cluster.epoch, cluster.hash):
            raise Rejected(f"this repair continues epoch {repaired.epoch}, and the log is at {cluster.epoch}")
        if len(identity.lineage) >= LINEAGE_MAX:
            raise Rejected(f"a cluster is repaired at most {LINEAGE_MAX - 1} times")
        if not self.voters and not self.ring_mode:
            raise Rejected("voters are distinct and ascending, and there is one at least")
        for members in (self.voters, self.management, self.silenced):
            if members != tuple(sorted(set(members))):
                raise Rejected("voters are distinct and ascending, and there is one at least")
            if len(members) > METADATA_VOTERS_MAX and members is not self.silenced:
                raise Rejected(f"the group has at most {METADATA_VOTERS_MAX} voters")
        for voter in (*self.voters, *self.management, *self.silenced):
            node = cluster.node(voter)
            if node is None or node.state is NodeState.LEFT:
                raise Rejected(f"there is no node {voter}")
        lineage = (*identity.lineage, repaired.cluster_id)
        assert lineage[:-1] == identity.lineage, "lineage only grows"
        ring = Ringed(self.ring_mode, silenced=self.silenced) if self.ring_mode else cluster.parts[RINGED]
        return cluster.changed(
            RINGED.set(ring),
            IDENTITY.set(Identity(repaired.cluster_id, identity.cluster_name, lineage)),
            LINEAGE.set((*cluster.parts[LINEAGE], repaired)),
            MANAGEMENT_PLACE.set(ManagementPlace(self.management)),
            SERVICE.set(
                msgspec.structs.replace(
                    service,
                    voters=self.voters,
                    change=None,
                    frozen="",
                    recovery_generation=service.recovery_generation + 1,
                    snapshot_voters=self.voters,
                )
            ),
        )

    def _refuse_ring(self, cluster: ClusterMetadata) -> None:
        if self.ring_mode not in RING_MODES:
            raise Rejected(f"a ring agrees by one of {', '.join(RING_MODES)}, not by {self.ring_mode}")
        if cluster.is_on_ring or self.voters or self.management:
            raise Rejected("only a cluster that lost its log goes on on the ring, and nobody votes there")
        if not any(node.owns_tokens and node.id not in self.silenced for node in cluster.directory.nodes):
            raise Rejected("none of the nodes that are left owns tokens, so none would have a voice")


#: The `kind` in the lineage of a repair of the management group alone.
MANAGEMENT_RESET: Final = "management"
#: Of one that took commands out of its log.
MANAGEMENT_TRUNCATION: Final = "truncate-cmg"


class ResetManagement(msgspec.Struct, frozen=True, array_like=True):
    """The last entry under a cluster id, by a metadata group that works: whoever applies it begins both
    groups anew under another id.

    `voters`, `management`: as in ResetCluster. The leader says in `repaired` which epoch it continues.
    `admitted` and `expelled`, ascending: what a truncated log of the management group decided before the
    commands that go, and no metadata says.
    """

    repaired: Reset
    voters: tuple[NodeId, ...]
    management: tuple[NodeId, ...] = ()
    admitted: tuple[Host, ...] = ()
    expelled: tuple[str, ...] = ()

    def prepared(self, cluster: ClusterMetadata) -> ResetManagement:
        known = msgspec.structs.replace(self.repaired, epoch=cluster.epoch, hash=cluster.hash)
        return msgspec.structs.replace(self, repaired=known)

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if self.repaired.kind not in (MANAGEMENT_RESET, MANAGEMENT_TRUNCATION):
            raise Rejected(f"a group that works does not begin a cluster id by a {self.repaired.kind}")
        self._refuse_kept()
        after = ResetCluster(self.repaired, self.voters, self.management).apply(cluster, epoch)
        assert after.identity.lineage[:-1] == cluster.identity.lineage, "one more id"
        kept = msgspec.structs.replace(after.service, frozen=cluster.service.frozen)
        return after.changed(SERVICE.set(kept))

    def _refuse_kept(self) -> None:
        hosts = tuple(host.host_id for host in self.admitted)
        if (hosts or self.expelled) and self.repaired.kind != MANAGEMENT_TRUNCATION:
            raise Rejected("only a log that is truncated has something before what goes")
        if any(names != tuple(sorted(set(names))) for names in (hosts, self.expelled)):
            raise Rejected("hosts are distinct and ascending")
        if {*hosts} & {*self.expelled} or len(hosts) + len(self.expelled) > MANAGEMENT_KEPT_MAX:
            raise Rejected(f"a host is admitted or expelled, and there are {MANAGEMENT_KEPT_MAX} at most")


KINDS: Final[Mapping[int, type[Any]]] = {
    EntryKind.RESET_CLUSTER: ResetCluster,
    EntryKind.RESET_MANAGEMENT: ResetManagement,
}
