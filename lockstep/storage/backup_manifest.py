"""Backups as files: what a backup holds, by its manifest, the tables it is restored into, and the files
themselves.

    backups/<name>/<host id>/manifest.json    written last: without it the part is not complete
    backups/<name>/<host id>/metadata         a dump of the metadata
    backups/<name>/<host id>/<table>-<number> files of a table, in key order

A file is made of records (length, CRC, body); a body is the first key of a block and its compressed pairs.
Nothing of it depends on the store, so that every version of every store can take it in.

Invariant: a manifest is believed only when its digest fits, and a part only when all files do. The order of
keys stays. Different shards of a counter stay different, and none becomes one that a node of the restoring
cluster counts in. Nothing of a file is believed before its size and digest were found to be those that its
manifest tells. What is read of several parts together has each key once.
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
import itertools
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

import lz4.block
import msgspec

from lockstep.runtime.ports import Disk
from lockstep.schema.model import Column, ColumnKind, Keyspace, Table, UserType
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_row, encode_row
from lockstep.storage.store import FileSummary, Pair
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile, PreconditionError
from lockstep.values.limits import BACKUP_RECORD_BYTES_MAX
from lockstep.values.rows import MARKER_COLUMN, Cell, Row

DIRECTORY: Final = "backups"
MANIFEST: Final = "manifest.json"
METADATA: Final = "metadata"
FORMAT_VERSION: Final = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST_BYTES: Final = 16


class BackedFile(msgspec.Struct, frozen=True):
    """Keys and digest in hexadecimal."""

    name: str
    entries: int
    size_bytes: int
    first_key: str
    last_key: str
    digest: str

    def summary(self) -> FileSummary:
        first, last = bytes.fromhex(self.first_key), bytes.fromhex(self.last_key)
        return FileSummary(self.entries, self.size_bytes, first, last, b"", bytes.fromhex(self.digest))


class BackedColumn(msgspec.Struct, frozen=True, omit_defaults=True):
    """`dead_until_us`: of a column that was dropped and added again, when; its cells at or below are dead, in
    the files too. It is left out where it is 0, as in manifests of before, whose digests it would change."""

    id: int
    name: str
    type: str
    kind: int
    position: int
    descending: bool
    dead_until_us: int = 0


class BackedTable(msgspec.Struct, frozen=True):
    """`exact`: no fragment names a column that is not listed. `types`: those of the keyspace, with their
    fields."""

    keyspace: str
    name: str
    id: int
    uuid: str
    columns: tuple[BackedColumn, ...]
    types: Mapping[str, Sequence[tuple[str, str]]]
    counts: bool
    exact: bool
    files: tuple[BackedFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def dead(self) -> dict[int, int]:
        """Of columns that were dropped and added again, by id, the time up to which their cells are dead."""
        return {column.id: column.dead_until_us for column in self.columns if column.dead_until_us}


class Statement(msgspec.Struct, frozen=True, array_like=True):
    """CQL that makes something again; `kind` as DESCRIBE names it."""

    keyspace: str
    kind: str
    name: str
    cql: str


class Manifest(msgspec.Struct, frozen=True):
    """`nodes` are the host ids of all parts, `absent` of the nodes without one. `ranges` are the tokens of
    each keyspace that the part covers. `schema` makes what was backed up."""

    format: int
    name: str
    backup_id: str
    cluster_id: str
    cluster_name: str
    epoch: int
    began_us: int
    node: int
    host_id: str
    nodes: tuple[str, ...]
    absent: tuple[str, ...]
    schema: tuple[Statement, ...]
    ranges: Mapping[str, Sequence[tuple[int, int]]]
    tables: tuple[BackedTable, ...]
    metadata: BackedFile

    @property
    def size_bytes(self) -> int:
        return self.metadata.size_bytes + sum(table.size_bytes for table in self.tables)

    @property
    def salt(self) -> int:
        """Tells counters of different backups apart; see `backup_mapping`."""
        digest = hashlib.blake2b(self.backup_id.encode(), digest_size=4).digest()
        return int.from_bytes(digest) | 1

    def without_files(self) -> Manifest:
        """What others have to know of it."""
        tables = tuple(
            msgspec.structs.replace(table, files=(_sum_of(table.files),) if table.files else ())
            for table in self.tables
        )
        return msgspec.structs.replace(self, tables=tables)


def tables_of(parts: Iterable[Manifest]) -> tuple[BackedTable, ...]:
    """Each table once, by name, with its files in all parts."""
    found: dict[int, BackedTable] = {}
    for manifest in parts:
        for table in manifest.tables:
            known = found.get(table.id)
            files = (*known.files, *table.files) if known is not None else table.files
            found[table.id] = msgspec.structs.replace(table, files=files)
    return tuple(sorted(found.values(), key=lambda table: (table.keyspace, table.name)))


def stand_in(parts: Sequence[Manifest]) -> Manifest:
    """What a plan has to know of parts of one backup, in one manifest: that of the first, as if it had the
    files of all. It makes nothing, so it lacks the schema."""
    whole = msgspec.structs.replace(parts[0], schema=(), ranges={}, tables=tables_of(parts))
    return whole.without_files()


def _sum_of(files: Sequence[BackedFile]) -> BackedFile:
    entries, size = sum(file.entries for file in files), sum(file.size_bytes for file in files)
    return BackedFile("", entries, size, files[0].first_key, files[-1].last_key, "")


class _Sealed(msgspec.Struct, frozen=True):
    digest: str
    manifest: Manifest


def check_name(name: str) -> None:
    """PreconditionError unless the name may be that of a directory."""
    if not _NAME.fullmatch(name):
        raise PreconditionError(
            f"{name!r} is no name of a backup",
            hint="letters, digits, and then also _ . -; at most 64 of them",
        )


def part_directory(name: str, host_id: str) -> str:
    return f"{DIRECTORY}/{name}/{host_id}"


def sealed(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_Sealed(_digest(manifest), manifest)), indent=1)


def unsealed(path: str, content: bytes) -> Manifest:
    """CorruptFile when it is not whole, or of a version that this one cannot read."""
    try:
        found = msgspec.json.decode(content, type=_Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptFile(path, 0, f"not a manifest: {error}") from error
    if found.manifest.format != FORMAT_VERSION:
        raise CorruptFile(path, 0, f"format {found.manifest.format} is not known to this version")
    if found.digest != _digest(found.manifest):
        raise CorruptFile(path, 0, "the manifest's digest does not fit")
    return found.manifest


def _digest(manifest: Manifest) -> str:
    return hashlib.blake2b(msgspec.json.encode(manifest), digest_size=_DIGEST_BYTES).hexdigest()


# -- tables ---------------------------------------------------------------------------------------------


def backed_table(keyspace: Keyspace, table: Table, files: tuple[BackedFile, ...]) -> BackedTable:
    return BackedTable(
        keyspace.name,
        table.name,
        table.id,
        table.uuid,
        tuple(_backed_column(column, table) for column in table.columns),
        {
            found.name: tuple(zip(found.field_names, found.field_types, strict=True))
            for found in keyspace.types
        },
        table.is_counter,
        not table.dropped,
        files,
    )


def _backed_column(column: Column, table: Table) -> BackedColumn:
    dead_until_us = dict(table.dead).get(column.id, 0)
    return BackedColumn(
        column.id,
        column.name,
        column.type,
        int(column.kind),
        column.position,
        column.descending,
        dead_until_us,
    )


def columns_between(backed: BackedTable, keyspace: Keyspace, table: Table) -> dict[int, int]:
    """The id here of each column there. PreconditionError when what was backed up does not fit the table."""
    name = f"{table.keyspace}.{table.name}"
    found: dict[int, int] = {}
    keys_there = [_shape(column) for column in backed.columns if column.position >= 0]
    keys_here = [_shape(_backed_column(column, table)) for column in table.columns if column.position >= 0]
    if keys_there != keys_here or backed.counts != table.is_counter:
        raise PreconditionError(f"table {name} has another primary key than the one that was backed up")
    for column in backed.columns:
        here = table.by_name.get(column.name)
        if here is None:
            raise PreconditionError(
                f"table {name} has no column {column.name}, which was backed up",
                hint="add it, or drop the table and have it made from the backup",
            )
        is_static = (column.kind == ColumnKind.STATIC, here.kind is ColumnKind.STATIC)
        if column.type != here.type or is_static[0] != is_static[1]:
            raise PreconditionError(
                f"column {column.name} of table {name} is of type {here.type}; {column.type} was backed up"
            )
        found[column.id] = here.id
    _check_types(backed.types, keyspace.types, name)
    return found


def refuse_hidden(backed: BackedTable, table: Table) -> None:
    """PreconditionError when a column here was dropped later than the one that was backed up: what that held
    would count as older than the drop, and stay gone."""
    dead = dict(table.dead)
    for column in backed.columns:
        here = table.by_name.get(column.name)
        if here is not None and dead.get(here.id, 0) > column.dead_until_us:
            raise PreconditionError(
                f"column {column.name} of table {table.keyspace}.{table.name} was dropped since and added "
                "again, so what was backed up of it would stay gone",
                hint="drop the table and have it made from the backup",
            )


def _shape(column: BackedColumn) -> tuple[str, str, int, int, bool]:
    return column.name, column.type, column.kind, column.position, column.descending


def _check_types(
    there: Mapping[str, Sequence[tuple[str, str]]], here: Iterable[UserType], table: str
) -> None:
    """A type may have got more fields, at its end; those that nothing here has are used by no column."""
    for known in here:
        fields = tuple(zip(known.field_names, known.field_types, strict=True))
        backed = tuple((name, kind) for name, kind in there.get(known.name, ()))
        if fields[: len(backed)] != backed:
            raise PreconditionError(f"type {known.name}, which {table} may use, has other fields by now")


_ID = struct.Struct(">I")
_ID_AT = 1
_ID_END = _ID_AT + _ID.size
#: A shard's path is its node's id and the generation in which it counted. Generations grow by one when a node
#: starts to count anew, so their upper half is free for the backup that a shard came with.
_SHARD = struct.Struct(">IQ")
_SALT_BITS = 31
_NONE_DEAD: Final[Mapping[int, int]] = {}


class TableMapping:
    """`columns` has the new id of each column; cells of others are left out, and those at or below the time
    that `dead` has of a column. `salt` is drawn once for each backup; 0 for tables that do not count."""

    def __init__(
        self,
        table_from: int,
        table_to: int,
        columns: Mapping[int, int],
        *,
        exact: bool,
        salt: int = 0,
        dead: Mapping[int, int] = _NONE_DEAD,
    ) -> None:
        """`exact`: every column that any fragment names is in `columns`, and none is in `dead`."""
        self._from = _ID.pack(table_from)
        self._to = _ID.pack(table_to)
        self._columns = {**columns, MARKER_COLUMN: MARKER_COLUMN}
        self._keeps_values = exact and not salt and all(a == b for a, b in columns.items())
        self._salt = (salt & ((1 << _SALT_BITS) - 1)) << 32
        self._dead = dead

    def of_backup(self, key: bytes) -> bytes:
        """The place of a key of the restored table, or of a bound of keys, in the backup."""
        return key[:_ID_AT] + _ID.pack(_ID.unpack_from(key, _ID_AT)[0] - self._shift) + key[_ID_END:]

    @property
    def _shift(self) -> int:
        to, source = _ID.unpack(self._to)[0], _ID.unpack(self._from)[0]
        return int(to - source)

    def changed(self, pair: Pair) -> Pair | None:
        """None when nothing is left of it. CorruptFile when it is no fragment."""
        key, value = pair
        store_key = key[:_ID_AT] + self._to + key[_ID_END:]
        if self._keeps_values:
            return store_key, value
        prefix = keys.split_partition(key)[2]
        if key[len(prefix) : len(prefix) + 1] == keys.KIND_HEADER:
            return store_key, value
        row = self._row(decode_row(key, value, b""))
        return None if row == Row(b"") else (store_key, encode_row(row))

    def _row(self, row: Row) -> Row:
        columns = self._columns
        cells = [self._cell(cell) for cell in row.cells if self._lives(cell.column, cell.timestamp_us)]
        gone = [
            msgspec.structs.replace(one, column=columns[one.column])
            for one in row.column_deletions
            if self._lives(one.column, one.deletion.timestamp_us)
        ]
        cells.sort(key=lambda cell: (cell.column, cell.path or b""))
        gone.sort(key=lambda one: one.column)
        return Row(row.clustering, row.liveness, row.deletion, tuple(cells), tuple(gone))

    def _lives(self, column: int, timestamp_us: int) -> bool:
        if column not in self._columns:
            return False
        until_us = self._dead.get(column)
        return until_us is None or timestamp_us > until_us

    def _cell(self, cell: Cell) -> Cell:
        path = cell.path
        if self._salt and path is not None:
            node, generation = _SHARD.unpack(path)
            path = _SHARD.pack(node, generation ^ self._salt)
        return msgspec.structs.replace(cell, column=self._columns[cell.column], path=path)


DIGEST_BYTES: Final = 16


class Block(msgspec.Struct, frozen=True, array_like=True):
    first_key: bytes
    packed: bytes


_BLOCK = decoder(Block)
_PAIRS = decoder(list[tuple[bytes, bytes]])


def content_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


class BackupWriter:
    """A file in the making; see `sorted_file.PairSink`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.size_bytes = 0

    def add(self, pairs: Sequence[Pair]) -> None:
        """DiskRefused."""
        record = frame_record(encode(Block(pairs[0][0], lz4.block.compress(encode(pairs)))))
        self._disk.append(self._path, record)
        self._digest.update(record)
        self.size_bytes += len(record)

    async def finish(self) -> bytes:
        """Make the content durable; its digest."""
        await self._disk.sync(self._path)
        return self._digest.digest()


