"""Columns that readers kept, against decoding all anew: contents of real stores, read again and again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("rocksdict")

import pyarrow as pa
import rocksdict

from lockstep.runtime.real.door_process import DoorWorld
from lockstep.scans import column_files, rows_reading
from lockstep.scans.column_files import ColumnFiles, TableFiles
from lockstep.scans.content_reading import DIGESTS_SCHEMA, Contents
from lockstep.scans.messages import (
    BatchHead,
    Bounds,
    DigestsWanted,
    Refusal,
    RowsWanted,
    SessionFacts,
    Trailer,
)
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.session_files import FACTS_SUFFIX, LEASE, LEASE_SUFFIX
from lockstep.scans.table_reader import TableReader
from lockstep.spark.snapshot_reading import left_of
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import encode_header
from lockstep.storage.store import Pair
from lockstep.values import node_limits
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.rows import Deletion
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

from .support import MICROS, NOW_S, TABLE_ID, Writer, small_parts, table_of

NAMES = ("p0", "c0", "r0", "r1")
ROOM = 1 << 30
POOLS = {
    "p0": [number.to_bytes(4, "big") for number in range(40)],
    "c0": [b"", b"a", b"b\x00c", *(b"%03d" % number for number in range(40))],
    "r0": [bytes(4), b"\xff\xff\xff\xff", b"\0\0\0\7"],
    "r1": [b"", b"text", b"x" * 300],
}
WHOLE = ((keys.token_bounds(TABLE_ID, Range(TOKEN_MIN, TOKEN_MAX))),)
SCALE = 2


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of few rows, all of them worth while."""
    small_parts(monkeypatch)
    monkeypatch.setattr(rows_reading, "_KEPT_LEAST", 2)
    monkeypatch.setattr(rows_reading, "_CUT_LEAST", 5)


class Node:
    """A store, sessions of it, and processes that answer their readers."""

    free_bytes_min = 0

    def __init__(self, home: Path, table: ScanTable, room: int = ROOM) -> None:
        self.home, self.table, self._room = home, table, room
        self.sessions, self.columns = home / "sessions", home / "columns"
        self.sessions.mkdir(parents=True)
        self._store = rocksdict.Rdict(str(home / "store"), rocksdict.Options(raw_mode=True))
        self._count = 0
        self.said: list[str] = []
        self.contents = self.process()

    def process(self) -> Contents:
        world = DoorWorld()
        world.say = self.said.append  # type: ignore[method-assign]
        files = ColumnFiles(world, str(self.columns), "i", self._room, self.free_bytes_min)
        return Contents(world, str(self.sessions), files)

    def put(self, pairs: Sequence[Pair]) -> None:
        for key, value in pairs:
            self._store[key] = value
        self._store.flush()

    def merge(self) -> None:
        self._store.compact_range(None, None)

    def session(self) -> str:
        self._count += 1
        name = f"s{self._count}"
        rocksdict.Checkpoint(self._store).create_checkpoint(str(self.sessions / name))
        facts = SessionFacts(b"", 600_000, self.table, ((TOKEN_MIN, TOKEN_MAX),))
        (self.sessions / f"{name}{FACTS_SUFFIX}").write_bytes(encode(facts))
        (self.sessions / f"{name}{LEASE_SUFFIX}").write_bytes(LEASE.pack(time.monotonic() + 600))
        return name

    def rows(
        self,
        session: str,
        bounds: Bounds = WHOLE,
        columns: tuple[str, ...] = NAMES,
        contents: Contents | None = None,
        **more: Any,
    ) -> list[dict[str, Any]]:
        """Answer after answer, as a task asks."""
        self.kept, self.parts = 0, []
        schema = TableReader(self.table, columns, NOW_S, SCALE).schema
        found: list[dict[str, Any]] = []
        begun_in, bytes_max = b"", more.pop("bytes_max", 1 << 20)
        while bounds:
            wanted = RowsWanted(
                session, b"", bounds, bytes_max, columns, NOW_S, SCALE, begun_in=begun_in, **more
            )
            for head, body in (contents or self.contents).answer(wanted):
                assert not isinstance(head, Refusal), head
                if isinstance(head, Trailer):
                    self.kept += head.kept_rows
                    bounds = () if head.ended else bounds
                    continue
                assert isinstance(head, BatchHead)
                bounds, begun_in = left_of(bounds, head.next_key), head.begun_in
                self.parts.append((head.next_key, head.stored))
                if head.size:
                    found += pa.ipc.read_record_batch(pa.py_buffer(bytes(body)), schema).to_pylist()
        return found

    def digests(self, session: str, cuts: tuple[bytes, ...], contents: Contents | None = None) -> list[bytes]:
        wanted = RowsWanted(session, b"", WHOLE, 1 << 20, cuts=cuts)
        found = []
        for head, body in (contents or self.contents).answer(wanted):
            assert not isinstance(head, Refusal), head
            if isinstance(head, BatchHead) and head.size:
                found += (
                    pa.ipc.read_record_batch(pa.py_buffer(bytes(body)), DIGESTS_SCHEMA).column(0).to_pylist()
                )
        return found

    def audited(self, session: str, contents: Contents | None = None) -> list[tuple[bytes, int]]:
        """Digests and rows of buckets; rows are counted of the first range alone."""
        half = (TOKEN_MIN + TOKEN_MAX) // 2
        asked = DigestsWanted(((TOKEN_MIN, half, 7), (half, TOKEN_MAX, 5)), NOW_S, stored=True, counted=1)
        found = []
        for head, body in (contents or self.contents).answer(
            RowsWanted(session, b"", (), 1 << 20, digests=asked)
        ):
            if isinstance(head, Refusal):
                raise LockstepError(head.message)
            if isinstance(head, BatchHead) and head.size:
                batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(body)), DIGESTS_SCHEMA)
                found += list(zip(*batch.to_pydict().values(), strict=True))
        return found

    def close(self) -> None:
        self._store.close()
        shutil.rmtree(self.home)


