"""What the journals of a node's groups hold, where it takes part in neither of them: it came up broken."""

from __future__ import annotations

import msgspec

from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP, RaftJournal, has_journal
from lockstep.runtime.ports import Disk


class Position(msgspec.Struct, frozen=True):
    """`index`: the last one of the metadata group; `term`: the newest of either group."""

    index: int = 0
    term: int = 0


def position_in(disk: Disk) -> Position:
    """CorruptFile when a journal cannot be read."""
    index = term = 0
    for group in (METADATA_GROUP, MANAGEMENT_GROUP):
        if not has_journal(disk, group):
            continue
        found = RaftJournal(disk, group).load()
        term = max(term, found.hard_state.term)
        if group == METADATA_GROUP:
            behind = found.snapshot.index if found.snapshot is not None else 0
            index = found.entries[-1].index if found.entries else behind
    return Position(index, term)
