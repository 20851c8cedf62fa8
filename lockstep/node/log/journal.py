"""An append-only file of CRC-framed records, the form of every small durable log of a node, and the durable
half of Raft: hard state, snapshot descriptor and log entries.

Invariant: one append and one sync at a time, one record each, so that a crash can damage the last record
only; loading cuts a torn tail off and refuses anything else that is damaged. Replaying the records in order
gives exactly the state whose persistence was acknowledged, plus possibly one last record whose sync had not
finished. The file is bounded by what the log keeps: a compaction writes what is left into a new file, which
takes the old one's name once it is whole and synced. Each record of Raft also says up to which index entries
are known to be committed, so that the next write makes the last commit durable, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from lockstep.consensus.effects import HardState
from lockstep.consensus.messages import Entry, Snapshot
from lockstep.runtime.ports import Disk
from lockstep.values.codec import UNREADABLE, Decoder, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import RAFT_RECORD_BYTES

T = TypeVar("T")

#: A record holds what one sync covers; a group commit of metadata bodies stays far below this.
RECORD_BYTES_MAX = 256 * 1024 * 1024


class Journal:
    """`path` is relative to the node's directory. Errors: CorruptFile on load, DiskRefused on append."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._directory = path.rpartition("/")[0]
        self._named = disk.exists(path)
        self._writing = False

    def load(self) -> list[bytes]:
        """All whole records in order."""
        if not self._disk.exists(self._path):
            return []
        data = self._disk.read(self._path)
        bodies: list[bytes] = []
        end = 0
        for offset, body in scan_records(self._path, data, record_bytes_max=RECORD_BYTES_MAX):
            bodies.append(body)
            end = offset
        if end < len(data):
            self._disk.truncate(self._path, end)
        return bodies

    def load_as(self, decoder: Decoder[T]) -> list[T]:
        """All whole records decoded; CorruptFile also for one that this version cannot read."""
        decoded: list[T] = []
        for body in self.load():
            try:
                decoded.append(decoder.decode(body))
            except UNREADABLE as error:
                why = f"record {len(decoded)} cannot be read: {error}"
                raise CorruptFile(self._path, 0, why) from error
        return decoded

    async def append(self, body: bytes) -> None:
        """Return when `body` is durable. A failure leaves the file's end unknown: reopen to go on."""
        assert not self._writing, "a journal takes one record at a time, and none after a failure"
        assert len(body) <= RECORD_BYTES_MAX, f"a record of {len(body)} bytes would be read as damage"
        self._writing = True
        await self._disk.append_synced(self._path, frame_record(body))
        if not self._named:
            await self._disk.sync_names(self._directory)
            self._named = True
        self._writing = False


async def settle(disk: Disk, paths: Sequence[str]) -> None:
    """Make durable what the files hold, before it is read as such.

    A predecessor that was killed between an append and its sync leaves bytes that every read shows and
    a power cut still takes back.
    """
    for path in paths:
        if disk.exists(path):
            await disk.sync(path)
            await disk.sync_names(path.rpartition("/")[0])


PARTIAL = ".part"
#: The group whose log is the metadata log.
METADATA_GROUP: Final = 1
#: The group that holds what the cluster is: its name, its lineage, whom it admits.
MANAGEMENT_GROUP: Final = 2


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot replaces the whole log; then `entries` replace everything from their first index on. Entries
    up to `commit_index`, which are here or in an older record, were committed when it was written."""

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    snapshot: Snapshot | None = None
    commit_index: int = 0


class Journaled(msgspec.Struct, frozen=True):
    """`entries` are consecutive and reach back to the snapshot at least, to index 1 without one; those up to
    `commit_index` are committed."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    commit_index: int = 0

    @property
    def committed(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.index <= self.commit_index)


_DECODER = decoder(_Record)


class RaftJournal:
    def __init__(self, disk: Disk, group: int) -> None:
        self._disk = disk
        self._path = journal_path(group)
        self._journal = Journal(disk, self._path)

    def load(self) -> Journaled:
        """CorruptFile when the records do not make one log."""
        hard_state, snapshot, entries, commit_index = HardState(), None, list[Entry](), 0
        for record in self._journal.load_as(_DECODER):
            hard_state = record.hard_state or hard_state
            commit_index = max(commit_index, record.commit_index)
            if record.snapshot is not None:
                snapshot, entries = record.snapshot, []
            if record.entries:
                self._extend(entries, record.entries, snapshot)
        if snapshot is not None and entries and entries[-1].index < snapshot.index:
            raise CorruptFile(self._path, 0, f"entries end at {entries[-1].index}, before the snapshot")
        last = entries[-1].index if entries else snapshot.index if snapshot is not None else 0
        if commit_index > last:
            raise CorruptFile(self._path, 0, f"entries end at {last}, and {commit_index} were committed")
        return Journaled(hard_state, snapshot, tuple(entries), commit_index)

    def _extend(self, entries: list[Entry], more: tuple[Entry, ...], snapshot: Snapshot | None) -> None:
        first = more[0].index
        if entries:
            del entries[max(0, first - entries[0].index) :]
        following = entries[-1].index + 1 if entries else 1
        kept_before = not entries and snapshot is not None and first <= snapshot.index + 1
        if first != following and not kept_before:
            raise CorruptFile(self._path, 0, f"entry {first} follows entry {following - 1}")
        entries.extend(more)

    async def append(
        self, hard_state: HardState | None, entries: tuple[Entry, ...], commit_index: int = 0
    ) -> None:
        await self._journal.append(encode(_Record(hard_state, entries, None, commit_index)))

    async def replace(
        self,
        hard_state: HardState,
        snapshot: Snapshot | None,
        entries: tuple[Entry, ...],
        commit_index: int = 0,
    ) -> None:
        """Return when a file that holds just this is durable in the place of the one before.

        A crash on the way leaves the one before.
        """
        partial = self._path + PARTIAL
        if self._disk.exists(partial):
            self._disk.remove(partial)
        head = _Record(hard_state, (), snapshot, commit_index)
        self._disk.append(partial, frame_record(encode(head)))
        for part in _parts(entries):
            self._disk.append(partial, frame_record(encode(_Record(None, part))))
        await self._disk.sync(partial)
        self._disk.rename(partial, self._path)
        await self._disk.sync_names(self._path.rpartition("/")[0])
        self._journal = Journal(self._disk, self._path)


def journal_path(group: int) -> str:
    return f"raft/group-{group}"


def has_journal(disk: Disk, group: int) -> bool:
    """Whether this node ever promised anything to the group."""
    path = journal_path(group)
    return disk.exists(path) and disk.size(path) > 0


def _parts(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Consecutive runs of bounded size; a large entry is one of its own."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and size + len(entry.data) > RAFT_RECORD_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(entry)
        size += len(entry.data)
    if part:
        yield tuple(part)
