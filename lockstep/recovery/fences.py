"""Whether a node that was away during repairs may go to the repaired cluster.

Who may not has applied what the repaired cluster lacks, or the other way round belongs to a history that is
not continued there. Such a node stays what it is, fenced off by its cluster id: it neither serves nor votes
among the others.

Invariant: who is let in holds a prefix of the repaired cluster's history. Only links that follow from each
other by their hashes are believed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.metadata.directory import Identity, Reset
from lockstep.metadata.groups.management import Link
from lockstep.metadata.lineage import links_of
from lockstep.values.errors import Rejected


class Target(msgspec.Struct, frozen=True, array_like=True):
    """The repaired cluster: its ids, oldest first, and what began each but the first. `hashes`: (epoch, hash)
    of its log, for nodes that stopped before the last epoch that both have. `addresses`: where its nodes
    are. `voters`: who votes there on the metadata."""

    cluster_name: str
    lineage: tuple[str, ...]
    repairs: tuple[Reset, ...]
    hashes: tuple[tuple[int, bytes], ...] = ()
    addresses: tuple[tuple[str, int], ...] = ()
    voters: tuple[int, ...] = ()

    @property
    def cluster_id(self) -> str:
        return self.lineage[-1] if self.lineage else ""

    def links(self) -> tuple[Link, ...]:
        """Rejected when ids and repairs do not make one lineage."""
        if tuple(one.cluster_id for one in self.repairs) != self.lineage[1:] or not self.lineage:
            raise Rejected("the lineage of the target does not name what began each of its ids")
        return links_of(Identity(self.cluster_id, self.cluster_name, self.lineage), self.repairs)


class Fenced(msgspec.Struct, frozen=True):
    """`diverged_at`: the first epoch of which both have another entry; 0: the histories are not compared."""

    reason: str
    diverged_at: int = 0


def judge(
    identity: Identity,
    repairs: tuple[Reset, ...],
    epoch: int,
    hash_: bytes,
    target: Target,
) -> Fenced | None:
    """Why a node of this identity, whose last applied entry is that, may not go to the target; None when it
    may. Rejected for a target that makes no sense."""
    if target.cluster_name != identity.cluster_name:
        return Fenced(f"that is cluster {target.cluster_name!r}, and this one {identity.cluster_name!r}")
    theirs, own = target.links(), links_of(identity, repairs)
    if theirs == own:
        return Fenced("this node belongs to that cluster already")
    if own[: len(theirs)] == theirs:
        return Fenced(f"cluster {target.cluster_id} is a former one of this node's own")
    if theirs[: len(own)] != own:
        common = sum(1 for one, other in zip(own, theirs, strict=False) if one == other)
        if not common:
            return Fenced(f"cluster {target.cluster_id} has nothing in common with this node's")
        return Fenced(
            f"both were repaired apart from each other after cluster {own[common - 1].cluster_id}: neither "
            "continues the other"
        )
    fork = target.repairs[len(own) - 1]
    if epoch > fork.epoch:
        return Fenced(
            f"it applied entries {fork.epoch + 1} to {epoch}, which the repaired cluster does not have",
            fork.epoch + 1,
        )
    known: Mapping[int, bytes] = {**dict(target.hashes), fork.epoch: fork.hash}
    if epoch not in known:
        return Fenced(f"nothing says whether the repaired cluster had the same entry at epoch {epoch}")
    if known[epoch] != hash_:
        return Fenced(f"it has another entry at epoch {epoch} than the repaired cluster", epoch)
    return None
