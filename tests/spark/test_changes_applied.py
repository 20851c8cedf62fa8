"""Changes of one table applied to another on real nodes, without a JVM; and what the job `cdc` refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from click.testing import CliRunner
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lockstep.cli.main import root
from lockstep.local.clusters import LocalCluster
from lockstep.spark.changes.reader import ChangeReader
from lockstep.spark.changes.writer import ChangeWriter
from lockstep.spark.cql_client import CqlConnection
from lockstep.spark.jobs import cdc, manifest
from lockstep.spark.jobs.tables import Access, TableName
from lockstep.spark.source import LockstepSource
from lockstep.values.errors import ConfigurationError, InvalidRequest, PreconditionError
from lockstep.values.ids import Consistency

from .support import PORTS, connect, options
from .test_changes import QUICK, capture

COLUMNS = (
    "(p int, c int, d text, v text, n int, s int static, tags set<text>, counts map<int, text>, "
    "PRIMARY KEY (p, c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)"
)


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[CqlConnection]:
    made = connect(cluster)
    yield made
    made.close()


def run(connection: CqlConnection, *texts: str) -> None:
    for text in texts:
        connection.query(text, consistency=Consistency.QUORUM)


def batches_of(cluster: LocalCluster, table: str, **more: str) -> tuple[LockstepSource, list[pa.RecordBatch]]:
    source = LockstepSource(options(cluster, table, **{**QUICK, "startingOffsets": "earliest", **more}))
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ChangeReader)
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    found: list[pa.RecordBatch] = []
    while (end := reader.latestOffset(at, ReadAllAvailable())) != at:
        for part in reader.partitions(at, end):
            found += reader.read(part)
        at = end
    return source, found


def writer_of(cluster: LocalCluster, source: LockstepSource, target: str) -> ChangeWriter:
    return LockstepSource(options(cluster, target)).streamWriter(source.schema(), False)


def content(connection: CqlConnection, table: str) -> list[tuple[Any, ...]]:
    names = ("p", "c", "d", "v", "n", "s", "tags", "counts")
    told = ", ".join((*names, *(f"writetime({name})" for name in ("v", "n", "s"))))
    rows = connection.query(f"SELECT {told} FROM shop.{table}", consistency=Consistency.QUORUM)
    return sorted((tuple(row.values()) for row in rows), key=repr)


def random_write(draw: random.Random) -> str:
    p, c, d = draw.randrange(3), draw.randrange(5), draw.choice("ab")
    where = f"WHERE p = {p} AND c = {c} AND d = '{d}'"
    n = draw.randrange(100)
    return draw.choice(
        [
            f"INSERT INTO shop.followed (p, c, d, v, n) VALUES ({p}, {c}, '{d}', 'v{n}', {n})",
            f"INSERT INTO shop.followed (p, c, d) VALUES ({p}, {c}, '{d}')",
            f"INSERT INTO shop.followed (p, c, d, tags) VALUES ({p}, {c}, '{d}', {{'x', '{n}'}})",
            f"UPDATE shop.followed USING TTL 5000 SET v = 'u{n}', n = null {where}",
            f"UPDATE shop.followed SET s = {n} WHERE p = {p}",
            f"UPDATE shop.followed SET tags = tags + {{'{n % 5}'}} {where}",
            f"UPDATE shop.followed SET tags = tags - {{'{n % 5}'}} {where}",
            f"UPDATE shop.followed SET counts = counts + {{{n % 4}: 'm{n}'}}, n = {n} {where}",
            f"UPDATE shop.followed SET counts = counts - {{{n % 4}}} {where}",
            f"UPDATE shop.followed SET counts = {{{n % 4}: 'a{n}'}} {where}",
            f"DELETE FROM shop.followed {where}",
            f"DELETE v FROM shop.followed {where}",
            f"DELETE FROM shop.followed WHERE p = {p} AND c = {c}",
            f"DELETE FROM shop.followed WHERE p = {p} AND c > {c}",
            f"DELETE FROM shop.followed WHERE p = {p} AND c >= {c - 2} AND c < {c}",
            f"DELETE FROM shop.followed WHERE p = {p} AND c = {c} AND d > 'a'",
            f"DELETE FROM shop.followed WHERE p = {p}"
            if n < 20
            else f"UPDATE shop.followed SET n = 1 {where}",
        ]
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_a_table_that_follows_becomes_the_same(
    cluster: LocalCluster, connection: CqlConnection, seed: int
) -> None:
    capture(connection, f"followed {COLUMNS}", preimage="true", postimage="true")
    run(connection, "DROP TABLE IF EXISTS shop.follower", f"CREATE TABLE shop.follower {COLUMNS}")
    draw = random.Random(seed)
    run(connection, *(random_write(draw) for _ in range(250)))
    source, batches = batches_of(cluster, "followed")
    writer = writer_of(cluster, source, "follower")
    # A part of it first, as a task leaves it that is killed; then all, twice, in another order of streams.
    writer.write(iter(batches[: len(batches) // 2]))
    assert writer.write(iter(batches)).rows == sum(batch.num_rows for batch in batches) > 250
    writer.write(iter(batches[::-1]))
    wanted = content(connection, "followed")
    assert wanted and content(connection, "follower") == wanted
    # What came later stays.
    run(connection, "UPDATE shop.follower SET n = -1 WHERE p = 1 AND c = 1 AND d = 'a'")
    writer.write(iter(batches))
    (row,) = connection.query(
        "SELECT n FROM shop.follower WHERE p = 1 AND c = 1 AND d = 'a'", consistency=Consistency.QUORUM
    )
    assert row["n"] == -1


def test_what_cannot_be_applied_is_refused(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(connection, "lists (id int PRIMARY KEY, l list<int>, v int)")
    capture(connection, "keyed (id int PRIMARY KEY, v int)", delta="'keys'")
    run(
        connection,
        "CREATE TABLE IF NOT EXISTS shop.lists_of (id int PRIMARY KEY, l list<int>, v int)",
        "CREATE TABLE IF NOT EXISTS shop.plain_of (id int PRIMARY KEY, v int)",
        "CREATE TABLE IF NOT EXISTS shop.other_of (id int PRIMARY KEY, v text)",
    )
    source = LockstepSource(options(cluster, "lists", **QUICK))
    with pytest.raises(ConfigurationError, match=r"column l \(list<int>\) cannot be applied"):
        writer_of(cluster, source, "lists_of")
    with pytest.raises(ConfigurationError, match="has no column l"):
        writer_of(cluster, source, "plain_of")
    chosen = LockstepSource(options(cluster, "lists", columns="id,v", **QUICK))
    writer_of(cluster, chosen, "plain_of")
    with pytest.raises(ConfigurationError, match="column v is int in the DataFrame"):
        writer_of(cluster, chosen, "other_of")
    plain = LockstepSource(options(cluster, "plain_of"))
    with pytest.raises(ConfigurationError, match="only changes can be streamed") as caught:
        writer_of(cluster, plain, "plain_of")
    assert "foreachBatch" in caught.value.hint
    access = Access(",".join(cluster.contact_points), PORTS[0])
    wanted = cdc.Cdc(TableName("shop", "keyed"), "shop.plain_of", checkpoint="x")
    with pytest.raises(ConfigurationError, match="only which rows changed"):
        cdc.prepare(access, wanted)


def test_half_a_range_is_refused(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(connection, "halves (p int, c int, PRIMARY KEY (p, c))")
    run(connection, "DELETE FROM shop.halves WHERE p = 1 AND c > 2")
    source, batches = batches_of(cluster, "halves")
    run(connection, "CREATE TABLE IF NOT EXISTS shop.halves_of (p int, c int, PRIMARY KEY (p, c))")
    writer = writer_of(cluster, source, "halves_of")
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    assert rows.num_rows == 2
    for half in (rows.slice(0, 1), rows.slice(1, 1)):
        with pytest.raises(InvalidRequest, match="is not whole"):
            writer.write(iter([half]))


def test_the_job_tells_its_plan_and_refuses_places_that_are_taken(
    cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    capture(connection, "planned (id int PRIMARY KEY, v int)", ttl=600)

    def command(*arguments: str) -> Any:
        hosts = ("--hosts", cluster.contact_points[0], "--port", str(PORTS[0]))
        return CliRunner().invoke(root, ["pipeline", "cdc", "shop.planned", *hosts, *arguments])

    told = command("--to", f"parquet:{tmp_path / 'new'}", "--dry-run", "-o", "json")
    plan = json.loads(told.output)
    assert plan["schema"] == "cdc-plan/1" and plan["kept_s"] == 600 and plan["from_us"] is None
    assert plan["streams"] > 0 and not (tmp_path / "new").exists()
    told = command("--to", f"parquet:{tmp_path / 'new'}", "--dry-run")
    assert told.exit_code == 0 and told.output.startswith("follows shop.planned into parquet:")
    for arguments, problem in (
        (("--to", "csv:x"), "neither parquet:DIR nor KEYSPACE.TABLE"),
        (("--to", "shop.planned", "--checkpoint", "x"), "cannot go into itself"),
        (("--to", "shop.events"), "--checkpoint DIR"),
        (("--to", "parquet:y", "--from", "nowhere"), "takes latest, earliest or an offset"),
    ):
        told = command(*arguments, "--dry-run")
        assert told.exit_code == 2 and problem in told.output
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    told = command("--to", f"parquet:{tmp_path / 'full'}", "--dry-run")
    assert told.exit_code == 3 and "holds no changes" in told.output


def test_a_directory_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    mark = cdc.Mark("changes-mark/1", "shop.t", str(tmp_path / "checkpoint"))
    place = tmp_path / "files"
    cdc._check_place(place, mark)
    place.mkdir()
    manifest.write_whole(place / "_changes.json", mark)
    cdc._check_place(place, mark)
    (place / "batch=00000000").mkdir()
    with pytest.raises(PreconditionError, match=r"checkpoint .* is gone"):
        cdc._check_place(place, mark)
    (tmp_path / "checkpoint").mkdir()
    cdc._check_place(place, mark)
    for other in (cdc.Mark(mark.schema, "shop.u", mark.checkpoint), cdc.Mark(mark.schema, "shop.t", "c")):
        with pytest.raises(PreconditionError, match=r"holds changes of shop\.t"):
            cdc._check_place(place, other)
    with pytest.raises(PreconditionError, match="is a checkpoint already"):
        cdc._check_place(tmp_path / "elsewhere", mark)
