"""Filters that choose what replicas read: the same rows as without, and no more read than they name."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from lockstep.local.clusters import LocalCluster
from lockstep.schema.clustering import derived_key
from lockstep.spark import scan_arrow
from lockstep.spark.options import parse_options
from lockstep.spark.pushdown import selection_of
from lockstep.spark.ring import SnapshotPartition, TableColumn, TableShape
from lockstep.spark.selecting import Condition, KeyColumn, select
from lockstep.spark.snapshot_reading import SnapshotScan, _Place, requests
from lockstep.spark.snapshots import SNAPSHOT, close_snapshot, open_snapshot
from lockstep.spark.source import FilteringReader, LockstepSource
from lockstep.storage.rows import keys
from lockstep.values.errors import ConfigurationError
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, token_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from .conftest import EVENTS_PER_DAY, event_rows
from .support import PORTS, connect, insert, options

#: The names of the columns, their types, and values of each that filters and rows draw from.
NAMES = ("a", "b", "c", "d", "e", "s", "v")
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
#: More than the table of events has.
EVENTS_MAX = 1_000_000
POOLS: dict[str, list[Any]] = {
    "a": [1, 2, 3],
    "b": ["x", "y", "z\0z"],
    "c": [-2, -1, 0, 1, 7],
    "d": ["", "k", "k\0", "kk", "\xff"],
    "e": [BEGIN + datetime.timedelta(milliseconds=number) for number in range(4)],
    "s": ["here", None],
    "v": [10, 20, 30],
}
#: Values that no row has: between and beyond those, and of a timestamp below its milliseconds.
BESIDE: dict[str, list[Any]] = {
    "a": [9],
    "b": ["", "zz"],
    "c": [-99, 3, 99],
    "d": ["a", "z"],
    "e": [BEGIN + datetime.timedelta(microseconds=1500), BEGIN - datetime.timedelta(hours=1)],
    "s": ["gone"],
    "v": [15],
}
_COMPARE: dict[type, Any] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_SIGNS = {
    EqualTo: "=", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<=", In: "in"
}  # fmt: skip


def holds(one: Filter, row: dict[str, Any]) -> bool:
    """As Spark applies it; what is not known does not hold."""
    if isinstance(one, Not):
        child = one.child
        return row[child.attribute[0]] is not None and not holds(child, row)
    value = row[one.attribute[0]]
    if isinstance(one, IsNotNull):
        return value is not None
    if value is None:
        return False
    if isinstance(one, In):
        return value in one.value
    return bool(_COMPARE[type(one)](_ordered(value), _ordered(one.value)))


def _ordered(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def draw(dice: Random) -> list[Filter]:
    """Filters that mostly fix the partition key."""
    found: list[Filter] = []
    for name in ("a", "b"):
        if dice.random() < 0.9:
            found.append(_equal(dice, name))
    for name in ("c", "d", "e"):
        kind = dice.random()
        if kind < 0.3:
            found.append(_equal(dice, name))
        if kind > 0.2:
            for _ in range(dice.choice([0, 0, 1, 1, 2])):
                compare = dice.choice([GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
                found.append(compare((name,), dice.choice(POOLS[name] + BESIDE[name])))
    if dice.random() < 0.3:
        found.append(_equal(dice, dice.choice(["s", "v", "c"])))
    if dice.random() < 0.2:
        found.append(Not(_equal(dice, "d")))
    if dice.random() < 0.2:
        found.append(IsNotNull((dice.choice(NAMES),)))
    dice.shuffle(found)
    return found


def _equal(dice: Random, name: str) -> Filter:
    pool = [value for value in POOLS[name] * 3 + BESIDE[name] if value is not None]
    if dice.random() < 0.5:
        return dice.choice([EqualTo, EqualNullSafe])((name,), dice.choice(pool))
    return In((name,), tuple(dice.sample(pool, dice.randrange(1, len(pool)))))


@pytest.fixture(scope="module")
def table(cluster: LocalCluster) -> str:
    """Rows of all kinds: partitions without rows, without static values, with deletions."""
    connection = connect(cluster)
    connection.query(
        "CREATE TABLE shop.filtered (a int, b text, c int, d text, e timestamp, s text static, v int, "
        "PRIMARY KEY ((a, b), c, d, e)) WITH CLUSTERING ORDER BY (c DESC, d ASC, e DESC)"
    )
    dice = Random(5)
    rows = [
        (a, b, c, d, e, dice.choice(POOLS["v"]))
        for a in POOLS["a"] for b in POOLS["b"] for c in POOLS["c"] for d in POOLS["d"] for e in POOLS["e"]
        if dice.random() < 0.6 and (a, b) != (3, "x")
    ]  # fmt: skip
    insert(connection, "filtered", "a int; b text; c int; d text; e timestamp; v int", rows)
    insert(connection, "filtered", "a int; b text; s text", [(1, "x", "here"), (3, "x", "here")])
    connection.query("DELETE FROM shop.filtered WHERE a = 1 AND b = 'x' AND c > -1 AND c < 7")
    connection.query("DELETE FROM shop.filtered WHERE a = 2 AND b = 'y' AND c = 7")
    connection.query("DELETE v FROM shop.filtered WHERE a = 2 AND b = 'x' AND c = 7 AND d = 'k' AND e = 0")
    connection.close()
    return "filtered"


def read(cluster: LocalCluster, table: str, filters: Sequence[Filter], **others: str) -> list[Any]:
    """As Spark does: what the reader gives, and of that what the filters keep that it gave back."""
    source = LockstepSource(options(cluster, table, filterPushdown="true", **others))
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteringReader)
    left = list(reader.pushFilters(list(filters)))
    found = []
    partitions = list(reader.partitions())
    for partition in partitions:
        for batch in reader.read(partition):
            found += [row for row in batch.to_pylist() if all(holds(one, row) for one in left)]
    for partition in partitions[:1]:
        if isinstance(partition, SnapshotPartition):
            given = parse_options(options(cluster, table))
            close_snapshot(given, SNAPSHOT.decode(partition.snapshot))
    return sorted(map(_plain, found))


def _plain(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(repr(row[name]) for name in NAMES)


def test_7_the_same_rows_with_filters_pushed_and_without(cluster: LocalCluster, table: str) -> None:
    """Random filters: by pages, from one replica's snapshot, from two merged, and without Spark."""
    whole = scan_arrow("shop", table, hosts=cluster.contact_points[0], port=str(PORTS[0]))
    rows = whole.read_all().to_pylist()
    assert any(row["c"] is None for row in rows) and len(rows) > 300
    some = selected = 0
    for seed in range(60):
        filters = draw(Random(seed))
        expected = sorted(_plain(row) for row in rows if all(holds(one, row) for one in filters))
        some += bool(expected)
        ways: list[dict[str, str]] = [
            {},
            {"snapshot": "true", "consistencyLevel": "ONE"},
            {"snapshot": "true"},
        ]
        assert read(cluster, table, filters, **ways[seed % 3]) == expected, (seed, filters)
        told = [(one.attribute[0], _SIGNS[type(one)], one.value) for one in filters if type(one) in _SIGNS]
        arrow = scan_arrow(
            "shop",
            table,
            filters=told,
            hosts=cluster.contact_points[1],
            port=str(PORTS[0]),
            consistencyLevel="ONE",
        ).read_all()
        kept = [row for row in arrow.to_pylist() if all(holds(one, row) for one in filters)]
        assert sorted(map(_plain, kept)) == expected, (seed, filters)
        selected += {"a", "b"} <= {one.attribute[0] for one in filters if isinstance(one, EqualTo | In)}
    assert some > 15 and selected > 25