def _table(*regular: str) -> ScanTable:
    return table_of(["int"], [("text", False)], [], regular or ["int", "text"])


def _filled(tmp_path: Path, room: int = ROOM) -> tuple[Node, Writer]:
    """With plain rows."""
    node = Node(tmp_path / "node", _table(), room)
    writer = Writer(node.table, Random(3), POOLS, gaps=False)
    writer.fill(40, 60, 0.0)
    node.put(writer.pairs)
    return node, writer


def _expected(
    table: ScanTable, pairs: Sequence[Pair], columns: Sequence[str] = NAMES
) -> list[dict[str, Any]]:
    reader = TableReader(table, columns, NOW_S, SCALE, together=False)
    return [row for batch in (*reader.feed(pairs), *reader.finish()) for row in batch.to_pylist()]


def _within(pairs: Sequence[Pair], bounds: Bounds) -> list[Pair]:
    return [pair for pair in pairs if any(lower <= pair[0] < upper for lower, upper in bounds)]


def _splits(dice: Random, count: int) -> list[Bounds]:
    """The ring in so many ranges, each of some adjacent ones."""
    cuts = sorted({dice.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(2 * count)})
    ranges = [
        keys.token_bounds(TABLE_ID, Range(*at))
        for at in zip([TOKEN_MIN, *cuts], [*cuts, TOKEN_MAX], strict=True)
    ]
    size = -(-len(ranges) // count)
    return [tuple(ranges[at : at + size]) for at in range(0, len(ranges), size)]


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_that_are_decoded_anew(tmp_path: Path, seed: int) -> None:
    dice, table = Random(seed), _table()
    node = Node(tmp_path / "node", table)
    writer = Writer(table, dice, POOLS, gaps=dice.random() < 0.5)
    seen: set[Pair] = set()
    kept = 0
    other = node.process()
    sessions: list[tuple[str, list[Pair]]] = []
    for _ in range(4):
        writer.fill(dice.choice([3, 30]), dice.choice([1, 5, 60]), dice.choice([0.0, 0.02, 0.2]))
        node.put([pair for pair in writer.pairs if pair not in seen])
        seen = set(writer.pairs)
        if dice.random() < 0.4:
            node.merge()
        # Readers of sessions that were opened before go on.
        sessions = [*sessions[-1:], (node.session(), writer.pairs)]
        for session, pairs in sessions * 2:
            for bounds in dice.choice([[WHOLE], _splits(dice, 3)]):
                columns = dice.choice([NAMES, NAMES, ("r1", "p0"), ("r0",)])
                asked = {"told": dice.random() < 0.3, "bytes_max": dice.choice([500, 3000, 1 << 20])}
                contents = dice.choice([node.contents, other])
                found = node.rows(session, bounds, columns, contents, **asked)
                assert found == _expected(table, _within(pairs, bounds), columns)
                kept += node.kept
    assert kept > 10
    assert not node.said
    node.close()


def test_a_part_is_used_for_other_ranges_and_columns(tmp_path: Path) -> None:
    node, writer = _filled(tmp_path)
    rows = node.rows(node.session())
    assert node.kept == 0
    again = node.session()
    assert node.rows(again) == rows
    assert node.kept > 0.9 * len(rows)
    assert node.rows(again, columns=("r1",)) == [{"r1": row["r1"]} for row in rows]
    assert node.kept > 0.9 * len(rows)
    kept = 0
    for bounds in _splits(Random(1), 4):
        assert node.rows(again, bounds) == _expected(node.table, _within(writer.pairs, bounds))
        kept += node.kept
    assert kept > 0.5 * len(rows)
    node.close()


def test_a_write_costs_what_is_around_it(tmp_path: Path) -> None:
    """Only where a new table file has something is anything decoded again."""
    table = _table()
    node = Node(tmp_path / "node", table)
    writer = Writer(table, Random(3), POOLS, gaps=False)
    writer.fill(40, 60, 0.0)
    before = writer.pairs
    node.put(before)
    rows = node.rows(node.session())
    key, value = before[len(before) // 2]
    newer = key[: -keys.WRITE_BYTES] + keys.write_suffix(2_000_000_000_000_000, bytes(14))
    node.put([(newer, value)])
    again = node.session()
    assert node.rows(again) == _expected(table, sorted([*before, (newer, value)]))
    assert 0.8 * len(rows) < node.kept < len(rows)
    # All lies in other table files then.
    node.merge()
    assert node.rows(node.session()) == node.rows(again)
    node.rows(again)
    assert node.kept > 0.8 * len(rows)
    node.close()


def test_a_deletion_bears_on_parts_of_its_partition_behind_it(tmp_path: Path) -> None:
    """It lies in a table file of its own, before the part."""
    table = _table()
    node = Node(tmp_path / "node", table)
    writer = Writer(table, Random(3), POOLS, gaps=False)
    writer.fill(1, 200, 0.0)
    node.put(writer.pairs)
    rows = node.rows(node.session())
    assert len(node.parts) > 3
    _, _, prefix = keys.split_partition(writer.pairs[0][0])
    head = prefix + keys.KIND_HEADER + writer.pairs[-1][0][-keys.WRITE_BYTES :]
    node.put([(head, encode_header(Deletion(MICROS + 3, NOW_S - 1), ()))])
    left = node.rows(node.session())
    assert node.kept == 0 and 0 < len(left) < len(rows)
    node.close()


def test_rows_that_end_are_not_kept(tmp_path: Path) -> None:
    """One of them is enough for the part that has it."""
    table = _table()
    node = Node(tmp_path / "node", table)
    writer = Writer(table, Random(5), POOLS)
    writer.fill(40, 60, 0.5)
    node.put(writer.pairs)
    node.rows(node.session())
    listed = list(node.columns.iterdir()) if node.columns.exists() else []
    assert all(path.suffix == ".columns" for path in listed)
    later = _later(node, NOW_S + 6_000)
    reader = TableReader(table, NAMES, NOW_S + 6_000, SCALE, together=False)
    wanted = [row for batch in (*reader.feed(writer.pairs), *reader.finish()) for row in batch.to_pylist()]
    assert later == wanted != _expected(table, writer.pairs)
    node.close()


def _later(node: Node, now_s: int) -> list[dict[str, Any]]:
    wanted = RowsWanted(node.session(), b"", WHOLE, 1 << 30, NAMES, now_s, SCALE)
    schema = TableReader(node.table, NAMES, now_s, SCALE).schema
    found: list[dict[str, Any]] = []
    for head, body in node.contents.answer(wanted):
        if isinstance(head, BatchHead) and head.size:
            found += pa.ipc.read_record_batch(pa.py_buffer(bytes(body)), schema).to_pylist()
    return found


def test_digests_between_the_same_keys_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table()
    node = Node(tmp_path / "node", table)
    writer = Writer(table, Random(3), POOLS, gaps=False)
    writer.fill(40, 60, 0.1)
    node.put(writer.pairs)
    first = node.session()
    node.rows(first, told=True)
    parts = node.parts
    cuts = tuple(key for key, _ in parts[:-1])
    told = [digest for _, digest in parts]
    assert node.digests(first, cuts) == told
    other = node.process()
    again = node.session()
    with monkeypatch.context() as nothing_is_read:
        nothing_is_read.setattr(rows_reading, "parted", None)
        assert node.digests(again, cuts, other) == told
    node.put([(writer.pairs[7][0][:-1] + b"\xff", writer.pairs[7][1])])
    changed = node.digests(node.session(), cuts, other)
    assert sum(one != other for one, other in zip(told, changed, strict=True)) == 1
    node.close()


def test_an_audit_looks_at_bytes_and_knows_their_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _table()
    node, bare = Node(tmp_path / "node", table), Node(tmp_path / "bare", table, room=0)
    writer = Writer(table, Random(3), POOLS)
    writer.fill(40, 60, 0.1)
    for one in (node, bare):
        one.put(writer.pairs)
    wanted = bare.audited(bare.session())
    assert node.audited(node.session()) == wanted
    assert sum(rows for _, rows in wanted) > 100 and not any(rows for _, rows in wanted[7:])
    session, other = node.session(), node.process()
    with monkeypatch.context() as nothing_is_read:
        nothing_is_read.setattr(rows_reading, "parted", None)
        assert node.audited(session, other) == wanted
    # Rows are decoded, and digests for readers kept, apart from that.
    node.rows(session, told=True)
    assert node.audited(session, other) == wanted
    damaged = node.session()
    for file in sorted((node.sessions / damaged).glob("*.sst")):
        data = bytearray(file.read_bytes())
        data[200] ^= 1
        file.unlink()
        file.write_bytes(data)
    with pytest.raises(LockstepError, match=r"\.sst"):
        node.audited(damaged, node.process())
    node.close()
    bare.close()


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    node, _ = _filled(tmp_path)
    rows = node.rows(node.session())
    for path in node.columns.iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
    session = node.session()
    assert node.rows(session, contents=node.process()) == rows
    assert any("is damaged" in said for said in node.said)
    for path in node.columns.iterdir():
        path.write_bytes(path.read_bytes()[:-5])
    assert node.rows(session, contents=node.process()) == rows
    assert any("is not used" in said for said in node.said)
    for path in node.columns.iterdir():
        path.unlink()
    assert node.rows(session) == rows
    node.close()


def test_there_is_room_for_what_is_used(tmp_path: Path) -> None:
    """What nobody has used for long goes; else what comes later is not kept."""
    node, _ = _filled(tmp_path, room=64 * 1024)
    rows = node.rows(node.session(), bytes_max=10_000)
    sizes = {path: path.stat().st_size for path in node.columns.iterdir()}
    assert 32 * 1024 < sum(sizes.values()) <= 64 * 1024
    assert node.rows(node.session()) == rows
    assert 0 < node.kept < len(rows)
    long_ago = time.time() - node_limits.COLUMN_FILES_UNUSED_S - 1
    for path in sizes:
        os.utime(path, (long_ago, long_ago))
    node.merge()
    assert node.rows(node.session(), bytes_max=10_000) == rows
    left = {path: path.stat().st_size for path in node.columns.iterdir()}
    assert left.keys().isdisjoint(sizes) and sum(left.values()) <= 64 * 1024
    node.close()


def _full(_world: DoorWorld, _path: str) -> Any:
    return open("/dev/full", "wb")


def _refused(_world: DoorWorld, _path: str, _to: str) -> None:
    raise OSError("there is no room for a name")


def test_nothing_is_kept_where_the_disk_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "free_bytes_min", 1 << 60)
    node, writer = _filled(tmp_path)
    assert node.rows(node.session()) == _expected(node.table, writer.pairs)
    assert not list(node.columns.iterdir())
    monkeypatch.setattr(DoorWorld, "create", _full)
    assert node.rows(node.session()) == _expected(node.table, writer.pairs)
    assert any("not kept" in said for said in node.said)
    node.close()


def test_a_file_that_is_given_no_name_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DoorWorld, "rename", _refused)
    node, writer = _filled(tmp_path)
    assert node.rows(node.session()) == _expected(node.table, writer.pairs)
    assert any("not kept" in said for said in node.said) and not list(node.columns.iterdir())
    node.close()


