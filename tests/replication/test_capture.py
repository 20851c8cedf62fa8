"""What a change adds to its log, who takes which part of both, and when a write of both is acknowledged."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.coordination import capturing
from lockstep.coordination.capture import Capture, change_time, element_time
from lockstep.coordination.capturing import Capturing, stream_of
from lockstep.metadata.cdc import GENERATIONS, Generation, packed
from lockstep.metadata.schema_part import SCHEMA as SCHEMA_PART
from lockstep.quorum.plans import PlanBook
from lockstep.replica.ballots import BallotService
from lockstep.replica.replica import ReplicaService
from lockstep.schema.changes import AlterOptions, NewColumn, apply_change
from lockstep.schema.log_tables import CaptureOptions
from lockstep.schema.model import Table
from lockstep.schema.type_changes import CreateType
from lockstep.schema.types import field_path
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rows.fragments import require_fitting
from lockstep.values.errors import ColumnsGone, InvalidRequest, StaleEpoch
from lockstep.values.ids import Consistency, NodeId, mutation_id
from lockstep.values.limits import MUTATION_BYTES_MAX
from lockstep.values.rows import (
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Mutation,
    Partition,
    RangeDeletion,
    ReadCommand,
    ReadResult,
    Row,
)
from lockstep.values.tokens import TOKEN_MAX, stream_token
from tests.schema.test_log_tables import COLUMNS, after, log, table
from tests.storage.support import open_store, runtime_of

from .clusters import TABLE_ID, make_cluster
from .support import run

SCHEMA = after(table())
BASE = SCHEMA.by_name["k"].by_name["t"]
LOG = log(SCHEMA)
PLAIN = CaptureOptions("false", False, False, 0)
AT_US = 1_000_000
ID = mutation_id(1, 1, 1)
STREAM = (40).to_bytes(8, "big", signed=True) + bytes(8)


def capture(**options: Any) -> Capture:
    return Capture(BASE, LOG, SCHEMA.by_name["k"], msgspec.structs.replace(PLAIN, **options))


def place(number: int) -> bytes:
    return b"\x02" + (number + (1 << 31)).to_bytes(4, "big")


def cell(name: str, value: bytes | None, at_us: int = AT_US, **other: Any) -> Cell:
    return Cell(BASE.by_name[name].id, value, at_us, **other)


def mutation(**parts: Any) -> Mutation:
    return Mutation(BASE.id, 7, bytes(4), ID, AT_US, **parts)


def told(log_rows: Mutation, of: Table = LOG) -> list[dict[str, bytes]]:
    names = {column.id: column.name for column in of.columns}
    return [
        {names[one.column]: one.value or b"" for one in row.cells if names[one.column] not in ("p", "c")}
        for row in log_rows.rows
    ]


def logged(change: Mutation, before: Partition | None = None, **options: Any) -> Mutation:
    found = capture(**options).with_log(change, STREAM, before, 100)
    assert found.captured is not None and msgspec.structs.replace(found, captured=None) == change
    return found.captured


def test_write_times_and_lifetimes_are_told_apart() -> None:
    row = Row(
        place(1),
        Liveness(AT_US, 5, 105),
        None,
        (cell("v", b"x", ttl_s=5, expires_at_s=105), cell("m", None, AT_US - 9, path=b"a")),
    )
    change = mutation(rows=(row,))
    found = logged(change)
    assert (found.table_id, found.key, found.token) == (LOG.id, STREAM, 40)
    first, second = told(found)
    assert first == {
        "cdc$deleted_elements_m": b"\0\0\0\1\0\0\0\1a",
        "cdc$operation": b"\1",
        "cdc$end_of_batch": b"\1",
    }
    assert second == {
        "v": b"x",
        "cdc$operation": b"\2",
        "cdc$ttl": (5).to_bytes(8, "big"),
        "cdc$end_of_batch": b"\1",
    }
    assert [row.liveness for row in found.rows] == [Liveness(AT_US - 9), Liveness(AT_US)]
    assert capture().times_us(change) == [AT_US - 9, AT_US]


def test_a_collection_written_anew_is_one_change() -> None:
    gone = (ColumnDeletion(BASE.by_name["m"].id, Deletion(AT_US - 1, 1)),)
    row = Row(place(1), None, None, (cell("m", b"\0\0\0\2", path=b"a"),), gone)
    (only,) = told(logged(mutation(rows=(row,))))
    assert set(only) == {"m", "cdc$deleted_m", "cdc$operation", "cdc$end_of_batch"}


def test_deletions_come_after_what_is_written_and_states_around_both() -> None:
    rows = (Row(place(1), None, None, (cell("v", b"y"),)), Row(place(2), None, Deletion(AT_US, 1)))
    gone = (RangeDeletion(place(5), place(7), Deletion(AT_US, 1)),)
    change = mutation(
        rows=rows, range_deletions=gone, static=Row(b"", None, None, (cell("s", b"", path=b"1"),))
    )
    before = Partition(
        7,
        bytes(4),
        rows=tuple(Row(place(n), Liveness(9), None, (cell("v", b"x", 9),)) for n in (1, 2)),
    )
    found = told(logged(change, before, preimage="true", postimage=True, keys_only=True))
    assert [int.from_bytes(one["cdc$operation"], "big") for one in found] == [0, 0, 1, 1, 3, 5, 7, 9, 9]
    assert [one.get("v") for one in found[:2]] == [b"x", b"x"] and all("v" not in one for one in found[2:7])
    assert "s" in found[8] or "s" in found[7]
    assert [("cdc$end_of_batch" in one) for one in found] == [False] * 8 + [True]


def test_a_value_and_a_collection_that_are_deleted_say_so() -> None:
    gone = (ColumnDeletion(BASE.by_name["m"].id, Deletion(AT_US - 7, 1)),)
    row = Row(place(1), None, None, (cell("v", None),), gone)
    first, second = told(logged(mutation(rows=(row,))))
    assert first.keys() == {"cdc$deleted_m", "cdc$operation", "cdc$end_of_batch"}
    assert second.keys() == {"cdc$deleted_v", "cdc$operation", "cdc$end_of_batch"}
    assert first["cdc$deleted_m"] == second["cdc$deleted_v"] == b"\1"
    assert capture().times_us(mutation(rows=(row,))) == [AT_US - 7, AT_US], "not what is written anew"
    alone = Row(place(1), None, None, (), (ColumnDeletion(BASE.by_name["m"].id, Deletion(AT_US - 1, 1)),))
    assert capture().times_us(mutation(rows=(alone,))) == [AT_US], "just before what is written anew"


def test_a_partition_that_is_deleted_comes_last() -> None:
    row = Row(place(1), None, None, (cell("v", b"x"),))
    change = mutation(rows=(row,), deletion=Deletion(AT_US, 1))
    assert [one["cdc$operation"] for one in told(logged(change))] == [b"\1", b"\4"]
    (only,) = told(logged(mutation(deletion=Deletion(AT_US - 3, 1))))
    assert only == {"cdc$operation": b"\4", "cdc$end_of_batch": b"\1"}


@pytest.mark.parametrize(
    ("preimage", "postimage", "is_there", "expected"),
    [
        ("true", False, True, [(0, b"x"), (1, b"y")]),
        ("full", False, True, [(0, b"x"), (1, b"y")]),
        ("true", False, False, [(1, b"y")]),
        ("false", True, True, [(1, b"y"), (9, b"y")]),
        ("false", True, False, [(1, b"y"), (9, b"y")]),
        ("true", True, True, [(0, b"x"), (1, b"y"), (9, b"y")]),
        ("false", False, True, [(1, b"y")]),
    ],
)
def test_only_the_states_that_are_asked_for_are_told(
    preimage: str, postimage: bool, is_there: bool, expected: list[tuple[int, bytes]]
) -> None:
    change = mutation(rows=(Row(place(1), None, None, (cell("v", b"y"),)),))
    rows = (
        Row(place(1), Liveness(9), None, (cell("v", b"x", 9), cell("l", b"\0\0\0\1", 9, path=bytes(16)))),
    )
    before = Partition(7, bytes(4), rows=rows) if is_there else None
    found = told(logged(change, before, preimage=preimage, postimage=postimage))
    assert [(one["cdc$operation"][0], one.get("v")) for one in found] == expected
    has_all = [one["cdc$operation"][0] for one in found if "l" in one]
    full = [0] if preimage == "full" else []
    assert has_all == [*full, *([9] if postimage and is_there else [])], "what else the row has"


def test_elements_of_lists_and_fields_of_types_are_told_by_ids_and_positions() -> None:
    point = CreateType("k", "point", (("x", "int"), ("y", "text")))
    schema = after(point, table(columns=(*COLUMNS, NewColumn("u", "point"))))
    space = schema.by_name["k"]
    base, made = space.by_name["t"], log(schema)
    paths = [((1 << 63) + at).to_bytes(8, "big") + b"abcde\0\0\1" for at in (5, 6)]

    def of(name: str, value: bytes | None, path: bytes) -> Cell:
        return Cell(base.by_name[name].id, value, AT_US, path=path)

    cells = (
        of("l", b"\0\0\0\7", paths[0]),
        of("l", None, paths[1]),
        of("u", b"\0\0\0\5", field_path(0)),
        of("u", None, field_path(1)),
    )
    change = Mutation(base.id, 7, bytes(4), ID, AT_US, rows=(Row(place(1), None, None, cells),))
    found = Capture(base, made, space, PLAIN).with_log(change, STREAM, None, 100)
    assert found.captured is not None
    (only,) = told(found.captured, made)

    def whole(*parts: bytes) -> bytes:
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    assert only["l"] == b"\0\0\0\1" + whole(element_time(paths[0]), b"\0\0\0\7")
    assert only["cdc$deleted_elements_l"] == b"\0\0\0\1" + whole(element_time(paths[1]))
    assert only["u"] == whole(b"\0\0\0\5")
    assert only["cdc$deleted_elements_u"] == b"\0\0\0\1" + whole(b"\0\1")
    assert only.keys() == {
        *("l", "cdc$deleted_elements_l", "u", "cdc$deleted_elements_u"),
        *("cdc$operation", "cdc$end_of_batch"),
    }


def test_a_change_has_one_time_however_often_it_is_made() -> None:
    one = mutation(rows=(Row(place(1), Liveness(AT_US)),))
    assert logged(one) == logged(one)
    other = msgspec.structs.replace(one, key=b"\0\0\0\1")
    assert change_time(one, AT_US) != change_time(other, AT_US)
    assert change_time(one, AT_US)[:8] == change_time(other, AT_US)[:8]
    ids = [((1 << 63) + 5).to_bytes(8, "big") + b"abcde" + n.to_bytes(3, "big") for n in (1, 127, 128, 40000)]
    times = [element_time(path) for path in ids]
    assert times == sorted(times) and len(set(times)) == 4
    assert all(time[6] >> 4 == 1 and time[8] >> 6 == 2 and max(time[12:]) < 128 for time in times)


def generation(at_ms: int, *ends: int) -> Generation:
    return Generation(at_ms, f"g{at_ms}", 0, 1, packed(array("q", ends)), 1)


def test_a_write_goes_to_the_stream_of_its_range_and_time() -> None:
    both = (generation(1000, -5, 5), generation(2000, -5, 0, 5))
    second_us = 1_000_000

    def stream(at_us: int, token: int, now_us: int) -> int:
        found = stream_of(both, [at_us], token, now_us)
        assert len(found) == 16
        return stream_token(found)

    assert [stream(second_us, token, second_us) for token in (-9, -5, -4, 5, 6)] == [-5, -5, 5, 5, -5]
    assert stream(2 * second_us, -4, 2 * second_us) == 0
    assert stream(2 * second_us - 1, -4, 2 * second_us) == 5, "it is of the older generation"
    with pytest.raises(InvalidRequest, match="both sides"):
        stream_of(both, [2 * second_us - 1, 2 * second_us], 0, 2 * second_us)
    with pytest.raises(InvalidRequest, match="superseded"):
        stream_of(both, [second_us], 0, 9 * second_us)
    with pytest.raises(InvalidRequest, match="ahead of"):
        stream_of(both, [9 * second_us], 0, second_us)


NEAR = Mutation(TABLE_ID, -5, b"k", ID, AT_US)
FAR = Mutation(TABLE_ID, 5, b"l", ID, AT_US)
CAPTURED = msgspec.structs.replace(NEAR, captured=FAR)


def test_a_write_of_two_places_asks_the_replicas_of_both_and_needs_both_levels() -> None:
    cluster = make_cluster(6, [(0, [1, 2, 3], [1, 2, 3], 5), (TOKEN_MAX, [1, 2, 4], [1, 2, 4], 6)])
    book = PlanBook(lambda: cluster, lambda: 1)
    plan = book.plan_of(CAPTURED, Consistency.QUORUM)
    assert [target.node for target in plan.targets] == [1, 2, 3, 4] and plan.needs_epoch == 6
    assert plan.satisfied_by([NodeId(1), NodeId(2)]) and plan.attainable
    assert not plan.satisfied_by([NodeId(1), NodeId(3)]), "the log has one"
    assert not plan.satisfied_by([NodeId(1), NodeId(4)]), "the table has one"
    assert plan.satisfied_by([NodeId(1), NodeId(3), NodeId(4)])
    assert book.plan_of(CAPTURED, Consistency.QUORUM) is plan
    alike = make_cluster(6, [(0, [1, 2, 3], [1, 2, 3], 5), (TOKEN_MAX, [3, 1, 2], [3, 1, 2], 5)])
    book = PlanBook(lambda: alike, lambda: 1)
    assert book.plan_of(CAPTURED, Consistency.QUORUM) is book.write_plan(TABLE_ID, -5, Consistency.QUORUM)
    gone = msgspec.structs.replace(NEAR, captured=msgspec.structs.replace(FAR, table_id=9))
    assert book.plan_of(gone, Consistency.ONE) is book.write_plan(TABLE_ID, -5, Consistency.ONE)
    book.validate()


@pytest.mark.parametrize(
    ("own", "part", "takes"),
    [(1, CAPTURED, True), (3, NEAR, True), (4, FAR, True), (9, NEAR, False)],
)
def test_a_replica_takes_what_is_its_own(own: int, part: Mutation, takes: bool) -> None:
    cluster = make_cluster(6, [(0, [1, 2, 3], [1, 2, 3], 5), (TOKEN_MAX, [1, 2, 4], [1, 2, 4], 6)])
    book = PlanBook(lambda: cluster, lambda: own)
    service: Any = SimpleNamespace(
        _plans=book, _probes=SimpleNamespace(reach=lambda _: None), _stale=lambda *_: StaleEpoch(6, "late")
    )
    book.placement(TABLE_ID)
    is_own = own in (1, 2, 3)
    assert ReplicaService._own_part(service, CAPTURED, FAR, 6, is_own) == (part, takes)
    with pytest.raises(StaleEpoch):
        ReplicaService._own_part(service, CAPTURED, FAR, 5, is_own)
    gone = msgspec.structs.replace(FAR, table_id=9)
    change = msgspec.structs.replace(NEAR, captured=gone)
    assert ReplicaService._own_part(service, change, gone, 6, is_own) == (NEAR, is_own), "the log is gone"
    ballots: Any = SimpleNamespace(_plans=book, _own_id=lambda: own)
    assert BallotService._own_part(ballots, CAPTURED).captured == (FAR if own in (1, 4) else None)


def test_a_table_without_a_log_is_left_as_it_is() -> None:
    cluster = make_cluster(5, [(TOKEN_MAX, [1], [1], 5)])

    async def test() -> None:
        capturing = Capturing(lambda: cluster, None, lambda: AT_US, 1.0)  # type: ignore[arg-type]
        given = (NEAR,)
        assert await capturing.attached(given) is given

    run(test)


class Captured:
    """A node with two captured tables in its schema; reads answer what `held` has."""

    def __init__(self, options: str = "true") -> None:
        on = ("cdc", (("enabled", "true"), ("preimage", options)))
        plain = table("plain", options=(), number=3)
        self.schema = after(table(options=(on,)), table("other", options=(on,), number=2), plain)
        by_name = self.schema.by_name["k"].by_name
        self.base, self.other, self.plain = (by_name[name] for name in ("t", "other", "plain"))
        self.held: list[Partition] = []
        self.changes = 0
        self.on_read: Callable[[], None] = lambda: None
        self.asked: list[tuple[ReadCommand, Consistency, float]] = []
        cluster = make_cluster(5, [(TOKEN_MAX, [1], [1], 5)])
        self.cluster: Any = cluster.changed(
            SCHEMA_PART.set(self.schema), GENERATIONS.set((generation(0, -5, 5),))
        )
        self.capturing = Capturing(lambda: self.cluster, self._read, lambda: AT_US, 7.0)

    async def _read(self, command: ReadCommand, consistency: Consistency, read_ms: float) -> ReadResult:
        self.asked.append((command, consistency, read_ms))
        self.on_read()
        return ReadResult(tuple(self.held))

    def attached(self, *changes: Mutation) -> list[Mutation | None]:
        return [one.captured for one in asyncio.run(self.capturing.attached(changes))]

    def change(self, of: Table, key: bytes = bytes(4)) -> Mutation:
        row = Row(place(1), None, None, (Cell(of.by_name["v"].id, b"y", AT_US),))
        return Mutation(of.id, 7, key, ID, AT_US, rows=(row,))

    def with_comment(self) -> None:
        """The table changes."""
        self.changes += 1
        change = AlterOptions("k", "t", (("comment", str(self.changes)),))
        self.schema, _ = apply_change(self.schema, change, 9 + self.changes, ("dc1",))
        self.cluster = self.cluster.changed(SCHEMA_PART.set(self.schema))


def test_what_a_captured_table_had_is_read_and_others_pass_as_they_are() -> None:
    node = Captured()
    state = Row(place(1), Liveness(9), None, (Cell(node.base.by_name["v"].id, b"x", 9),))
    node.held = [Partition(3, b"\0\0\0\\9", rows=(state,)), Partition(7, bytes(4), rows=(state,))]
    plain, captured, missing = (
        node.change(node.plain),
        node.change(node.base),
        node.change(node.other, b"none"),
    )
    first, second, third = node.attached(plain, captured, missing)
    assert first is None and second is not None and third is not None
    operations = [one["cdc$operation"] for one in told(second, log(node.schema))]
    assert operations == [b"\0", b"\1"], "what was there of this partition"
    assert len(third.rows) == 1, "nothing was there of that one"
    assert [(one[0].key, one[1], one[2]) for one in node.asked] == [
        (bytes(4), Consistency.LOCAL_QUORUM, 7.0),
        (b"none", Consistency.LOCAL_QUORUM, 7.0),
    ]


def test_nothing_is_read_where_no_state_before_is_asked_for() -> None:
    node = Captured("false")
    assert all(node.attached(node.change(node.base))) and not node.asked
    node.on_read = node.with_comment
    assert all(node.attached(node.change(node.base)))


def test_a_table_that_changes_while_its_state_is_read_is_planned_again() -> None:
    node = Captured()
    node.on_read = node.with_comment
    with pytest.raises(ColumnsGone) as caught:
        node.attached(node.change(node.base))
    assert not caught.value.begun
    node.on_read = lambda: None
    assert all(node.attached(node.change(node.base)))


def test_what_changes_nothing_adds_nothing() -> None:
    node = Captured()
    nothing = Mutation(node.base.id, 7, bytes(4), ID, AT_US)
    assert node.attached(nothing) == [None]


def test_only_so_many_tables_are_remembered_and_a_changed_one_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Captured()
    one, other = node.capturing.of(node.base.id), node.capturing.of(node.other.id)
    assert node.capturing.of(node.base.id) is one and node.capturing.of(node.other.id) is other
    node.with_comment()
    again = node.capturing.of(node.base.id)
    assert again is not one and again is not None and again.base is node.schema.by_name["k"].by_name["t"]
    assert node.capturing.of(node.plain.id) is None and node.capturing.of(99) is None
    monkeypatch.setattr(capturing, "CAPTURED_TABLES_CACHED_MAX", 1)
    kept = node.capturing.of(node.other.id)
    assert node.capturing.of(node.base.id) is again
    node.with_comment()
    assert node.capturing.of(node.base.id) is not again
    assert node.capturing.of(node.other.id) is not kept, "all were forgotten"


def test_a_change_and_its_log_are_one_batch_of_the_store(tmp_path: Path) -> None:
    async def test() -> None:
        runtime = runtime_of()
        store = await open_store("model", tmp_path, runtime)
        engine = StorageEngine(store, runtime, background_merge=False)
        batches: list[Any] = []
        write = store.write
        store.write = lambda batch: (batches.append(batch), write(batch))[1]  # type: ignore[method-assign]
        row = Row(b"a", Liveness(AT_US))
        log_of = msgspec.structs.replace(FAR, table_id=TABLE_ID + 1, rows=(row,))
        engine.apply(msgspec.structs.replace(NEAR, rows=(row,), captured=log_of))
        (batch,) = batches
        assert {int.from_bytes(key[1:5], "big") for _, key, *_ in batch if key[:1] == b"\x10"} == {
            TABLE_ID,
            TABLE_ID + 1,
        }

    run(test)


def test_a_change_is_refused_where_its_log_is_too_large() -> None:
    row = Row(b"a", None, None, (Cell(1, bytes(MUTATION_BYTES_MAX * 2 // 3), AT_US),))
    change = msgspec.structs.replace(NEAR, rows=(row,))
    require_fitting(change, MUTATION_BYTES_MAX * 2 // 3)
    both = msgspec.structs.replace(change, captured=msgspec.structs.replace(FAR, rows=(row,)))
    with pytest.raises(InvalidRequest, match="over the limit"):
        require_fitting(both, MUTATION_BYTES_MAX * 4 // 3)