@pytest.fixture
def counted(cluster: LocalCluster) -> Iterator[Any]:
    """Reads of table events at ONE that tell how many fragments and bytes replicas read for them. Each has a
    limit, for a reader with one neither finds decoded columns of an earlier read nor leaves any."""
    given = parse_options(options(cluster, "events", consistencyLevel="ONE"))
    snapshot = open_snapshot(given)

    def read_(
        conditions: Sequence[Condition],
        columns: Sequence[str] = ("day", "at", "what"),
        limit: int = EVENTS_MAX,
    ) -> tuple[int, int, int]:
        scan = SnapshotScan(given, snapshot, columns, rows_max=limit)
        kinds = snapshot.table.kinds
        selection, _ = select([KeyColumn("day", kinds["day"])], [KeyColumn("at", kinds["at"])], conditions)
        if selection is None:
            batches = scan.ranges([(TOKEN_MIN, TOKEN_MAX)])
        else:
            whole = [derived_key(parts) for parts in selection.keys]
            slices = selection.slices([kinds["at"]], [False]) if selection.chooses_rows else ()
            batches = scan.keys([(token_of(key), key) for key in whole], slices)
        rows = sum(batch.num_rows for batch in batches)
        return rows, scan.fragments_read, scan.bytes_read

    yield read_
    close_snapshot(given, snapshot)


