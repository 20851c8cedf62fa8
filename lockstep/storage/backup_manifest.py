"""What a backup's part says of itself: a manifest beside its files, JSON that people can read.

    backups/<name>/<host id>/manifest.json    written last: without it the part is not complete
    backups/<name>/<host id>/metadata         a dump of the metadata
    backups/<name>/<host id>/<table>-<number> files of a table, in key order

Invariant: a manifest is believed only when its digest fits, and a part only when all files do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.schema.model import Column, ColumnKind, Keyspace, Table, UserType
from lockstep.storage.sorted_file import FileSummary
from lockstep.values.errors import CorruptFile, PreconditionError

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


class BackedColumn(msgspec.Struct, frozen=True):
    id: int
    name: str
    type: str
    kind: int
    position: int
    descending: bool


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
        tuple(_backed_column(column) for column in table.columns),
        {
            found.name: tuple(zip(found.field_names, found.field_types, strict=True))
            for found in keyspace.types
        },
        table.is_counter,
        not table.dropped,
        files,
    )


def _backed_column(column: Column) -> BackedColumn:
    return BackedColumn(
        column.id, column.name, column.type, int(column.kind), column.position, column.descending
    )


def columns_between(backed: BackedTable, keyspace: Keyspace, table: Table) -> dict[int, int]:
    """The id here of each column there. PreconditionError when what was backed up does not fit the table."""
    name = f"{table.keyspace}.{table.name}"
    found: dict[int, int] = {}
    keys_there = [_shape(column) for column in backed.columns if column.position >= 0]
    keys_here = [_shape(_backed_column(column)) for column in table.columns if column.position >= 0]
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
