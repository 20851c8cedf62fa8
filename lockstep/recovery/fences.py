"""Whether a node that was away during repairs may go to the repaired cluster.

Who may not has applied what the repaired cluster lacks, or the other way round belongs to a history that is
not continued there. Such a node stays what it is, fenced off by its cluster id: it neither serves nor votes
among the others.

Invariant: who is let in holds a prefix of the repaired cluster's history: the chain of hashes says so at its
last epoch, or where that is kept no more, at the last one of which both keep it. Only links that follow from
each other by their hashes are believed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

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
    """`diverged_at`: the first epoch that is known to have another entry there, with the hashes of both as
    far as they are known; 0: the histories are not compared. `only_more`: it has all that the repaired
    cluster has of its history, and more."""

    reason: str
    diverged_at: int = 0
    own_hash: bytes = b""
    other_hash: bytes = b""
    only_more: bool = False


def judge(
    identity: Identity,
    repairs: tuple[Reset, ...],
    epoch: int,
    hash_: bytes,
    target: Target,
    own_hash: Callable[[int], bytes | None] = lambda _epoch: None,
) -> Fenced | None:
    """Why a node of this identity, whose last applied entry is that, may not go to the target; None when it
    may. `own_hash` tells the hash at an epoch as far as the node keeps it. Rejected for a target that
    makes no sense."""
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
    known: Mapping[int, bytes] = {**dict(target.hashes), fork.epoch: fork.hash}

    def held(at: int) -> bytes | None:
        return hash_ if at == epoch else own_hash(at)

    both = sorted(at for at in known if at <= min(epoch, fork.epoch) and held(at) is not None)
    # Who has the same entry at an epoch has the same ones before it.
    first = bisect_left(both, True, key=lambda at: held(at) != known[at])
    if first < len(both):
        return _differs(both, first, held, known)
    if epoch > fork.epoch:
        more = f"it applied entries {fork.epoch + 1} to {epoch}, which the repaired cluster does not have"
        at = fork.epoch + 1
        return Fenced(more, at, held(at) or b"", only_more=fork.epoch in both)
    if not both:
        return Fenced(f"nothing says whether the repaired cluster had the same entry at epoch {epoch}")
    return None


def _differs(
    both: Sequence[int], first: int, held: Callable[[int], bytes | None], known: Mapping[int, bytes]
) -> Fenced:
    """Who has another entry at `both[first]`, and none before it that is known."""
    at, before = both[first], both[first - 1] if first else 0
    since = f", or at one after {before}" if before and before < at - 1 else ""
    return Fenced(
        f"it has another entry at epoch {at} than the repaired cluster{since}", at, held(at) or b"", known[at]
    )
