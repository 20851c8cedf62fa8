"""Entries of a cluster that runs on the ring without a log: what founds it, what ends a ring without a
change, and which others are refused there.

Invariant: a cluster that was founded so has no voters, and one that was founded with a log never gets there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ringed import RING_MODES, RINGED, Ringed
from lockstep.metadata.groups.service import NO_SERVICE, SERVICE
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import Initialize
from lockstep.schema.log_tables import capture_options
from lockstep.values.errors import Rejected

#: Entries that need a log, and what people know them as.
_NEED_A_LOG: Final[Mapping[int, str]] = {
    EntryKind.SNAPSHOT: "a snapshot of the log",
    EntryKind.TRUNCATE_LOG: "a truncation of the log",
    EntryKind.PREPARE_MEMBERSHIP: "a change of voters",
    EntryKind.ADVANCE_MEMBERSHIP: "a change of voters",
    EntryKind.CANCEL_MEMBERSHIP: "a change of voters",
    EntryKind.SET_SERVICE: "a change of voters",
    EntryKind.RESET_CLUSTER: "a repair of lost groups",
    EntryKind.INITIALIZE: "a founding with a log",
    EntryKind.ADVANCE_TRANSITIONS: "a move of tablets",
    EntryKind.BEGIN_MOVES: "a move of tablets",
    EntryKind.SET_BALANCING: "balancing of tablets",
    EntryKind.DECIDE_RESIZES: "a split or merge of tablets",
    EntryKind.ADVANCE_RESIZE: "a split or merge of tablets",
    EntryKind.ASK_RESIZE: "a split or merge of tablets",
    EntryKind.MIGRATE_KEYSPACE: "tablets",
    EntryKind.BEGIN_LOAD: "a bulk load",
    EntryKind.COMMIT_LOAD: "a bulk load",
    EntryKind.END_LOAD: "a bulk load",
    EntryKind.REPAIR_STREAMS: "a change capture",
    EntryKind.PUBLISH_GENERATIONS: "a change capture",
    EntryKind.ADVANCE_CAPTURED: "a change capture",
    EntryKind.CHANGE_CAPTURED: "a change capture",
    EntryKind.PUBLISH_STREAMS: "a change capture",
}

_HINT: Final = "docs/operate/ring.md says what works on the ring without a log"


class FoundRing(msgspec.Struct, frozen=True, array_like=True):
    """The first entry: the founders are there at once, and all changes are agreed on by `mode`."""

    initialize: Initialize
    mode: str

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if self.mode not in RING_MODES:
            raise Rejected(f"a ring agrees by one of {', '.join(RING_MODES)}, not by {self.mode}")
        if not all(founder.tokens for founder in self.initialize.founders):
            raise Rejected("a founder of a ring owns tokens: without any it has no voice")
        made = self.initialize.apply(cluster, epoch)
        return made.changed(SERVICE.set(NO_SERVICE), RINGED.set(Ringed(self.mode)))


class EndRing(msgspec.Struct, frozen=True, array_like=True):
    """Nothing changes but the ring's number: `op`, proposed on the ring before, can never be agreed on."""

    op: str

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if not cluster.is_on_ring:
            raise Rejected("only a cluster that runs on the ring ends one")
        return cluster


def refuse_needing_a_log(kind: int) -> None:
    """Raises Rejected for an entry that a cluster without a log does not take."""
    what = _NEED_A_LOG.get(kind)
    if what is not None:
        raise Rejected(f"{what} needs the log, and this cluster runs on the ring without one", hint=_HINT)


def refuse_lacking_a_log(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """Raises Rejected for a schema that has more of what a cluster without a log does not have; what there is
    from before a log was lost stays as it is."""
    assert after.is_on_ring, "a cluster with a log has all of it"
    for keyspace in after.schema.keyspaces:
        known = before.schema.by_name.get(keyspace.name)
        if known is keyspace:
            continue
        if keyspace.tablets is not None:
            raise _lacks(f"keyspace {keyspace.name} with tablets")
        tables = known.tables if known is not None else ()
        for table in keyspace.tables:
            if table not in tables and capture_options(table) is not None:
                raise _lacks(f"change data capture of {keyspace.name}.{table.name}")


def _lacks(what: str) -> Rejected:
    return Rejected(f"{what} needs the log, and this cluster runs on the ring without one", hint=_HINT)


KINDS: dict[int, type] = {EntryKind.FOUND_RING: FoundRing, EntryKind.END_RING: EndRing}