class CheckedFile:
    """A file that was found whole, and where its blocks begin."""

    def __init__(self, disk: Disk, path: str, summary: FileSummary) -> None:
        """Reads all of it, for a thread. CorruptFile names the file."""
        self._disk = disk
        self._path = path
        self.summary = summary
        self._first_keys: list[bytes] = []
        self._offsets: list[int] = []
        try:
            content = disk.read(path)
        except FileNotFoundError as error:
            raise CorruptFile(path, 0, "the file is missing") from error
        if len(content) != summary.size_bytes:
            raise CorruptFile(path, len(content), f"it has {len(content)} bytes, not {summary.size_bytes}")
        if content_digest(content) != summary.digest:
            raise CorruptFile(path, 0, "its content is not what the manifest tells")
        at = 0
        for end, body in scan_records(path, content, record_bytes_max=BACKUP_RECORD_BYTES_MAX):
            self._first_keys.append(_block(path, at, body).first_key)
            self._offsets.append(at)
            at = end
        self._offsets.append(at)
        if at != len(content):
            raise CorruptFile(path, at, "a block cannot be read")

    def pairs(self, lower: bytes, upper: bytes) -> Iterator[Pair]:
        """Those with lower <= key < upper, a block in memory at a time."""
        number = max(0, bisect.bisect_right(self._first_keys, lower) - 1)
        while number < len(self._first_keys) and self._first_keys[number] < upper:
            for pair in self._read(number):
                if lower <= pair[0] < upper:
                    yield pair
            number += 1

    def _read(self, number: int) -> list[Pair]:
        offset, size = self._offsets[number], self._offsets[number + 1] - self._offsets[number]
        try:
            record = self._disk.read_at(self._path, offset, size)
        except FileNotFoundError as error:
            raise CorruptFile(self._path, offset, "the file is missing") from error
        found = next(scan_records(self._path, record, record_bytes_max=BACKUP_RECORD_BYTES_MAX), None)
        if found is None:
            raise CorruptFile(self._path, offset, "a block changed since it was checked")
        try:
            return _PAIRS.decode(lz4.block.decompress(_block(self._path, offset, found[1]).packed))
        except (lz4.block.LZ4BlockError, *UNREADABLE) as error:
            raise CorruptFile(self._path, offset, f"a block cannot be read: {error}") from error


