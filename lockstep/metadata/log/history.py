"""A history of the metadata in one process: each change is judged as a leader judges it, then applied.

It is the control plane without its nodes: plans, models and tests ask what the metadata would be.
Invariant: `values[e]` is the metadata of epoch e, and `entries[e - 1]` made it; each value was made twice, by
who judged the change and from the entry's bytes, and both are the same.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.log.apply import apply_entry, state_digest
from lockstep.metadata.log.entries import ENTRY_ID_BYTES, LogEntry
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.log.tip import Appended, Refused, Tip
from lockstep.values import codec
from lockstep.values.errors import Rejected

#: All entries are those of one leader.
_TERM = 1


class History:
    """`registry`: the kinds of changes; `lockstep.node.kinds.every_kind` has all. `actor`: who makes them."""

    def __init__(self, registry: Registry, actor: str = "local") -> None:
        self.registry = registry
        self.actor = actor
        self.values: list[ClusterMetadata] = [empty_cluster(registry.parts)]
        self.entries: list[LogEntry] = []
        self.tip = Tip(self.now, registry)

    @property
    def now(self) -> ClusterMetadata:
        """The newest value."""
        return self.values[-1]

    def submit(self, transformation: Transformation, commit_time_us: int = 0) -> ClusterMetadata:
        """The value that a change makes, of the next epoch. Rejected where it is refused: nothing changes."""
        kind, body = self.registry.encode(transformation)
        entry_id = (len(self.entries) + 1).to_bytes(ENTRY_ID_BYTES, "big")
        judged = self.tip.judge(entry_id, kind, body, self.actor, commit_time_us, _TERM)
        if isinstance(judged, Refused):
            raise judged.rejection
        assert isinstance(judged, Appended), "every entry id is new"
        value = apply_entry(self.now, judged.entry, self.registry)
        assert state_digest(value) == state_digest(self.tip.value), "an entry has one meaning"
        self.entries.append(judged.entry)
        self.values.append(value)
        self.tip.applied_now(value)
        return value

    def tried(self, transformation: Transformation) -> Rejected | None:
        """Why a change is refused; None where it was made."""
        try:
            self.submit(transformation)
        except Rejected as refusal:
            return refusal
        return None

    def replayed(self) -> ClusterMetadata:
        """The newest value, from the bytes of the entries alone."""
        decode = codec.decoder(LogEntry).decode
        value = empty_cluster(self.registry.parts)
        for entry in self.entries:
            value = apply_entry(value, decode(codec.encode(entry)), self.registry)
        return value
