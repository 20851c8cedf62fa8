"""What readers decoded, kept as Arrow batches in files beside the store: whoever reads the same again decodes
nothing.

A file has the batches of one answer and ends with their list. A batch has the rows that show between two keys
of a content, and names by a digest the table files which have anything of these partitions there. A table
file never changes, and a store gives no name twice while it is open; so where a content has the same table
files, it has the same rows.

Invariant: a batch is used for a content with the same table files there and the same definition of the table,
and nothing that lies before it in its partition bears on it. Rows that show for a while only are not kept.
These files are no data: one that is damaged, gone or was never finished is as none.
"""

from __future__ import annotations

import bisect
import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
import xxhash

from lockstep.scans.scan_table import ScanTable
from lockstep.scans.table_reader import partition_of
from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.node_limits import COLUMN_FILES_MAX, COLUMN_FILES_UNUSED_S

_SUFFIX: Final = ".columns"
#: Of one that is being written.
_UNFINISHED: Final = ".columns-unfinished"
_END: Final = struct.Struct(">IIQ")
_MAGIC: Final = 0x4C4B4331
_LOWER: Final = attrgetter("lower")


class KeptPart(msgspec.Struct, frozen=True, array_like=True):
    """What lies between two keys: `files` is the digest of the names of table files, `stored` that of what is
    stored or nothing, and the batch of `rows` rows is `size` bytes at `offset`, whose digest is `check`."""

    lower: bytes
    upper: bytes
    files: bytes
    rows: int
    stored: bytes
    offset: int
    size: int
    check: int


class _List(msgspec.Struct, frozen=True, array_like=True):
    """At the end of a file. Columns None: the parts have digests only, with rows as they are stored."""

    columns: tuple[str, ...] | None
    parts: tuple[KeptPart, ...]


_LIST: Final = decoder(_List)


