"""An append-only file of CRC-framed records, the form of every small durable log of a node.

Invariant: one append and one sync at a time, one record each, so that a crash can damage the last record
only; loading cuts a torn tail off and refuses anything else that is damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from lockstep.runtime.ports import Disk
from lockstep.values.codec import UNREADABLE, frame_record, scan_records
from lockstep.values.errors import CorruptFile

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

    def load_as(self, decoder: msgspec.msgpack.Decoder[T]) -> list[T]:
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
