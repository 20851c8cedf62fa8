"""What the files of a node held when it stopped in good order, so that the next start finds any change.

A record that was cut off at a file's end looks as a crash leaves it, and by the rules of journals is no part
of the file. After a stop in good order there is no such record: the seal has size and digest of each file.

Invariant: a seal is written when nothing changes the files any more, and is gone, durably, before anything
does. So a difference is damage, never a change of the node's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import xxhash

from lockstep.runtime.ports import Disk
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile, DiskRefused

SEAL_PATH: Final = "seal"
_PARTIAL: Final = "seal.part"
#: What is sealed: these, and all files of these directories. The store knows its own files.
_FILES: Final = ("identity", "stamps")
_DIRECTORIES: Final = ("raft", "metadata")
#: A few hundred files of a hundred bytes each.
_RECORD_BYTES_MAX: Final = 4 * 1024 * 1024


class SealedFile(msgspec.Struct, frozen=True, array_like=True):
    path: str
    size_bytes: int
    digest: bytes


_DECODER = decoder(tuple[SealedFile, ...])


class Seal:
    """Errors: CorruptFile, DiskRefused."""

    def __init__(self, disk: Disk, log: Callable[..., None]) -> None:
        self._disk = disk
        self._log = log

    async def open(self) -> None:
        """Compare every file with the seal, if there is one, and take it off. CorruptFile names the first
        file that is not what it was."""
        if self._disk.exists(SEAL_PATH):
            for sealed in self._read():
                self._check(sealed)
            self._disk.remove(SEAL_PATH)
            await self._disk.sync_names("")

    def _read(self) -> tuple[SealedFile, ...]:
        """Nothing when it cannot be read: what it covers has checksums of its own."""
        try:
            content = self._disk.read(SEAL_PATH)
            for _, body in scan_records(SEAL_PATH, content, record_bytes_max=_RECORD_BYTES_MAX):
                return _DECODER.decode(body)
        except (CorruptFile, *UNREADABLE) as error:
            self._log("seal.unreadable", error=str(error))
        return ()

    def _check(self, sealed: SealedFile) -> None:
        path, disk = sealed.path, self._disk
        if not disk.exists(path):
            raise _changed(path, 0, f"it is gone, and had {sealed.size_bytes} bytes")
        content = disk.read(path)
        if len(content) < sealed.size_bytes:
            raise _changed(path, len(content), f"it ends there, and had {sealed.size_bytes} bytes")
        if xxhash.xxh3_128_digest(content[: sealed.size_bytes]) != sealed.digest:
            raise _changed(path, _damaged_at(path, content), "its content is not what it was")
        if len(content) > sealed.size_bytes:
            raise _changed(path, sealed.size_bytes, f"it has {len(content)} bytes, and ended there")

    async def close(self) -> None:
        """Seal the files as they are, durably; without one the next start compares nothing."""
        try:
            await self._seal()
        except DiskRefused as error:
            self._log("seal.not_written", error=error.message)

    async def _seal(self) -> None:
        disk = self._disk
        sealed = []
        for path in self._paths():
            await disk.sync(path)
            content = disk.read(path)
            sealed.append(SealedFile(path, len(content), xxhash.xxh3_128_digest(content)))
        if disk.exists(_PARTIAL):
            disk.remove(_PARTIAL)
        await disk.append_synced(_PARTIAL, frame_record(encode(tuple(sealed))))
        disk.rename(_PARTIAL, SEAL_PATH)
        await disk.sync_names("")

    def _paths(self) -> Iterator[str]:
        for path in (*_FILES, *(f"{one}/{name}" for one in _DIRECTORIES for name in self._disk.names(one))):
            if self._disk.exists(path):
                yield path


def _damaged_at(path: str, content: bytes) -> int:
    """Where the first record begins that is not whole; 0 when each is, or the file has none."""
    end = 0
    try:
        for offset, _ in scan_records(path, content, record_bytes_max=len(content)):
            end = offset
    except CorruptFile as error:
        return error.offset
    return end if end < len(content) else 0


def _changed(path: str, offset: int, why: str) -> CorruptFile:
    error = CorruptFile(path, offset, f"{why} when the node stopped")
    error.hint = (
        "put the file back from a copy, or start a new node in the place of this one: [cluster] replaces"
    )
    return error