def test_nothing_is_kept_without_room_or_with_static_columns(tmp_path: Path) -> None:
    for table, room in (
        (_table(), 0),
        (table_of(["int"], [("text", False)], ["int"], ["int", "text"]), ROOM),
    ):
        node = Node(tmp_path / "node", table, room=room)
        writer = Writer(table, Random(3), {**POOLS, "s0": [bytes(4)]}, gaps=False)
        writer.fill(40, 60, 0.0)
        node.put(writer.pairs)
        for _ in range(2):
            assert node.rows(node.session()) == _expected(table, writer.pairs)
            assert node.kept == 0 and not node.columns.exists()
        node.close()


def test_another_definition_of_the_table_uses_none(tmp_path: Path) -> None:
    node, writer = _filled(tmp_path)
    node.rows(node.session())
    node.table = table_of(["int"], [("text", False)], [], ["int", "text"], again=True)
    assert node.rows(node.session()) == _expected(node.table, writer.pairs)
    assert node.kept == 0
    node.close()


@pytest.mark.parametrize(
    "plant",
    [
        (TableFiles, "between", lambda *_: b""),
        (TableReader, "take_lasts", lambda _self: True),
        (column_files, "partition_of", lambda _key: b""),
        (rows_reading._Keeper, "next", None),
    ],
    ids=["other files", "rows that end", "deletions of partitions", "where parts begin"],
)
def test_the_test_of_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    """Each of the rules left out gives wrong rows."""
    owner, name, wrong = plant
    if wrong is None:

        def wrong(keeper: Any, next_key: bytes, *, is_between: bool, lasts: bool) -> bytes:
            lower, keeper._lower = keeper._lower, next_key
            return lower if lasts else b""

    monkeypatch.setattr(owner, name, wrong)
    for seed in range(12):
        try:
            test_a_deletion_bears_on_parts_of_its_partition_behind_it(tmp_path / f"{seed} first")
            test_rows_that_end_are_not_kept(tmp_path / f"{seed} then")
            test_rows_are_those_that_are_decoded_anew(tmp_path / f"{seed} at last", seed)
        except AssertionError:
            return
    raise AssertionError("nothing failed")


def test_who_leaves_early_leaves_nothing_unfinished(tmp_path: Path) -> None:
    """What was decoded, or digested, until then is kept."""
    node, _ = _filled(tmp_path)
    rows = RowsWanted(node.session(), b"", WHOLE, 1 << 20, NAMES, NOW_S, SCALE)
    asked = DigestsWanted(((TOKEN_MIN, 0, 7), (0, TOKEN_MAX, 5)), NOW_S, stored=True, counted=1)
    for wanted in (rows, RowsWanted(node.session(), b"", (), 1 << 20, digests=asked)):
        answer = node.contents.answer(wanted)
        for _ in range(3):
            next(answer)
        del answer
    listed = sorted(path.suffix for path in node.columns.iterdir())
    assert listed and set(listed) == {".columns"}
    node.close()
