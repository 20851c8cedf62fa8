"""The plan of a repair of the management group alone, while the metadata group works.

The metadata group decides it as it decides all else: the entry that gives the cluster another id is its last
one under the present id. Every node that applies the entry begins both groups anew behind it, so nobody has
to be asked, and nothing is in doubt.

Invariant: the voters of the new groups are voters that are alive, or nodes that are as fresh; what begins the
groups anew follows from the entry and the metadata alone, so all nodes begin them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import LINEAGE, Identity, Reset
from lockstep.metadata.groups.management import Host
from lockstep.metadata.groups.placing import named_managers
from lockstep.metadata.groups.service import MANAGEMENT_PLACE
from lockstep.metadata.lineage import MANAGEMENT_RESET, MANAGEMENT_TRUNCATION, ResetManagement
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind
from lockstep.recovery.survey import Survey
from lockstep.values.codec import decoder
from lockstep.values.errors import CannotApply
from lockstep.values.ids import NodeId

#: Of the new groups, behind the entry: the term of each begins above that of its last entry.
_TERM_STEP: Final = 1
_BODY = decoder(ResetManagement)


class Anew(msgspec.Struct, frozen=True):
    """How both groups begin. `attempt` names what is done, `last` is the entry that they begin behind.
    `expelled`, `admitted`: hosts that the former management group shut out and let in, where metadata do not
    say so."""

    attempt: str
    cluster_id: str
    cluster_name: str
    voters: tuple[NodeId, ...]
    management: tuple[NodeId, ...]
    raft_index: int
    raft_term: int
    expelled: tuple[str, ...]
    last: LogEntry
    admitted: tuple[Host, ...] = ()


def management_lost(cluster: ClusterMetadata, answers: Sequence[Survey]) -> bool:
    """Whether the management group lives apart, and a majority of it does not answer."""
    named = named_managers(cluster)
    here = {one.node for one in answers}
    living = [member for member in named if member in here]
    led = any(one.management_leader for one in answers)
    return bool(named) and not led and 2 * len(living) <= len(named)


def is_decided(bound: str, identity: Identity) -> bool:
    """Whether the metadata, which a node of cluster id `bound` has applied, gave the cluster another id."""
    return bool(bound) and identity.cluster_id != bound and bound in identity.lineage


def anew_from(value: ClusterMetadata, last: LogEntry) -> Anew:
    """What follows from the metadata whose last entry was the repair. CannotApply when it was not: a node
    went on under an id that had ended."""
    repairs: tuple[Reset, ...] = value.parts[LINEAGE]
    repaired = repairs[-1] if repairs else None
    if repaired is None or last.kind != EntryKind.RESET_MANAGEMENT or repaired.epoch + 1 != value.epoch:
        raise CannotApply(f"entry {value.epoch} follows the one that ended the cluster id")
    assert repaired.kind in (MANAGEMENT_RESET, MANAGEMENT_TRUNCATION), "the entry says how the id began"
    kept = _BODY.decode(last.body)
    voters = tuple(value.voters)
    return Anew(
        attempt=repaired.cluster_id,
        cluster_id=repaired.cluster_id,
        cluster_name=value.identity.cluster_name,
        voters=voters,
        management=value.parts[MANAGEMENT_PLACE].members or voters,
        raft_index=value.epoch + 1,
        raft_term=last.term + _TERM_STEP,
        expelled=kept.expelled,
        last=last,
        admitted=kept.admitted,
    )
