"""Past values of the metadata: from snapshots and retained entries, and from the archive beyond them.

Invariant: a past value is made by applying the very entries of the log to a whole snapshot before them, so it
is the one that this epoch had; an epoch that cannot be reached this way is refused, never approximated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.snapshot_file import SnapshotContent, SnapshotFileReader
from lockstep.node.log import metadata_store as files
from lockstep.node.log.metadata_state import MetadataState
from lockstep.runtime.ports import Disk
from lockstep.values.errors import ConfigurationError, CorruptFile, LogTruncated
from lockstep.values.limits import ENTRIES_PER_TURN_MAX


class Past:
    """Reads the directory of `state` as it is at the time of each call."""

    def __init__(self, state: MetadataState) -> None:
        self._state = state
        self._disks: tuple[Disk, ...] = state.disks

    @property
    def oldest_epoch(self) -> int:
        """The oldest epoch whose value can be read, the archive included as far as its files' names tell."""
        oldest = self._oldest_here
        for disk in self._disks[1:]:
            held = files.segments(disk)
            if held and held[0] <= 1:
                return 0
            known = [epoch - 1 for epoch in files.snapshots(disk) if held and epoch >= held[0] - 1]
            oldest = min([oldest, *known])
        return oldest

    @property
    def _oldest_here(self) -> int:
        """The same without the archive."""
        state = self._state
        if state.first_epoch <= 1:
            return 0
        found = min((epoch for epoch in state.store.infos if epoch >= state.first_epoch - 1), default=0)
        return found - 1 if found else state.epoch

    def entries(self, first: int, last: int) -> list[LogEntry]:
        """Entries of these epochs as far as they are applied, kept here or archived; LogTruncated when one of
        them is nowhere."""
        return list(self._entries(first, min(last, self._state.epoch)))

    async def value_at(self, epoch: int) -> ClusterMetadata:
        """ConfigurationError for an epoch that is yet to come; LogTruncated for one that is kept no more."""
        state = self._state
        if epoch == state.epoch:
            return state.current
        if not 0 <= epoch <= state.epoch:
            raise ConfigurationError(f"this node has epochs up to {state.epoch}, not {epoch}")
        value = await self._base(epoch)
        for number, entry in enumerate(self._entries(value.epoch + 1, epoch), 1):
            value = apply_entry(value, entry, state.registry)
            if number % ENTRIES_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
        return value

    async def lead_up(self, epoch: int) -> tuple[ClusterMetadata, list[LogEntry]]:
        """The nearest value before `epoch` that a file holds (or the empty one) and all entries since.
        Errors as of `value_at`."""
        if not 0 <= epoch <= self._state.epoch:
            raise ConfigurationError(f"this node has epochs up to {self._state.epoch}, not {epoch}")
        base = await self._base(epoch - 1)
        return base, list(self._entries(base.epoch + 1, epoch))

    async def _base(self, epoch: int) -> ClusterMetadata:
        """The newest value at or before `epoch` that some file holds; the empty one when that is older."""
        known = {(number, at) for at, disk in enumerate(self._disks) for number in files.snapshots(disk)}
        for number, at in sorted(known, reverse=True):
            # A snapshot file holds the value before its entry.
            if number - 1 <= epoch:
                try:
                    content = await self._read(self._disks[at], number)
                except (CorruptFile, FileNotFoundError):
                    continue  # An older one, or the archive's copy, may do.
                return content.value
        return empty_cluster(self._state.registry.parts)

    async def _read(self, disk: Disk, number: int) -> SnapshotContent:
        path = files.snapshot_path(number)
        reader = SnapshotFileReader(self._state.registry.parts, path)
        for part in files.file_parts(disk, path):
            reader.feed(part)
            await asyncio.sleep(0)
        return files.checked(reader.finish(), path, number)

    def _entries(self, first: int, last: int) -> Iterator[LogEntry]:
        """Entries of these epochs; LogTruncated where one of them is nowhere."""
        state = self._state
        while first <= last:
            if first >= state.first_epoch:
                found = state.retained(first, last)
            else:
                found = self._archived(first, min(last, state.first_epoch - 1))
            yield from found
            first = found[-1].epoch + 1

    def _archived(self, first: int, last: int) -> list[LogEntry]:
        for disk in self._disks:
            known = [number for number in files.segments(disk) if number <= first]
            if known:
                try:
                    entries = files.read_segment(disk, known[-1])
                except (CorruptFile, FileNotFoundError):
                    continue  # The archive's copy, or a snapshot, may do.
                found = entries[first - known[-1] : last - known[-1] + 1]
                if found:
                    return found
        info = self._state.store.infos.get(first)
        if info is not None:
            return [info.entry]
        # An archive with a gap does not help beyond it.
        oldest = self.oldest_epoch if self.oldest_epoch > last else self._oldest_here
        raise LogTruncated(
            f"this node can read the metadata from epoch {oldest} on, not that of epoch {last}",
            oldest,
            hint="ask a node that keeps more, or one with an archive directory",
        )