def test_7_replicas_read_only_what_filters_name(counted: Any) -> None:
    rows, fragments, size = counted([])
    assert rows == fragments == len(list(event_rows()))
    day = Condition("day", "in", (3, 77, 299))
    assert counted([day])[:2] == (3 * EVENTS_PER_DAY, 3 * EVENTS_PER_DAY)
    at = Condition("at", ">=", 18)
    rows, fragments, few = counted([day, at])
    assert rows == fragments == 3 * (EVENTS_PER_DAY - 18)
    assert few < size / 500
    assert counted([day, Condition("at", "in", (1, 5, 400))])[:2] == (6, 6)
    assert counted([Condition("day", "=", 4), Condition("at", "=", 7)])[:2] == (1, 1)
    assert counted([Condition("day", "in", ())])[:2] == (0, 0)


def test_a_limit_ends_the_reading_at_replicas(cluster: LocalCluster, counted: Any) -> None:
    for limit in (1, 10, 2000):
        rows, fragments, _ = counted([], limit=limit)
        assert limit <= rows <= fragments < limit + 40
    given = {"hosts": cluster.contact_points[0], "port": str(PORTS[0])}
    for level in ("ONE", "LOCAL_QUORUM"):
        found = scan_arrow("shop", "events", limit="5", consistencyLevel=level, **given).read_all()
        assert found.num_rows == 5


def test_token_ranges_are_read_and_nothing_else(cluster: LocalCluster) -> None:
    by_token = {day: token_of(day.to_bytes(4, "big")) for day, _, _ in event_rows()}
    ordered = sorted(by_token.values())
    wanted = [(ordered[10], ordered[20]), (ordered[50], ordered[51])]
    text = ",".join(f"{left}:{right}" for left, right in wanted)
    inside = {day for day, token in by_token.items() if any(left < token <= right for left, right in wanted)}
    assert len(inside) == 11
    for others in ({}, {"snapshot": "true"}):
        source = LockstepSource(options(cluster, "events", tokenRanges=text, **others))
        reader = source.reader(source.schema())
        days = [
            day
            for part in reader.partitions()
            for batch in reader.read(part)
            for day in batch.column(0).to_pylist()
        ]
        assert sorted(days) == sorted(day for day in inside for _ in range(EVENTS_PER_DAY))
    some = [*sorted(inside)[:2], next(day for day in by_token if day not in inside)]
    given = {"hosts": cluster.contact_points[0], "port": str(PORTS[0]), "tokenRanges": text}
    found = scan_arrow("shop", "events", ["day"], filters=[("day", "in", some)], **given).read_all()
    assert set(found["day"].to_pylist()) == set(sorted(inside)[:2])


@pytest.mark.parametrize("text", ["5", "5:5", "9:3", "1:2,0:3", "a:b", f"0:{TOKEN_MAX + 1}"])
def test_wrong_token_ranges_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="tokenRanges"):
        parse_options({"keyspace": "k", "table": "t", "tokenRanges": text})


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (("day", "~", 3), "operator '~'"),
        (("day", "=", "x"), "does not fit its type int32"),
        (("day", "=", None), "wants values"),
        (("what", "in", "ab"), "wants values"),
        (("gone", "=", 3), "no column gone"),
    ],
)
def test_wrong_filters_are_refused(cluster: LocalCluster, told: tuple[str, str, Any], said: str) -> None:
    given = {"hosts": cluster.contact_points[0], "port": str(PORTS[0])}
    with pytest.raises(ConfigurationError, match=said):
        scan_arrow("shop", "events", filters=[told], **given)


def test_filters_without_spark_take_columns_that_are_not_asked_for(cluster: LocalCluster) -> None:
    given = {"hosts": cluster.contact_points[0], "port": str(PORTS[0])}
    filters = [("day", "=", 3), ("what", "!=", "event 61"), ("at", "<", 4)]
    found = scan_arrow("shop", "events", ["at"], filters=filters, **given).read_all()
    assert found.to_pydict() == {"at": [0, 2, 3]}
    found = scan_arrow(
        "shop", "events", ["at"], filters=[("what", "not in", ["event 1"])], limit="7", **given
    )
    assert found.read_all().num_rows == 7


SHAPE = TableShape(
    "shop",
    "t",
    (
        TableColumn("a", "partition_key", 0, "int"),
        TableColumn("c", "clustering", 0, "int"),
        TableColumn("d", "clustering", 1, "text"),
        TableColumn("e", "clustering", 2, "timestamp"),
    ),
)


