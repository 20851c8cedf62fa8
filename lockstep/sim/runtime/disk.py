"""The disk of a simulated process: only a finished sync is a promise.

Invariant: after a power cut a file holds what its last finished sync covered, plus any part of what
came later (none, some, torn, with holes of zeroes, with junk behind it); a name is there as of the
last finished sync of its directory, plus any part of later changes. A killed process loses nothing.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lockstep.sim.runtime.probes import SYNC_IN_FLIGHT
from lockstep.sim.runtime.streams import NS
from lockstep.values.errors import DiskRefused

if TYPE_CHECKING:
    from lockstep.sim.runtime.loop import SimLoop, Stage
    from lockstep.sim.runtime.probes import SimProbes

#: Pieces that reach the platter on their own; small ones tear small records too.
_SECTOR_BYTES = (16, 64, 512)
#: Each sync asks of its path which kind it is: more than those of a run that are open.
_PATHS_KEPT = 4096
#: Longest junk behind a torn tail.
_JUNK_BYTES_MAX = 24


class DiskSettings(msgspec.Struct, kw_only=True):
    """Faults of one disk; change them while it runs. Probabilities in [0, 1], times in seconds."""

    sync_low_s: float = 0.0002
    sync_high_s: float = 0.004
    #: A sync fails with EIO and its pages are dropped, though reads still see them.
    sync_error: float = 0.0
    read_error: float = 0.0
    #: Bytes of all files; None is unbounded.
    capacity_bytes: int | None = None
    #: What a power cut does to a file's unsynced part, as weights.
    keep_all: float = 0.2
    lose_all: float = 0.3
    tear: float = 0.25
    holes: float = 0.25
    #: How often a power cut keeps each change of a name, or loses it, for itself: a later one may outlive an
    #: earlier one.
    names_scattered: float = 0.15


class _Write(NamedTuple):
    """`data` None: truncation to `offset`."""

    sequence: int
    offset: int
    data: bytes | None


class _NameChange(NamedTuple):
    """`source` is unlinked, `target` (when not empty) points to `file`."""

    sequence: int
    directory: str
    source: str
    target: str
    file: _File | None


class _File:
    __slots__ = ("cache", "durable", "pending", "sequence")

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.cache = bytearray(content)
        self.pending: list[_Write] = []
        self.sequence = 0

    def write(self, offset: int, data: bytes | None) -> None:
        self.sequence += 1
        self.pending.append(_Write(self.sequence, offset, data))

    def persist(self, writes: list[_Write]) -> None:
        durable = self.durable
        for write in writes:
            if write.data is None:
                del durable[write.offset :]
                continue
            if len(durable) < write.offset:
                durable += bytes(write.offset - len(durable))
            durable[write.offset : write.offset + len(write.data)] = write.data


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]


class SimDisk:
    """The device. Incarnations see it through DiskPort; faults and tests use it directly."""

    def __init__(self, world: Stage, name: str) -> None:
        self._world = world
        self.name = name
        self.settings = DiskSettings()
        self.files: dict[str, _File] = {}
        self.syncs = 0
        #: A sync failed: pages were dropped that reads still show, until the host starts anew.
        self.failed = False
        self._durable_names: dict[str, _File] = {}
        self._name_changes: list[_NameChange] = []
        self._name_sequence = 0
        self._latency = world.stream(f"disk/{name}/latency")
        self._damage = world.stream(f"disk/{name}/damage")

    # ---- what the port does

    def file(self, path: str) -> _File:
        file = self.files.get(path)
        if file is None:
            raise FileNotFoundError(2, "No such file", path)
        return file

    def append(self, path: str, data: bytes) -> None:
        self._require_room(path, len(data))
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = _File()
            self._change_name(path, "", path, file)
        file.write(len(file.cache), bytes(data))
        file.cache += data

    def extend(self, path: str, file: _File, data: bytes) -> None:
        """Append to a file that is open, and may have lost the name it was opened under."""
        self._require_room(path, len(data))
        file.write(len(file.cache), data)
        file.cache += data

    def _require_room(self, path: str, size: int) -> None:
        capacity = self.settings.capacity_bytes
        if capacity is not None and self.used_bytes() + size > capacity:
            self._world.count("disk.full")
            raise DiskRefused(f"no space left for {path}", hint="free space on the data directory's disk")

    def truncate(self, path: str, size: int) -> None:
        file = self.file(path)
        if size < len(file.cache):
            file.write(size, None)
            del file.cache[size:]

    def rename(self, source: str, target: str) -> None:
        file = self.file(source)
        del self.files[source]
        self.files[target] = file
        self._change_name(target, source, target, file)

    def remove(self, path: str) -> None:
        self.file(path)
        del self.files[path]
        self._change_name(path, path, "", None)

    def _change_name(self, path: str, source: str, target: str, file: _File | None) -> None:
        self._name_sequence += 1
        self._name_changes.append(_NameChange(self._name_sequence, _directory_of(path), source, target, file))

    def sync_delay_ns(self) -> int:
        low, high = self.settings.sync_low_s, self.settings.sync_high_s
        draw = self._latency.random()
        if high > 0.1:
            self._world.count("disk.slow_sync")
        return int((low + (high - low) * draw * draw * draw) * NS)

    def finish_sync(self, path: str, file: _File, sequence: int) -> None:
        """Everything written up to `sequence` becomes durable, or is dropped with DiskRefused."""
        covered = [write for write in file.pending if write.sequence <= sequence]
        file.pending = file.pending[len(covered) :]
        if self.settings.sync_error and self._damage.random() < self.settings.sync_error:
            self._world.count("disk.sync_error")
            self.failed = True
            raise DiskRefused(f"sync of {path} failed: input/output error", hint="replace the disk")
        file.persist(covered)
        self.syncs += 1

    def name_sequence(self) -> int:
        return self._name_sequence

    def finish_sync_names(self, directory: str, sequence: int) -> None:
        kept = []
        for change in self._name_changes:
            if change.directory == directory and change.sequence <= sequence:
                self._persist_name(change)
            else:
                kept.append(change)
        self._name_changes = kept

    def _persist_name(self, change: _NameChange) -> None:
        if change.source:
            self._durable_names.pop(change.source, None)
        if change.target and change.file is not None:
            self._durable_names[change.target] = change.file

    def read(self, path: str) -> bytes:
        file = self.file(path)
        if self.settings.read_error and self._damage.random() < self.settings.read_error:
            self._world.count("disk.read_error")
            raise DiskRefused(f"read of {path} failed: input/output error", hint="replace the disk")
        return bytes(file.cache)

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory not in ("", ".") else ""
        children = {path[len(prefix) :].partition("/")[0] for path in self.files if path.startswith(prefix)}
        return sorted(children)

    def used_bytes(self) -> int:
        return sum(len(file.cache) for file in self.files.values())

    # ---- faults

    def power_loss(self) -> None:
        """Drop or damage whatever is not synced."""
        self.failed = False
        self._lose_names()
        for path in sorted(self._durable_names):
            file = self._durable_names[path]
            if file.pending:
                self._damage_file(file)
            file.cache = bytearray(file.durable)
        self.files = dict(self._durable_names)

    def _lose_names(self) -> None:
        changes, self._name_changes = self._name_changes, []
        if not changes:
            return
        draw = self._damage.random()
        if draw >= 1 - self.settings.names_scattered:
            kept = [change for change in changes if self._damage.random() < 0.5]
        elif draw < 0.4:
            kept = []
        elif draw < 0.65:
            kept = changes
        else:
            kept = changes[: self._damage.randrange(len(changes) + 1)]
        for change in kept:
            self._persist_name(change)
        if len(kept) < len(changes):
            self._world.count("disk.names_lost", len(changes) - len(kept))

    def _damage_file(self, file: _File) -> None:
        pending, file.pending = file.pending, []
        settings = self.settings
        weights = (settings.keep_all, settings.lose_all, settings.tear, settings.holes)
        kind = self._damage.choices(("keep", "lose", "tear", "holes"), weights)[0]
        if kind == "keep":
            file.persist(pending)
        elif kind == "lose":
            self._world.count("disk.lost")
        elif kind == "holes" and all(write.data is not None for write in pending):
            self._punch_holes(file, pending)
        else:
            self._tear(file, pending)

    def _tear(self, file: _File, pending: list[_Write]) -> None:
        """Whole writes, then a part of the next one, sometimes with junk behind it."""
        whole = self._damage.randrange(len(pending))
        file.persist(pending[:whole])
        torn = pending[whole]
        self._world.count("disk.torn")
        if torn.data is None:
            return
        part = torn.data[: self._damage.randrange(len(torn.data) + 1)]
        if self._damage.random() < 0.4:
            part += self._damage.randbytes(1 + self._damage.randrange(_JUNK_BYTES_MAX))
            self._world.count("disk.junk_tail")
        file.persist([_Write(0, torn.offset, part)])

    def _punch_holes(self, file: _File, pending: list[_Write]) -> None:
        """The new size is durable, but some sectors of the new part never arrived."""
        synced = len(file.durable)
        file.persist(pending)
        sector = self._damage.choice(_SECTOR_BYTES)
        chance = self._damage.choice((0.2, 0.5, 1.0))
        holes = 0
        for start in range(synced, len(file.durable), sector):
            if self._damage.random() < chance:
                end = min(start + sector, len(file.durable))
                file.durable[start:end] = bytes(end - start)
                holes += 1
        if holes:
            self._world.count("disk.holes", holes)

    def rot(self, path: str | None = None) -> str | None:
        """Flip one bit of `path`, or of any non-empty file; the damaged path, None when all are empty."""
        paths = (
            [path] if path is not None else [name for name in sorted(self.files) if self.files[name].durable]
        )
        if not paths:
            return None
        chosen = self._damage.choice(paths)
        file = self.file(chosen)
        if not file.durable:
            return None
        at = self._damage.randrange(len(file.durable))
        bit = 1 << self._damage.randrange(8)
        file.durable[at] ^= bit
        if at < len(file.cache):
            file.cache[at] ^= bit
        self._world.count("disk.bit_rot")
        return chosen

    def wipe(self) -> None:
        self.files.clear()
        self._durable_names.clear()
        self._name_changes.clear()
        self._world.count("disk.wiped")

    def clone(self, name: str) -> SimDisk:
        """A backup taken now, of what a read sees; all of it durable."""
        copy = SimDisk(self._world, name)
        copy.settings = msgspec.structs.replace(self.settings)
        copy.files = {path: _File(bytes(file.cache)) for path, file in self.files.items()}
        copy._durable_names = dict(copy.files)
        return copy

    def durable_sizes(self) -> dict[str, tuple[int, int]]:
        """Names that are certain to survive a power cut now: path -> (durable bytes, all bytes)."""
        return {path: (len(file.durable), len(file.cache)) for path, file in self._durable_names.items()}

    def durable_names(self) -> Iterable[str]:
        """Names that are certain to survive a power cut now, in no order."""
        return self._durable_names.keys()

    def durable_content(self, path: str) -> bytes:
        """What is certain to survive a power cut now of one file; nothing where its name does not."""
        file = self._durable_names.get(path)
        return b"" if file is None else bytes(file.durable)

    def durable(self) -> dict[str, bytes]:
        """What is certain to survive a power cut now: path -> content. For recovery oracles."""
        return {path: bytes(self._durable_names[path].durable) for path in sorted(self._durable_names)}


@functools.lru_cache(_PATHS_KEPT)
def kind_of(path: str) -> str:
    """What files of one kind have in common: their path without numbers and ids."""
    return _NUMBERS.sub("#", path)


#: Numbers, and runs of hexadecimal digits that are ids.
_NUMBERS = re.compile(r"[0-9a-f]{12,}|[0-9]+")
#: What is free on a disk without a capacity.
_ROOMY = 1 << 50


class SimReader:
    """A file as it was when it was opened."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read_into(self, offset: int, buffer: memoryview) -> int:
        found = self._content[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        return


class SimWriter:
    """Writes to the file it was opened for, whatever name that has; nothing after the process's crash."""

    def __init__(self, disk: SimDisk, path: str, loop: SimLoop) -> None:
        self._disk = disk
        self._path = path
        self._loop = loop
        self._file: _File | None = disk.files.get(path)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        file = self._file
        if file is None or self._loop.dead:
            return
        here = len(file.cache) - offset
        assert here >= 0, "a file has no holes"
        self._disk.extend(self._path, file, bytes(data[here:]))

    def close(self) -> None:
        self._file = None


class DiskPort:
    """Disk port of one incarnation: after its crash, writes are dropped."""

    def __init__(self, disk: SimDisk, loop: SimLoop, probes: SimProbes) -> None:
        self._disk = disk
        self._loop = loop
        self._probes = probes

    def names(self, directory: str) -> list[str]:
        return self._disk.names(directory)

    def exists(self, path: str) -> bool:
        return path in self._disk.files

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        return self._disk.read(path)[offset : offset + size]

    def size(self, path: str) -> int:
        return len(self._disk.file(path).cache)

    def free_bytes(self) -> int:
        capacity = self._disk.settings.capacity_bytes
        return _ROOMY if capacity is None else max(0, capacity - self._disk.used_bytes())

    def append(self, path: str, data: bytes) -> None:
        if not self._loop.dead:
            self._disk.append(path, data)

    def truncate(self, path: str, size: int) -> None:
        if not self._loop.dead:
            self._disk.truncate(path, size)

    def rename(self, source: str, target: str) -> None:
        if not self._loop.dead:
            self._disk.rename(source, target)
            self._probes.reach(f"disk.renamed {kind_of(target)}")

    def remove(self, path: str) -> None:
        if not self._loop.dead:
            self._disk.remove(path)
            self._probes.reach(f"disk.removed {kind_of(path)}")

    async def sync(self, path: str) -> None:
        file = self._disk.file(path)
        sequence = file.sequence
        await self._in_flight(path)
        self._disk.finish_sync(path, file, sequence)
        self._probes.reach(f"disk.synced {kind_of(path)}")

    async def append_synced(self, path: str, data: bytes) -> None:
        self.append(path, data)
        await self.sync(path)

    def reader(self, path: str) -> SimReader:
        return SimReader(self._disk.read(path))

    def writer(self, path: str) -> SimWriter:
        if path not in self._disk.files:
            self.append(path, b"")
        return SimWriter(self._disk, path, self._loop)

    async def sync_names(self, directory: str) -> None:
        sequence = self._disk.name_sequence()
        await self._in_flight(directory)
        self._disk.finish_sync_names(directory.rstrip("/") if directory != "." else "", sequence)
        self._probes.reach(f"disk.names_synced {kind_of(directory)}")

    def close(self) -> None:
        """Nothing is held open."""

    async def _in_flight(self, what: str) -> None:
        """The time a sync takes; a crash may hit exactly here."""
        self._probes.reach(SYNC_IN_FLIGHT)
        loop = self._loop
        world = loop.world
        finished: asyncio.Future[None] = loop.create_future()
        delay_ns = self._disk.sync_delay_ns()
        world.at(world.now_ns + delay_ns, _finish, finished, loop=loop, label=f"synced {what}")
        await finished


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
