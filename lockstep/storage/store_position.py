"""How far the store of a node had got, kept beside it: what a start compares the store's files with.

Invariant: a position is written only when everything that it covers is durable, and positions only grow. So
one that was lost, or the file that was damaged, hides a loss but never invents one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.runtime.ports import Disk
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import STORE_POSITION_FILE_BYTES_MAX

_RECORD_BYTES_MAX: Final = 1024 * 1024


class StorePosition(msgspec.Struct, frozen=True, array_like=True):
    """`sequence`: of the last write covered. `files`: (name, bytes) of the logs that were there then."""

    sequence: int
    files: tuple[tuple[str, int], ...] = ()


_DECODER = decoder(StorePosition)


def lost(path: str, offset: int, why: str) -> CorruptFile:
    """The refusal of a store that lacks what it had."""
    return CorruptFile(
        path,
        offset,
        why,
        hint="recover the node from its replicas: `lockstep node recover --config FILE`, then start it",
    )


class PositionFile:
    """The newest position of the store in `directory`, in a file beside it that outlives it.
    Errors: DiskRefused."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}-position"
        self._bytes = 0
        self._unsynced = False

    def load(self) -> StorePosition | None:
        """The newest position that can be read; what is behind damage was newer."""
        found: StorePosition | None = None
        for name in (self._path, self._next):
            if not self._disk.exists(name):
                continue
            content = self._disk.read(name)
            try:
                for _, body in scan_records(name, content, record_bytes_max=_RECORD_BYTES_MAX):
                    position = _DECODER.decode(body)
                    if found is None or position.sequence >= found.sequence:
                        found = position
            except (CorruptFile, *UNREADABLE):
                # What was read before is as true as it was, only older.
                continue
        return found

    async def begin(self, position: StorePosition) -> None:
        """Have the file hold this position alone, durably."""
        if self._disk.exists(self._next):
            self._disk.remove(self._next)
        record = frame_record(encode(position))
        await self._disk.append_synced(self._next, record)
        self._disk.rename(self._next, self._path)
        await self._disk.sync_names("")
        self._bytes, self._unsynced = len(record), False

    def note(self, position: StorePosition) -> None:
        """Append a position: any crash but a loss of power leaves it there."""
        record = frame_record(encode(position))
        self._disk.append(self._path, record)
        self._bytes += len(record)
        self._unsynced = True

    async def settle(self, position: StorePosition) -> None:
        """Make the newest position, which is this one, durable; and the file short again."""
        if self._bytes > STORE_POSITION_FILE_BYTES_MAX:
            await self.begin(position)
        elif self._unsynced:
            self._unsynced = False
            await self._disk.sync(self._path)

    async def remove(self) -> None:
        """Forget it: the store is about to be emptied."""
        for name in (self._path, self._next):
            if self._disk.exists(name):
                self._disk.remove(name)
        await self._disk.sync_names("")

    @property
    def _next(self) -> str:
        return f"{self._path}.next"
