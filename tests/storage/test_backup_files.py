"""Files, manifests and mappings of backups: what is damaged is named, what is mapped stays what it was."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.schema.model import (
    Column,
    ColumnKind,
    DroppedColumn,
    Keyspace,
    Replication,
    Table,
    UserType,
)
from lockstep.storage import backup_manifest as manifests
from lockstep.storage.backup_manifest import (
    BackedFile,
    BackupWriter,
    CheckedFile,
    Manifest,
    RestoredFragments,
    Statement,
    TableMapping,
)
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_row, encode_header, encode_row
from lockstep.storage.store import FileSummary, Pair
from lockstep.values.errors import CorruptFile, PreconditionError
from lockstep.values.rows import Cell, ColumnDeletion, Deletion, Row
from lockstep.values.tokens import FULL_RING
from tests.storage.support import LossyDisk

SUFFIX = b"w" * 22


def key(table: int, token: int, row: bytes = b"r") -> bytes:
    return keys.row_prefix(keys.partition_prefix(table, token, b"k%d" % token), row) + SUFFIX


def written(disk: LossyDisk, path: str, pairs: list[Pair], block: int = 3) -> FileSummary:
    async def write() -> FileSummary:
        writer = BackupWriter(disk, path)
        for at in range(0, len(pairs), block):
            writer.add(pairs[at : at + block])
        digest = await writer.finish()
        return FileSummary(len(pairs), writer.size_bytes, pairs[0][0], pairs[-1][0], b"", digest)

    return asyncio.run(write())


@given(
    st.sets(st.integers(-50, 50), min_size=1),
    st.sets(st.integers(-50, 50), min_size=1),
    st.integers(-60, 60),
    st.integers(0, 60),
    st.integers(1, 9),
)
def test_parts_together_give_each_fragment_of_a_range_once(
    one: set[int], other: set[int], left: int, width: int, block: int
) -> None:
    """As an ordered map does."""
    disk = LossyDisk()
    parts = []
    for number, tokens in enumerate((one, other)):
        pairs = [(key(7, token), b"%d" % token) for token in sorted(tokens)]
        parts.append([CheckedFile(disk, f"f{number}", written(disk, f"f{number}", pairs, block))])
    lower, upper = key(7, left), key(7, left + width)
    found = RestoredFragments(parts, lower, upper, lambda pair: pair)
    taken = found.take(2) + found.take(1000)
    assert taken == [(key(7, t), b"%d" % t) for t in sorted(one | other) if left <= t < left + width]


@pytest.mark.parametrize("at", [0, 9, 40, -1])
def test_any_damage_is_found_and_the_file_named(at: int) -> None:
    disk = LossyDisk()
    summary = written(disk, "backups/b/h/7-00000", [(key(7, token), b"x" * 50) for token in range(9)])
    content = bytearray(disk.read("backups/b/h/7-00000"))
    content[at] ^= 1
    disk.remove("backups/b/h/7-00000")
    disk.append("backups/b/h/7-00000", bytes(content))
    with pytest.raises(CorruptFile, match="backups/b/h/7-00000"):
        CheckedFile(disk, "backups/b/h/7-00000", summary)


def test_a_torn_and_a_missing_file_are_named() -> None:
    disk = LossyDisk()
    summary = written(disk, "f", [(key(7, token), b"x") for token in range(9)])
    disk.truncate("f", summary.size_bytes - 1)
    with pytest.raises(CorruptFile, match=r"f.*bytes"):
        CheckedFile(disk, "f", summary)
    disk.remove("f")
    with pytest.raises(CorruptFile, match="missing"):
        CheckedFile(disk, "f", summary)


# -- mappings ---------------------------------------------------------------------------------------------


def test_columns_get_their_ids_here_and_cells_of_dropped_ones_go() -> None:
    mapping = TableMapping(7, 9, {2: 5, 3: 4}, exact=False)
    gone = ColumnDeletion(3, Deletion(1, 1))
    row = Row(b"", None, None, (Cell(2, b"a", 1), Cell(3, b"b", 1, path=b"p"), Cell(8, b"c", 1)), (gone,))
    store_key, value = mapping.changed((key(7, 1), encode_row(row))) or (b"", b"")
    assert store_key == key(9, 1)
    found = decode_row(store_key, value, b"")
    assert [(cell.column, cell.value) for cell in found.cells] == [(4, b"b"), (5, b"a")]
    assert [one.column for one in found.column_deletions] == [4]
    assert mapping.changed((key(7, 1), encode_row(Row(b"", None, None, (Cell(8, b"c", 1),))))) is None
    header = keys.partition_prefix(7, 1, b"k") + keys.KIND_HEADER + SUFFIX
    deletion = encode_header(Deletion(5, 5), ())
    assert mapping.changed((header, deletion)) == (header[:1] + key(9, 1)[1:5] + header[5:], deletion)


def test_cells_of_before_a_column_was_dropped_stay_dead() -> None:
    mapping = TableMapping(7, 7, {2: 2, 3: 3}, exact=False, dead={2: 5, 3: 5})
    gone = tuple(ColumnDeletion(column, Deletion(at, 1)) for column, at in ((2, 5), (3, 6)))
    cells = (Cell(2, b"old", 5), Cell(3, b"old", 4, path=b"p"), Cell(3, b"new", 6, path=b"q"))
    changed = mapping.changed((key(7, 1), encode_row(Row(b"", None, None, cells, gone))))
    assert changed is not None
    found = decode_row(*changed, b"")
    assert [(cell.column, cell.value) for cell in found.cells] == [(3, b"new")]
    assert [one.column for one in found.column_deletions] == [3]
    assert mapping.changed((key(7, 1), encode_row(Row(b"", None, None, (Cell(2, b"old", 5),))))) is None


def test_bounds_of_keys_go_back_to_the_backup() -> None:
    mapping = TableMapping(7, 9, {}, exact=True)
    assert [mapping.of_backup(one) for one in keys.token_bounds(9, FULL_RING)] == [
        *keys.token_bounds(7, FULL_RING)
    ]
    assert mapping.of_backup(key(9, 3)) == key(7, 3)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), unique=True), st.integers(1, 1 << 40))
def test_shards_of_counters_stay_apart_and_are_no_nodes_own(shards: list[tuple[int, int]], salt: int) -> None:
    path = struct.Struct(">IQ")
    mapping = TableMapping(7, 7, {2: 2}, exact=True, salt=salt | 1)
    cells = tuple(Cell(2, b"", 1, path=path.pack(*shard)) for shard in sorted(shards))
    changed = mapping.changed((key(7, 1), encode_row(Row(b"", None, None, (*cells, Cell(2, b"", 9))))))
    assert changed is not None
    paths = [cell.path for cell in decode_row(*changed, b"").cells]
    found = [path.unpack(one) for one in paths if one is not None]
    assert len(set(found)) == len(shards)
    assert all(generation >= 1 << 32 for _, generation in found)


# -- manifests --------------------------------------------------------------------------------------------

COLUMNS = (
    Column(1, "k", "int", ColumnKind.PARTITION_KEY, 0),
    Column(2, "c", "int", ColumnKind.CLUSTERING, 0),
    Column(3, "v", "place", ColumnKind.REGULAR),
)
TABLE = Table(7, "u", "ks", "t", COLUMNS)
PLACE = UserType("place", ("x",), ("int",))
KEYSPACE = Keyspace("ks", Replication("SimpleStrategy", (("", 3),)), types=(PLACE,))


def manifest() -> Manifest:
    file = BackedFile("7-00000", 1, 2, "aa", "bb", "cc")
    table = manifests.backed_table(KEYSPACE, TABLE, (file,))
    statement = Statement("ks", "table", "t", "CREATE TABLE ks.t (é int)")
    return Manifest(
        1, "b", "id", "c", "n", 4, 5, 1, "h", ("h",), (), (statement,), {"ks": ((1, 2),)}, (table,), file
    )


def test_a_manifest_is_read_back_and_any_change_of_it_is_found() -> None:
    content = manifests.sealed(manifest())
    again = manifests.unsealed("p", content)
    assert manifests.sealed(again) == content and again.tables[0].files[0].summary().first_key == b"\xaa"
    for changed in (content.replace(b'"t"', b'"u"'), content[:-3], b"", content.replace(b'"cc"', b'"cd"')):
        with pytest.raises(CorruptFile, match="p"):
            manifests.unsealed("p", changed)
    later = msgspec.structs.replace(manifest(), format=2)
    with pytest.raises(CorruptFile, match="not known to this version"):
        manifests.unsealed("p", manifests.sealed(later))


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-a", "a" * 65, "a b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(PreconditionError):
        manifests.check_name(name)


def changed_column(number: int, **change: object) -> Table:
    columns = list(COLUMNS)
    columns[number] = msgspec.structs.replace(columns[number], **change)
    return msgspec.structs.replace(TABLE, columns=tuple(columns))


def test_tables_that_do_not_fit_are_refused() -> None:
    backed = manifests.backed_table(KEYSPACE, TABLE, ())
    moved = tuple(msgspec.structs.replace(column, id=column.id + 10) for column in COLUMNS)
    more = msgspec.structs.replace(TABLE, columns=(*moved, Column(40, "w", "int", ColumnKind.REGULAR)))
    assert manifests.columns_between(backed, KEYSPACE, more) == {1: 11, 2: 12, 3: 13}
    grown = msgspec.structs.replace(KEYSPACE, types=(UserType("place", ("x", "y"), ("int", "int")),))
    assert manifests.columns_between(backed, grown, TABLE) == {1: 1, 2: 2, 3: 3}
    other = msgspec.structs.replace(KEYSPACE, types=(UserType("place", ("y",), ("int",)),))
    for keyspace, table in (
        (KEYSPACE, changed_column(1, descending=True)),
        (KEYSPACE, changed_column(0, type="text")),
        (KEYSPACE, changed_column(2, name="w")),
        (KEYSPACE, changed_column(2, type="text")),
        (KEYSPACE, changed_column(2, kind=ColumnKind.STATIC)),
        (other, TABLE),
    ):
        with pytest.raises(PreconditionError):
            manifests.columns_between(backed, keyspace, table)


def dropped(at_us: int) -> Table:
    """With `v` dropped at that time and added again."""
    gone = DroppedColumn(3, "v", "place", at_us)
    return msgspec.structs.replace(TABLE, dropped=(gone, DroppedColumn(9, "w", "int", 1)))


def test_a_column_that_was_dropped_since_is_refused_where_all_is_to_come_back() -> None:
    backed = manifests.backed_table(KEYSPACE, dropped(5), ())
    assert backed.dead == {3: 5} and not backed.exact
    for here in (TABLE, dropped(4), dropped(5)):
        manifests.refuse_hidden(backed, here)
    without = msgspec.structs.replace(dropped(6), columns=COLUMNS[:2])
    for one in (backed, manifests.backed_table(KEYSPACE, TABLE, ())):
        with pytest.raises(PreconditionError, match=r"column v of table ks\.t was dropped since"):
            manifests.refuse_hidden(one, dropped(6))
        manifests.refuse_hidden(one, without)


def test_manifests_without_dropped_columns_are_written_as_before() -> None:
    """Their digests are over what is written, so those of before stay right."""
    assert b"dead_until_us" not in manifests.sealed(manifest())
    tables = (manifests.backed_table(KEYSPACE, dropped(5), ()),)
    content = manifests.sealed(msgspec.structs.replace(manifest(), tables=tables))
    assert manifests.unsealed("p", content).tables[0].dead == {3: 5}


def part(host: str, *tables: tuple[str, int, str]) -> Manifest:
    """A part with one file of each (table, id, first key)."""
    whole = manifest()
    backed = tuple(
        msgspec.structs.replace(
            whole.tables[0],
            name=name,
            id=number,
            files=(BackedFile(f"{number}-{host}", 2, 10, first, f"{first}ff", "dd"),),
        )
        for name, number, first in tables
    )
    return msgspec.structs.replace(whole, host_id=host, tables=backed)


def test_tables_of_several_parts_are_one_each_with_the_files_of_all() -> None:
    parts = [part("h1", ("t", 7, "10"), ("a", 9, "20")), part("h2", ("t", 7, "30")), part("h3")]
    found = manifests.tables_of(parts)
    assert [(table.name, [file.name for file in table.files]) for table in found] == [
        ("a", ["9-h1"]),
        ("t", ["7-h1", "7-h2"]),
    ]
    assert manifests.tables_of([]) == ()


def test_what_stands_for_all_parts_has_the_size_of_all_and_makes_nothing() -> None:
    parts = [part("h1", ("t", 7, "10")), part("h2", ("t", 7, "30"))]
    assert [one.size_bytes for one in parts] == [12, 12]
    whole = manifests.stand_in(parts)
    assert (whole.host_id, whole.schema, whole.ranges) == ("h1", (), {})
    [table] = whole.tables
    assert table.files == (BackedFile("", 4, 20, "10", "30ff", ""),)
    assert whole.size_bytes == 22
    bare = msgspec.structs.replace(parts[0].tables[0], files=())
    assert msgspec.structs.replace(parts[0], tables=(bare,)).without_files().tables == (bare,)


def test_backups_have_salts_of_their_own_which_are_odd() -> None:
    salts = {msgspec.structs.replace(manifest(), backup_id=f"b{n}").salt for n in range(50)}
    assert len(salts) == 50 and all(salt % 2 and 0 < salt < 1 << 32 for salt in salts)


def test_what_a_table_is_backed_up_as() -> None:
    backed = manifests.backed_table(KEYSPACE, TABLE, ())
    assert (backed.keyspace, backed.name, backed.id, backed.uuid) == ("ks", "t", 7, "u")
    assert (backed.counts, backed.exact, backed.files) == (False, True, ())
    assert backed.types == {"place": (("x", "int"),)}
    assert [(one.id, one.name, one.kind, one.position) for one in backed.columns] == [
        (one.id, one.name, int(one.kind), one.position) for one in COLUMNS
    ]
    assert manifests.part_directory("b", "h") == "backups/b/h"


@pytest.mark.parametrize("name", ["b", "0", "A.b_c-9", "a" * 64])
def test_names_of_backups_that_may_be_are_those_of_their_directories(name: str) -> None:
    manifests.check_name(name)
    directory, part = Path(manifests.part_directory(name, "h")).parts[1:]
    assert (directory, part) == (name, "h"), "a name is one directory, and leads nowhere else"
