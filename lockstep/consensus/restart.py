"""The state of a member from what its disk held.

Invariant: what was committed is still there, a snapshot and the entries after it make one log, and nothing is
believed that the disk does not show.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.consensus.configuration import Configuration, ConfigurationHistory, decode_configuration
from lockstep.consensus.effects import Stored
from lockstep.consensus.log import Log
from lockstep.consensus.messages import Entry, EntryKind, Snapshot
from lockstep.consensus.settings import RaftSettings
from lockstep.consensus.state import RaftState


def restored(
    group: int,
    identity: int,
    founded: Configuration,
    settings: RaftSettings,
    draw: Callable[[int], int],
    stored: Stored,
) -> RaftState:
    """State from disk; a snapshot that the log does not contain replaces it."""
    snapshot, entries = stored.snapshot, stored.entries
    base_index, base_term, base = 0, 0, founded
    if snapshot is not None:
        base_index, base_term, base = snapshot.index, snapshot.term, snapshot.configuration
        entries = _beyond(snapshot, entries)
    log = Log(base_index, base_term, entries)
    commit = max(base_index, stored.applied_index, stored.commit_index)
    assert commit <= log.last_index, f"entries {log.last_index + 1}..{commit} were committed and are lost"
    assert stored.hard_state.term >= log.last_term, "the stored term is behind the stored log"
    log.commit_to(commit)
    log.handed_index = max(base_index, stored.applied_index)
    configurations = ConfigurationHistory(base_index, base)
    for entry in entries:
        if entry.kind is EntryKind.CONFIGURATION:
            configurations.append(entry.index, decode_configuration(entry.data))
    return RaftState(group, identity, settings, draw, stored.hard_state, log, configurations, snapshot)


def _beyond(snapshot: Snapshot, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The stored entries that continue the snapshot; none when they belong to a log it replaced."""
    if not entries or entries[0].index > snapshot.index:
        return entries
    offset = snapshot.index - entries[0].index
    if offset >= len(entries) or entries[offset].term != snapshot.term:
        return ()
    return entries[offset + 1 :]
