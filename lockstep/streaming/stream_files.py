"""What a target of streams has on disk: files on their way in, and how far each stream has come.

    streams/in-<stream>-state     one record for each step, the last one counts
    streams/in-<stream>-<number>  content of a file as far as it arrived; with `.run`: what the store takes in

Invariants. A position is recorded as durable only after the files before it were made visible durably. What
belongs to a session that is closed is removed, when it closes or at the next start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import msgspec
import xxhash

from lockstep.internode.handshake import Address
from lockstep.runtime.ports import Disk
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import STREAM_DIGEST_BYTES, STREAM_RECORD_BYTES_MAX

DIRECTORY = "streams"
_PREFIX = "in-"
_STATE = "-state"
_NAME_BYTES = 12


class StreamKey(msgspec.Struct, frozen=True, array_like=True):
    """One stream to this node, whatever breaks meanwhile."""

    session_id: str
    table_id: int
    left: int
    right: int
    source: Address


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream has come.

    `next_key`: from where on something is lacking. `stream_id` (0: none) is the source's, `number` its file
    that comes next, `fetched` the digests of that one and its followers as far as their fetching began.
    """

    key: StreamKey
    next_key: bytes = b""
    moved_bytes: int = 0
    fragments: int = 0
    files: int = 0
    done: bool = False
    stream_id: int = 0
    number: int = 0
    total_bytes: int = 0
    file_bytes: int = 0
    part_bytes: int = 0
    fetched: tuple[tuple[int, bytes], ...] = ()


_POSITION = decoder(Position)


class StreamFiles:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self, key: StreamKey) -> Position:
        """What is known of the stream; a new one begins at its range's start."""
        path = self._state(key)
        if not self._disk.exists(path):
            return Position(key)
        found, end = self._last(path)
        if found is None or found.key != key:
            self._disk.remove(path)
            return Position(key)
        if end < self._disk.size(path):
            self._disk.truncate(path, end)
        return found

    def of_session(self, session_id: str) -> Iterator[Position]:
        """Of each stream of the session that brought something, how far it is."""
        for name in self._disk.names(DIRECTORY):
            if name.startswith(_PREFIX) and name.endswith(_STATE):
                found, _ = self._last(f"{DIRECTORY}/{name}")
                if found is not None and found.key.session_id == session_id:
                    yield found

    def note(self, position: Position) -> None:
        """Remember, if nothing worse happens than the end of this process."""
        self._disk.append(self._state(position.key), frame_record(encode(position)))

    async def record(self, position: Position) -> None:
        """Remember durably."""
        path = self._state(position.key)
        is_new = not self._disk.exists(path)
        await self._disk.append_synced(path, frame_record(encode(position)))
        if is_new or position.files == 1 or position.done:
            await self._disk.sync_names(DIRECTORY)

    def content(self, key: StreamKey, number: int) -> str:
        """Path of a file on its way in."""
        return f"{DIRECTORY}/{_PREFIX}{_name(key)}-{number}"

    def hand_over(self, key: StreamKey, number: int) -> str:
        """Give a complete file another name, under which the store takes it in: the path. Nobody writes to it
        any more; what arrives later under the old name is another file."""
        path = self.content(key, number)
        self._disk.rename(path, f"{path}.run")
        return f"{path}.run"

    def arrived(self, key: StreamKey, number: int) -> int:
        """Bytes of a file that are here."""
        path = self.content(key, number)
        return self._disk.size(path) if self._disk.exists(path) else 0

    def discard(self, key: StreamKey, number: int = -1) -> None:
        """Remove content of one file, or of all that are on their way in on this stream."""
        stem = f"{_PREFIX}{_name(key)}-"
        wanted = [str(number), f"{number}.run"] if number >= 0 else None
        for name in self._disk.names(DIRECTORY):
            is_content = name.startswith(stem) and not name.endswith(_STATE)
            if is_content and (wanted is None or name[len(stem) :] in wanted):
                self._disk.remove(f"{DIRECTORY}/{name}")

    def taken_in(self, key: StreamKey, number: int) -> None:
        """Remove what the store left of a file that it has taken in: a copy, or nothing."""
        try:
            self._disk.remove(f"{self.content(key, number)}.run")
        except FileNotFoundError:
            return

    def has(self, key: StreamKey) -> bool:
        """Whether something is known of the stream."""
        return self._disk.exists(self._state(key))

    def remove(self, key: StreamKey) -> None:
        """Forget the stream: its session closed while something was being written."""
        self.discard(key)
        if self._disk.exists(self._state(key)):
            self._disk.remove(self._state(key))

    def forget_closed(self, session_open: Callable[[str], bool]) -> int:
        """Remove everything of closed sessions, and what nobody can tell the session of; how many files."""
        names = self._disk.names(DIRECTORY)
        kept = []
        for name in names:
            if name.startswith(_PREFIX) and name.endswith(_STATE):
                found, _ = self._last(f"{DIRECTORY}/{name}")
                if found is not None and session_open(found.key.session_id):
                    kept.append(name.removesuffix(_STATE) + "-")
        gone = [name for name in names if name.startswith(_PREFIX) and not name.startswith(tuple(kept))]
        for name in gone:
            self._disk.remove(f"{DIRECTORY}/{name}")
        return len(gone)

    def _last(self, path: str) -> tuple[Position | None, int]:
        """The last whole record, and where it ends."""
        found: Position | None = None
        end = 0
        try:
            content = self._disk.read(path)
            for at, body in scan_records(path, content, record_bytes_max=STREAM_RECORD_BYTES_MAX):
                found, end = _POSITION.decode(body), at
        except (CorruptFile, *UNREADABLE):
            # Only a convenience is lost: the stream begins anew.
            return None, 0
        return found, end

    def _state(self, key: StreamKey) -> str:
        return f"{DIRECTORY}/{_PREFIX}{_name(key)}{_STATE}"