class FilesWorld(Protocol):
    """See runtime.real.door_process."""

    def listed(self, directory: str) -> Sequence[tuple[str, int, float]]: ...

    def mapped(self, path: str) -> memoryview: ...

    def create(self, path: str) -> Any: ...

    def rename(self, path: str, to: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def touch(self, path: str) -> None: ...

    def unique(self) -> str: ...

    def free_bytes(self, directory: str) -> int: ...

    def say(self, text: str) -> None: ...


class TableFiles:
    """The table files of a content; `live` as the library lists them. `bytes_of`: a digest of what is in a
    file of that name, for those who want to be told of that, not of what was there once."""

    def __init__(
        self, live: Sequence[Mapping[str, Any]], bytes_of: Callable[[str], bytes] = lambda _: b""
    ) -> None:
        self._bytes_of = bytes_of
        self._all = [
            (one["start_key"], one["end_key"], one["name"]) for one in live if one["start_key"] is not None
        ]

    def read(self, lower: bytes, upper: bytes) -> Iterator[None]:
        """Look at the bytes of those that have something there, one at a step."""
        for first, last, name in self._all:
            if first < upper and lower <= last:
                self._bytes_of(name)
                yield None

    def between(self, lower: bytes, upper: bytes) -> bytes:
        """Digest of the names of those that have something there, or before in the partition of `lower`."""
        lower = partition_of(lower) or lower
        names = sorted(name for first, last, name in self._all if first < upper and lower <= last)
        return xxhash.xxh3_128_digest(
            b"".join([name.encode() + b"\x00" + self._bytes_of(name) for name in names])
        )


class _File(msgspec.Struct):
    path: str
    columns: tuple[str, ...] | None
    content: memoryview
    is_touched: bool = False


class _Kept(msgspec.Struct, frozen=True):
    """A part and the file that it lies in."""

    part: KeptPart
    file: _File

    @property
    def lower(self) -> bytes:
        return self.part.lower


class KeptColumns:
    """Of one definition of a table, as one content may use them; what one answer adds goes to `making`."""

    def __init__(self, index: _Index, table_files: TableFiles, making: _Making) -> None:
        self._index = index
        self.table_files = table_files
        self._making = making
        self._digests: dict[tuple[bytes, bytes], bytes] = {}

    def keep(self, lower: bytes, upper: bytes, rows: int, stored: bytes, batch: Any = b"") -> None:
        """What lies between two keys. `batch`: its bytes; of a digest alone there are none."""
        self._making.add(lower, upper, self._files_between(lower, upper), rows, stored, batch)

    def finish(self, columns: tuple[str, ...] | None) -> None:
        """Have what was added used by all, when there is room for it; to be called once the answer ends."""
        self._making.finish(columns)

    def _files_between(self, lower: bytes, upper: bytes) -> bytes:
        known = self._digests.get((lower, upper))
        if known is None:
            known = self._digests[lower, upper] = self.table_files.between(lower, upper)
        return known

    def _fits(self, part: KeptPart) -> bool:
        return part.files == self._files_between(part.lower, part.upper)

    def first(self, at: bytes, upper: bytes, columns: Sequence[str], *, told: bool) -> Found | None:
        """The first batch that begins at a key or behind it, and ends before another. `told`: with a digest
        of what is stored."""
        for kept in self._index.since(at):
            part, file = kept.part, kept.file
            if part.lower >= upper:
                return None
            if (
                part.upper <= upper
                and file.columns is not None
                and (part.stored or not told)
                and all(name in file.columns for name in columns)
                and self._fits(part)
                and self._index.is_whole(kept)
            ):
                return Found(part, file.columns, self._index.use(kept))
        return None

    def digest(self, lower: bytes, upper: bytes, *, counted: bool) -> tuple[bytes, int] | None:
        """Of what is stored there, with its rows if they are to be counted; None when it is not known."""
        for kept in self._index.since(lower):
            part = kept.part
            if part.lower != lower:
                break
            counts = not counted or (kept.file.columns is None and part.rows != UNCOUNTED)
            if part.upper == upper and part.stored and counts and self._fits(part):
                self._index.use(kept)
                return part.stored, part.rows if counted else 0
        return None


class Found(msgspec.Struct, frozen=True):
    """A part with its batch, of these columns."""

    part: KeptPart
    columns: tuple[str, ...]
    batch: memoryview


class _Index:
    """What all files of one definition of a table have."""

    def __init__(self, world: FilesWorld, directory: str) -> None:
        self._world = world
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._parts: list[_Kept] = []
        #: By path and offset, whether the bytes are those that were written.
        self._whole: dict[tuple[str, int], bool] = {}

    def refresh(self, names: Sequence[str]) -> None:
        """Have it know the files of these names, and no other."""
        gone = self._files.keys() - set(names)
        new = [name for name in names if name not in self._files]
        if not gone and not new:
            return
        for name in sorted(gone):
            del self._files[name]
        parts = [kept for kept in self._parts if kept.file.path in self._paths()]
        for name in new:
            path = f"{self._directory}/{name}"
            opened = _opened(self._world, path)
            if opened is None:
                continue
            content, found = opened
            file = self._files[name] = _File(path, found.columns, content)
            parts += [_Kept(part, file) for part in found.parts]
        self._parts = sorted(parts, key=_LOWER)
        self._whole = {at: whole for at, whole in self._whole.items() if at[0] in self._paths()}

    def _paths(self) -> set[str]:
        return {file.path for file in self._files.values()}

    def since(self, at: bytes) -> Iterator[_Kept]:
        parts = self._parts
        for number in range(bisect.bisect_left(parts, at, key=_LOWER), len(parts)):
            yield parts[number]

    def is_whole(self, kept: _Kept) -> bool:
        at = (kept.file.path, kept.part.offset)
        found = self._whole.get(at)
        if found is None:
            found = self._whole[at] = xxhash.xxh3_64_intdigest(self._batch(kept)) == kept.part.check
            if not found:
                self._world.say(f"{kept.file.path} is damaged: what it holds is decoded again")
        return found

    @staticmethod
    def _batch(kept: _Kept) -> memoryview:
        return kept.file.content[kept.part.offset : kept.part.offset + kept.part.size]

    def use(self, kept: _Kept) -> memoryview:
        """The batch; its file was used now."""
        if not kept.file.is_touched:
            kept.file.is_touched = True
            self._world.touch(kept.file.path)
        return self._batch(kept)

    def rest(self) -> None:
        """Whatever is used from here on is used again."""
        for file in self._files.values():
            file.is_touched = False


def _opened(world: FilesWorld, path: str) -> tuple[memoryview, _List] | None:
    """None for a file that is gone, or is none of these."""
    try:
        content = world.mapped(path)
        size, magic, check = _END.unpack(content[-_END.size :])
        end = len(content) - _END.size
        told = content[max(end - size, 0) : end]
        if magic != _MAGIC or xxhash.xxh3_64_intdigest(told) != check:
            raise ValueError("the end is not that of such a file")
        return content, _LIST.decode(told)
    except FileNotFoundError:
        return None
    except (*UNREADABLE, ValueError, struct.error) as error:
        world.say(f"{path} cannot be read and is not used: {error}")
        return None


class ColumnFiles:
    """All of them in a directory, in no more than `bytes_max`; 0: nothing is kept, nor where the disk has
    fewer than `free_bytes_min` left. `incarnation`: of the store, which gives the names of table files."""

    def __init__(
        self, world: FilesWorld, directory: str, incarnation: str, bytes_max: int, free_bytes_min: int
    ) -> None:
        self._world = world
        self._directory = directory
        self._incarnation = incarnation
        self._bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._indexes: dict[str, _Index] = {}

    def of_rows(self, table: ScanTable, decimal_scale: int, table_files: TableFiles) -> KeptColumns | None:
        """What is kept of rows for a content."""
        if table.table.static:
            # A row may show what is stored before its own key: its partition's static columns.
            return None
        return self._of(
            f"{table.table.id}-{xxhash.xxh3_64_hexdigest(encode((table, decimal_scale)))}", table_files
        )

    def of_digests(self, table: ScanTable, table_files: TableFiles) -> KeptColumns | None:
        """Of audits alone, which look at the bytes of table files."""
        return self._of(f"{table.table.id}-stored", table_files)

    def _of(self, form: str, table_files: TableFiles) -> KeptColumns | None:
        if not self._bytes_max:
            return None
        prefix = f"{self._incarnation}-{form}-"
        index = self._indexes.get(prefix)
        if index is None:
            while len(self._indexes) >= _INDEXES_MAX:
                self._indexes.pop(next(iter(self._indexes)))
            index = self._indexes[prefix] = _Index(self._world, self._directory)
        names = [name for name, _, _ in self._world.listed(self._directory)]
        index.refresh([name for name in names if name.startswith(prefix) and name.endswith(_SUFFIX)])
        return KeptColumns(index, table_files, _Making(self, self._world, f"{self._directory}/{prefix}"))

    def make_room(self) -> bool:
        """Whether there is room for all that is there, without what nobody has used for long."""
        listed = sorted(self._world.listed(self._directory), key=lambda one: -one[2])
        total, count = sum(one[1] for one in listed), len(listed)
        if self._world.free_bytes(self._directory) < self._free_bytes_min:
            return False
        for name, bytes_, unused_s in listed:
            if total <= self._bytes_max and count <= COLUMN_FILES_MAX:
                break
            if unused_s < COLUMN_FILES_UNUSED_S:
                return False
            self._world.remove(f"{self._directory}/{name}")
            total -= bytes_
            count -= 1
        return total <= self._bytes_max and count <= COLUMN_FILES_MAX

    def rest(self) -> None:
        for index in self._indexes.values():
            index.rest()


#: In place of a number of rows.
UNCOUNTED: Final = -1
#: Definitions of tables whose files one process knows.
_INDEXES_MAX: Final = 16


class _Making:
    """A file in the making: parts of one answer."""

    def __init__(self, files: ColumnFiles, world: FilesWorld, prefix: str) -> None:
        self._files = files
        self._world = world
        self._prefix = prefix
        self._path = ""
        self._file: Any = None
        self._parts: list[KeptPart] = []
        self._size = 0
        self._given_up = False

    def add(self, lower: bytes, upper: bytes, files: bytes, rows: int, stored: bytes, batch: Any) -> None:
        if self._given_up:
            return
        check, size = xxhash.xxh3_64_intdigest(batch), len(batch)
        try:
            if self._file is None:
                self._path = f"{self._prefix}{self._world.unique()}"
                self._file = self._world.create(f"{self._path}{_UNFINISHED}")
            if size:
                self._file.write(batch)
        except OSError as error:
            self._give_up(error)
            return
        self._parts.append(KeptPart(lower, upper, files, rows, stored, self._size, size, check))
        self._size += size

    def finish(self, columns: tuple[str, ...] | None) -> None:
        if self._file is None:
            return
        told = encode(_List(columns, tuple(self._parts)))
        try:
            self._file.write(told + _END.pack(len(told), _MAGIC, xxhash.xxh3_64_intdigest(told)))
            self._file.close()
            self._file = None
            unfinished = f"{self._path}{_UNFINISHED}"
            if self._files.make_room():
                self._world.rename(unfinished, f"{self._path}{_SUFFIX}")
            else:
                self._world.remove(unfinished)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """A full disk: nothing is lost but the file."""
        self._given_up = True
        self._world.say(f"columns that were read are not kept: {error}")
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                # What it cannot write any more is not wanted.
                file.close()
        if self._path:
            self._world.remove(f"{self._path}{_UNFINISHED}")