def _block(path: str, offset: int, body: bytes) -> Block:
    try:
        return _BLOCK.decode(body)
    except UNREADABLE as error:
        raise CorruptFile(path, offset, f"not a block of a backup: {error}") from error


def pairs_of_part(files: Sequence[CheckedFile], lower: bytes, upper: bytes) -> Iterator[Pair]:
    """Of one node's files of a table, which follow each other in key order."""
    for file in files:
        if file.summary.first_key < upper and lower <= file.summary.last_key:
            yield from file.pairs(lower, upper)


class RestoredFragments:
    """Fragments of a range out of several parts, as a table of this cluster has them; see
    `stream_source.Fragments`."""

    def __init__(
        self,
        parts: Sequence[Sequence[CheckedFile]],
        lower: bytes,
        upper: bytes,
        change: Callable[[Pair], Pair | None],
    ) -> None:
        """`lower` and `upper` are keys of the backup. `change` keeps the order of keys."""
        merged = heapq.merge(*(pairs_of_part(files, lower, upper) for files in parts), key=itemgetter(0))
        once = (next(same) for _, same in itertools.groupby(merged, key=itemgetter(0)))
        self._pairs: Iterator[Pair] = (found for pair in once if (found := change(pair)) is not None)

    def take(self, count: int) -> list[Pair]:
        """The next ones, fewer than `count` only at the end. CorruptFile."""
        return list(itertools.islice(self._pairs, count))

    def close(self) -> None:
        self._pairs = iter(())
