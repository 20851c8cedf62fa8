"""Files into tables, out of them, and compared; what is wrong is told before Spark starts where it can be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession, functions

from lockstep.local.clusters import LocalCluster
from lockstep.spark.jobs import casting, comparing, export, files, load, manifest, verify
from lockstep.spark.jobs.comparing import Compared, Sum, Tolerance
from lockstep.spark.jobs.export import Export
from lockstep.spark.jobs.load import Load
from lockstep.spark.jobs.running import Silent
from lockstep.spark.jobs.tables import Access, TableName
from lockstep.spark.jobs.verify import Verify
from lockstep.spark.ring import TableColumn
from lockstep.values.errors import ConfigurationError, PreconditionError

from .support import PORTS, connect

GOODS = TableName("shop", "goods")
COPY = TableName("shop", "goods_copy")
HEAD = "id,number,price,weight,at,tags\n"
GOOD = (
    HEAD
    + 'a,1,1.50,2.25,2024-05-06 07:08:09,"{""x"":[1,2]}"\n'
    + "b,2,NA,NA,NA,NA\n"
    + "c,3,-0.25,1e3,1715000000000,NA\n"
)


def access(cluster: LocalCluster) -> Access:
    return Access(",".join(cluster.contact_points), PORTS[0])


@pytest.fixture(scope="module")
def goods(cluster: LocalCluster) -> LocalCluster:
    connection = connect(cluster)
    connection.query(
        "CREATE TABLE shop.goods (id text, number int, price decimal, weight double, at timestamp, "
        "tags map<text, frozen<list<int>>>, PRIMARY KEY (id, number)) WITH CLUSTERING ORDER BY (number DESC)"
    )
    connection.close()
    return cluster


def test_files_are_found_with_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    with gzip.open(tmp_path / "b.csv.gz", "wt") as out:
        out.write("number,id,price,weight,at,tags\n")
    (tmp_path / "_hidden.csv").write_text("x\n")
    found = files.find([str(tmp_path)], "csv")
    assert [Path(path).name for path in found.paths] == ["a.csv", "b.csv.gz"]
    assert found.columns == ("id", "number", "price", "weight", "at", "tags") and found.bytes > 0
    (tmp_path / "c.csv").write_text("id\n")
    with pytest.raises(ConfigurationError, match=r"c\.csv has the columns id, but .*a\.csv has"):
        files.find([str(tmp_path)], "csv")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.txt", "x", "does not say its format"),
        ("a.csv", "id,id\n", "a line of distinct names"),
        ("a.csv", "", "a line of distinct names"),
        ("a.parquet", "no", "is no Parquet file"),
        ("a.json", "[1]\n", "no line that is a JSON object"),
    ],
)
def test_files_that_cannot_be_read_are_told(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        files.find([str(tmp_path / name)], "")
    with pytest.raises(ConfigurationError, match="names no csv file"):
        files.find([str(tmp_path / "*.nothing")], "csv")


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("id,price\n", "lack the key column number"),
        ("id,number,colour\n", "no column colour, which the files have"),
    ],
)
def test_names_are_matched_before_spark_starts(
    goods: LocalCluster, tmp_path: Path, head: str, problem: str
) -> None:
    (tmp_path / "in.csv").write_text(head)
    with pytest.raises(ConfigurationError, match=problem):
        load.plan(access(goods), Load(GOODS, (str(tmp_path / "in.csv"),)))


def test_a_plan_says_what_gets_no_value(goods: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(GOOD)
    planned = load.plan(access(goods), Load(GOODS, (str(tmp_path),), columns=("id", "number", "at")))
    assert planned.columns == ("id", "number", "at") and planned.not_loaded == ("price", "tags", "weight")
    with pytest.raises(ConfigurationError, match="made from the manifest of an export"):
        load.plan(access(goods), Load(GOODS, (str(tmp_path),), create=True))


def test_partitions_named_by_decimals_need_their_digits(
    goods: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    connection = connect(goods)
    connection.query("CREATE TABLE shop.prices (price decimal PRIMARY KEY, v int)")
    (tmp_path / "a.csv").write_text("price,v\n1.50,1\n2,2\n")
    wanted = Load(TableName("shop", "prices"), sources=(str(tmp_path / "a.csv"),))
    with pytest.raises(ConfigurationError, match=r"partitions of 1\.5 and 1\.50 are two") as refused:
        load.plan(access(goods), wanted)
    assert "decimalScale=N" in refused.value.hint
    scaled = msgspec.structs.replace(access(goods), others=(("decimalScale", "2"),))
    assert load.run(spark, scaled, wanted, Silent()).rows == 2
    (row,) = connection.query("SELECT v FROM shop.prices WHERE price = 1.50")
    assert row["v"] == 1
    assert not connection.query("SELECT v FROM shop.prices WHERE price = 1.5")
    connection.close()


def test_buckets_that_differ_are_those_of_one_side_or_with_another_sum() -> None:
    one = {1: Sum(1, 5), 2: Sum(2, 6), 3: Sum(1, 7)}
    assert comparing.unlike(one, dict(one)) == []
    assert comparing.unlike(one, {1: Sum(1, 5), 2: Sum(2, 9), 4: Sum(1, 1)}) == [2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "one", "other"),
    [
        ("a array<int>, b array<int>", ([0], [0, 0]), ([0, 0], [0])),
        ("a array<boolean>, b array<boolean>", ([False], []), ([], [False])),
        ("a array<array<int>>, b int", ([[0], []], 0), ([[], [0]], 0)),
        ("a array<array<int>>, b int", ([[0]], 0), ([[], [], []], 0)),
        ("a map<int, array<int>>, b int", ({0: [0], 1: []}, 0), ({0: [], 1: [0]}, 0)),
        ("a array<int>, b array<int>", ([], None), (None, [])),
        ("a struct<x: int, y: int>, b int", ((None, None), 0), (None, 0)),
    ],
)
def test_where_an_element_is_decides_the_digest(
    spark: SparkSession, kinds: str, one: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    """Numbers and marks that are alike do not add up to the same in another place."""
    compared = Compared(("k",), ("k",), ("k", "a", "b"), 1)
    frames = [spark.createDataFrame([(1, *values)], f"k int, {kinds}") for values in (one, other)]
    mine, theirs = (comparing.sums(frame, compared) for frame in frames)
    assert comparing.unlike(mine, theirs) == [0]
    (found,) = comparing.differences(frames[0], frames[1], compared, [0], 10)
    assert (
        (found.partition, found.key) == ((1,), ("1",))
        and found.missing == ""
        and "a" in [column for column, _, _ in found.columns]
    )


def test_sides_have_to_be_of_one_shape(goods: LocalCluster) -> None:
    where = access(goods)
    with pytest.raises(ConfigurationError, match=r"shop\.events has no column id"):
        verify.sides(where, Verify("shop.goods", "shop.events"))
    with pytest.raises(ConfigurationError, match="is not KEYSPACE"):
        verify.sides(where, Verify("shop.goods", "nothing"))
    with pytest.raises(ConfigurationError, match="0 buckets"):
        verify.sides(where, Verify("shop.goods", "shop.goods", buckets=0))
    other = verify.side(where, f"shop.goods@{goods.contact_points[1]}:{PORTS[0]}")
    assert (other.access.hosts, other.access.port) == (goods.contact_points[1], PORTS[0])


@pytest.mark.slow
def test_what_does_not_fit_to_the_last_element_is_a_reject(spark: SparkSession) -> None:
    """Spark takes apart what it can: of `[1.5, "x"]` it made 1 and null, and of 1e39 infinity."""
    tuple_of = "frozen<tuple<int, text>>"
    fits = [
        ("list<int>", "[1, 2]"), ("list<int>", "[]"), ("list<bigint>", '[9223372036854775807, "5", 1e3]'),
        ("map<text, frozen<list<int>>>", '{"a": [1], "b": []}'), (tuple_of, '{"_1": 1, "_2": "x"}'),
        (tuple_of, '{"_1": null}'), ("list<float>", '["Infinity", 0.1]'), ("set<text>", '["a", ""]'),
        ("list<date>", '["2024-12-01"]'), ("vector<float, 2>", "[1, 2.5]"), ("float", " -inf "),
        ("float", "Infinity"), ("float", "NaN"), ("double", "1e308"),
    ]  # fmt: skip
    wrong = [
        ("list<int>", "[1.5]"), ("list<int>", '["x"]'), ("list<int>", "[1, null]"), ("list<int>", "no JSON"),
        ("list<int>", "[99999999999]"), ("list<int>", '{"a": 1}'), ("map<text, int>", '{"a": "b"}'),
        ("map<text, int>", "[1]"), ("map<text, frozen<list<int>>>", '{"a": [1], "b": [1.5]}'),
        (tuple_of, '{"_1": "a"}'), (tuple_of, '{"_1": 1, "_3": 2}'), (tuple_of, '[1, "x"]'),
        ("list<float>", "[1e39]"), ("list<date>", '["2024-13-01"]'), ("set<boolean>", '["maybe"]'),
        ("float", "1e39"), ("double", "-1e400"),
    ]  # fmt: skip
    given = [*fits, *wrong]
    frame = spark.createDataFrame([tuple(text for _, text in given)], [f"c{at}" for at in range(len(given))])
    columns = [TableColumn(f"c{at}", "regular", -1, kind) for at, (kind, _) in enumerate(given)]
    (row,) = frame.select(
        *[casting.from_text(column, functions.col(column.name), 18).is_bad for column in columns]
    ).collect()
    assert [one for one, is_bad in zip(given, row, strict=True) if is_bad] == wrong


def test_the_whole_way_round(goods: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    """CSV, table, export, another table; a changed row, a changed file and bad lines are told."""
    where, silent = access(goods), Silent()
    (tmp_path / "in.csv").write_text(GOOD)
    wanted = Load(GOODS, (str(tmp_path / "in.csv"),), null_text="NA", rejects=str(tmp_path / "rejects"))
    loaded = load.run(spark, where, wanted, silent)
    assert (loaded.rows, loaded.written, loaded.rejected) == (3, 3, 0)

    bad = HEAD + "d,x,1.1234567890123456789,much,2024-13-01,[\n" + ",5,NA,NA,NA,NA\n" + "e,9,1,1,NA,NA\n"
    (tmp_path / "bad.csv").write_text(bad)
    broken = msgspec.structs.replace(wanted, sources=(str(tmp_path / "bad.csv"),))
    with pytest.raises(PreconditionError, match="2 of 3 rows do not fit"):
        load.run(spark, where, broken, silent)
    first, second = (json.loads(line) for line in (tmp_path / "rejects").read_text().splitlines())
    assert [one["column"] for one in first["problems"]] == ["number", "price", "weight", "at", "tags"]
    assert first["row"]["number"] == "x" and first["file"].endswith("bad.csv")
    assert second["problems"][0]["reason"] == "is of the key and has no value"

    place = tmp_path / "out"
    told = export.run(spark, where, Export(GOODS, str(place), partitioned_by=("id",)), silent)
    assert told.rows == 3 and manifest.read_manifest(place).partitioned_by == ("id",)
    copied = load.run(spark, where, Load(COPY, (str(place),), create=True), silent)
    assert copied.created and copied.written == 3
    assert verify.run(spark, where, Verify(str(place), COPY.text), silent).equal

    connection = connect(goods)
    connection.query("UPDATE shop.goods_copy SET weight = 1000.5 WHERE id = 'c' AND number = 3")
    connection.query("DELETE FROM shop.goods_copy WHERE id = 'b' AND number = 2")
    found = verify.run(spark, where, Verify(GOODS.text, COPY.text), silent)
    assert (found.equal, found.rows, found.buckets_different) == (False, (3, 2), 2)
    by_id = {one.key["id"]: one for one in found.differences}
    assert by_id["b"].missing == COPY.text and by_id["b"].values == ()
    assert by_id["c"].values == (("weight", "1000.0", "1000.5"),)
    tokens = connection.query("SELECT token(id) AS t FROM shop.goods WHERE id = 'c'")
    assert by_id["c"].token == tokens[0]["t"]
    within = by_id["c"].range
    assert within is not None and within[0] < by_id["c"].token <= within[1]
    connection.query("INSERT INTO shop.goods_copy (id, number) VALUES ('b', 2)")
    connection.close()
    near = Verify(GOODS.text, COPY.text, tolerance=Tolerance(number=0.5))
    assert verify.run(spark, where, near, silent).equal

    next(place.rglob("*.parquet")).unlink()
    with pytest.raises(PreconditionError, match="is gone"):
        load.run(spark, where, Load(COPY, (str(place),)), silent)