def new_digest() -> xxhash.xxh3_128:
    """Over a file's content, in order: 16 bytes that tell of any damage, but are no proof against malice."""
    return xxhash.xxh3_128()


def digest_of(disk: Disk, path: str) -> bytes:
    """Of what a file holds. For a thread: reading and summing up need no interpreter."""
    digest, offset, buffer = new_digest(), 0, memoryview(bytearray(STREAM_DIGEST_BYTES))
    file = disk.reader(path)
    try:
        while size := file.read_into(offset, buffer):
            digest.update(buffer[:size])
            offset += size
    finally:
        file.close()
    return digest.digest()


class ArrivingFile:
    """A file whose parts come in threads: what is behind the last one that arrived is written and summed up.

    Parts that come in another order are dropped. Bytes given up are the same ones when they come again, so a
    thread that is late does no harm.
    """

    def __init__(self, disk: Disk, path: str, size_bytes: int) -> None:
        """`size_bytes` of it were here before."""
        self._file = disk.writer(path)
        self._digest = new_digest() if not size_bytes else None
        self.size_bytes = size_bytes
        self._closed = False

    def taker(self, offset: int) -> Callable[[memoryview], None]:
        """Takes the bytes of one part, from `offset` on."""

        def take(data: memoryview) -> None:
            if self._closed or self.size_bytes != offset + taken[0]:
                return
            self._file.write_at(self.size_bytes, data)
            if self._digest is not None:
                self._digest.update(data)
            taken[0] += len(data)
            self.size_bytes += len(data)

        taken = [0]
        return take

    def digest(self) -> bytes | None:
        """Of everything that arrived; None when some of it was here before, and has to be read."""
        return self._digest.digest() if self._digest is not None else None

    def close(self) -> None:
        self._closed = True
        self._file.close()


def _name(key: StreamKey) -> str:
    return hashlib.blake2b(encode(key), digest_size=_NAME_BYTES).hexdigest()