def test_what_a_selection_applies_is_not_given_back() -> None:
    key, one, other = EqualTo(("a",), 1), In(("c",), (1, 2)), GreaterThan(("d",), "k")
    last = LessThan(("e",), BEGIN)
    selection, left = selection_of(SHAPE, [last, other, key, one])
    assert left == [last], "what is behind a range is not chosen by"
    assert selection is not None and selection.prefixes == ((b"\0\0\0\1",), (b"\0\0\0\2",))
    assert selection.lower is not None and selection.lower.value == b"k" and not selection.lower.inclusive
    # What the two have in common, and the narrower bound of several.
    both = [key, In(("c",), (1, 2)), In(("c",), (2, 3)), LessThanOrEqual(("d",), "z"), LessThan(("d",), "z")]
    selection, left = selection_of(SHAPE, both)
    assert selection is not None and left == [] and selection.prefixes == ((b"\0\0\0\2",),)
    assert selection.upper is not None and not selection.upper.inclusive
    # An empty value of a number is no number, and comes first: Spark looks again.
    assert selection_of(SHAPE, [key, LessThan(("c",), 5)])[1] == [LessThan(("c",), 5)]
    assert selection_of(SHAPE, [key, LessThan(("c",), 5), GreaterThan(("c",), 1)])[1] == []


def test_too_many_slices_are_left_to_spark() -> None:
    selection, left = selection_of(SHAPE, [EqualTo(("a",), 1), In(("c",), tuple(range(20_000)))])
    assert selection is not None and not selection.chooses_rows and len(left) == 1


def test_a_request_has_the_heads_of_its_partitions() -> None:
    """However many slices there are of one."""
    places = []
    for number in range(40):
        prefix = keys.partition_prefix(7, number, b"k" * 100)
        bounds = tuple(
            (prefix + keys.KIND_ROW + bytes([at]), prefix + b"\x02" + bytes([at + 1])) for at in range(250)
        )
        places.append(_Place(bounds, ((prefix, prefix + keys.KIND_ROW),)))
    asked = list(requests(places[::-1]))
    assert len(asked) > 2
    rows = [
        one for bounds in asked for one in bounds if one[0][:114] != one[0] and one[1][-1:] != keys.KIND_ROW
    ]
    assert len(rows) > 9000
    for bounds in asked:
        assert list(bounds) == sorted(bounds)
        heads = {lower for lower, upper in bounds if upper == lower + keys.KIND_ROW}
        assert all(any(lower.startswith(head) for head in heads) for lower, _ in bounds)
        assert sum(len(lower) + len(upper) for lower, upper in bounds) < 1 << 21
    given = [one for bounds in asked for one in bounds if one[1] != one[0] + keys.KIND_ROW]
    assert given == [one for place in places for one in place.bounds]


def test_queries_of_one_frame_do_not_mix_their_filters(cluster: LocalCluster, spark: SparkSession) -> None:
    """Spark keeps one plan of reading for a frame, that of the filters it handed on last."""
    given = options(cluster, "events")
    for ways in ({}, {"snapshot": "true"}):
        frame = spark.read.format("lockstep").options(**given, **ways).load()
        assert frame.where("day = 3").count() == EVENTS_PER_DAY
        assert frame.count() == len(list(event_rows()))
        both = frame.where("day = 4").union(frame.where("day IN (5, 6) AND at < 2"))
        expected = [row for row in event_rows() if row[0] == 4 or (row[0] in (5, 6) and row[1] < 2)]
        assert sorted(map(tuple, both.collect())) == expected
        one, other = frame.where("day = 7"), frame.where("day = 8")
        assert one.alias("one").join(other.alias("other"), "at").count() == EVENTS_PER_DAY


def test_filters_choose_what_is_read_of_a_frame_that_is_loaded_for_them(
    cluster: LocalCluster, spark: SparkSession
) -> None:
    conditions = [
        "day = 3", "day IN (3, 5) AND at > 15", "day = 3 AND at BETWEEN 2 AND 6", "what LIKE 'event 1%'",
        "day = 3 OR day = 9", "day = 3 AND at = 4 OR day = 3 AND at = 5",
    ]  # fmt: skip
    found = {}
    for pushed in ("true", "false"):
        reading = spark.read.format("lockstep").options(**options(cluster, "events", filterPushdown=pushed))
        frames = [reading.load().where(condition) for condition in conditions]
        found[pushed] = [sorted(map(tuple, frame.collect())) for frame in frames]
        assert (frames[0].rdd.getNumPartitions() == 1) == (pushed == "true")
    assert found["true"] == found["false"]
    assert found["true"][1] == [row for row in event_rows() if row[0] in (3, 5) and row[1] > 15]
