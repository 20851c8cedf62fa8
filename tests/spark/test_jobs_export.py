"""An export's directory, manifest and errors, without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection
from lockstep.spark.jobs import export, manifest, places, running, tables, verify
from lockstep.spark.jobs.export import Export
from lockstep.spark.jobs.manifest import ExportedFile, Manifest
from lockstep.spark.jobs.tables import Access, Described, DescribedColumn, DescribedType, TableName
from lockstep.spark.jobs.verify import Verify
from lockstep.spark.loads.writer import bulk_load
from lockstep.values.errors import ConfigurationError, InvalidRequest, LockstepError, PreconditionError

from .support import PORTS, connect, options

DESCRIBED = Described(
    "shop",
    "orders",
    (
        DescribedColumn("customer", "int", "partition_key", 0),
        DescribedColumn("Number", "int", "clustering", 0, True),
        DescribedColumn("since", "frozen<span>", "static"),
        DescribedColumn("what", "text", "regular"),
    ),
    (DescribedType("day", (("at", "date"),)), DescribedType("span", (("first", "frozen<day>"),))),
)
EVENTS = TableName("shop", "events")


def access(cluster: LocalCluster) -> Access:
    return Access(",".join(cluster.contact_points), PORTS[0])


def written(place: Path, rows: int = 3) -> Manifest:
    """An export of one file, as it would lie there."""
    (place / "data").mkdir(parents=True)
    parquet.write_table(pa.table({"customer": list(range(rows))}), place / "data" / "part-0.parquet")
    files = manifest.looked_at((str(place), tuple(manifest.data_files(place))))
    made = Manifest(
        "export-manifest/1",
        DESCRIBED,
        ("customer",),
        (),
        "LOCAL_QUORUM",
        "then",
        "now",
        rows,
        1,
        tuple(files),
    )
    manifest.write_whole(place / "manifest.json", made)
    return made


def test_a_manifest_says_what_is_in_the_files(tmp_path: Path) -> None:
    made = written(tmp_path)
    (file,) = made.files
    assert (file.path, file.rows) == ("data/part-0.parquet", 3) and len(file.sha256) == 64
    assert manifest.read_manifest(tmp_path) == made


def test_a_file_that_was_changed_lost_or_added_is_told(tmp_path: Path) -> None:
    made = written(tmp_path)
    found = list(made.files)
    assert manifest.damage(made, tmp_path, found) == []
    other = ExportedFile(found[0].path, 2, 9, "ab" * 32)
    assert "another content: 2 rows" in manifest.damage(made, tmp_path, [other])[0]
    assert manifest.damage(made, tmp_path, []) == ["data/part-0.parquet is gone"]
    extra = ExportedFile("data/x.parquet", 1, 1, "")
    assert manifest.damage(made, tmp_path, [*found, extra]) == ["data/x.parquet is in no manifest"]


def test_a_file_that_is_no_parquet_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no")
    with pytest.raises(PreconditionError, match=r"a\.parquet cannot be read as Parquet"):
        manifest.looked_at((str(tmp_path), ("a.parquet",)))


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no export"):
        manifest.read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is no manifest"):
        manifest.read_manifest(tmp_path)
    with pytest.raises(ConfigurationError, match="is a URI"):
        manifest.directory("s3://bucket/x")


def test_a_plan_names_what_is_read_and_how_much(cluster: LocalCluster, tmp_path: Path) -> None:
    planned = export.plan(access(cluster), Export(EVENTS, str(tmp_path / "new"), partitioned_by=("day",)))
    assert planned.columns == ("day", "at", "what") and planned.read_level == "LOCAL_QUORUM"
    assert planned.tasks > 1 and planned.ranges >= planned.tasks and planned.epoch > 0
    assert planned.partitions is not None and not planned.resumes
    assert not (tmp_path / "new").exists()


def test_a_directory_is_taken_once(cluster: LocalCluster, tmp_path: Path) -> None:
    where = access(cluster)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(PreconditionError, match="is not empty"):
        export.plan(where, Export(EVENTS, str(tmp_path / "else")))
    written(tmp_path / "whole")
    with pytest.raises(PreconditionError, match="holds a whole export already"):
        export.plan(where, Export(EVENTS, str(tmp_path / "whole"), resume=True))


def test_only_an_export_of_the_same_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    where = access(cluster)
    begun = export.Begun(
        "export-begun/1", tables.describe(where, EVENTS), ("day", "at", "what"), (), "LOCAL_QUORUM", "then"
    )
    manifest.write_whole(tmp_path / "export-begun.json", begun)
    with pytest.raises(PreconditionError, match="broken off") as refused:
        export.plan(where, Export(EVENTS, str(tmp_path)))
    assert "--resume" in refused.value.hint
    assert export.plan(where, Export(EVENTS, str(tmp_path), resume=True)).resumes
    with pytest.raises(PreconditionError, match="of other columns"):
        export.plan(where, Export(EVENTS, str(tmp_path), columns=("day", "at"), resume=True))


def test_mistakes_are_told_before_spark_starts(cluster: LocalCluster, tmp_path: Path) -> None:
    where, to = access(cluster), str(tmp_path / "new")
    with pytest.raises(ConfigurationError, match=r"no table shop\.nothing"):
        export.plan(where, Export(TableName("shop", "nothing"), to))
    with pytest.raises(ConfigurationError, match="no column nothing"):
        export.plan(where, Export(EVENTS, to, columns=("nothing",)))
    with pytest.raises(ConfigurationError, match="divide the files, but is not exported"):
        export.plan(where, Export(EVENTS, to, columns=("at",), partitioned_by=("day",)))
    with pytest.raises(ConfigurationError, match="is not KEYSPACE"):
        tables.table_name("events")
    with pytest.raises(ConfigurationError, match="unknown option 'nothing'"):
        export.plan(Access(where.hosts, where.port, others=(("nothing", "1"),)), Export(EVENTS, to))


@pytest.mark.slow
def test_what_the_name_of_a_directory_does_not_hold_is_no_export(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """An empty text would be read as no value, and bytes as others."""
    connection, where = connect(cluster), access(cluster)
    connection.query("CREATE TABLE shop.named (id int PRIMARY KEY, v text, b blob)")
    for number, text in enumerate(("01", "a/b %41", "")):
        connection.query(f"INSERT INTO shop.named (id, v) VALUES ({number}, '{text}')")
    wanted = Export(TableName("shop", "named"), str(tmp_path / "out"), partitioned_by=("v",))
    with pytest.raises(PreconditionError, match=r"column v has the text '', .*--partition-by$"):
        export.run(spark, where, wanted, running.Silent())
    assert not (tmp_path / "out" / "manifest.json").exists()
    connection.query("DELETE FROM shop.named WHERE id = 2")
    connection.query("INSERT INTO shop.named (id) VALUES (3)")
    told = export.run(spark, where, structs.replace(wanted, resume=True), running.Silent())
    assert (told.rows, told.resumed) == (3, True)
    read = verify.run(spark, where, Verify(wanted.to, "shop.named"), running.Silent())
    assert read.equal
    with pytest.raises(ConfigurationError, match="divided by b, which is blob"):
        export.plan(where, Export(wanted.table, str(tmp_path / "new"), partitioned_by=("b",)))
    connection.query("DROP TABLE shop.named")
    connection.close()


@pytest.mark.slow
def test_an_export_of_a_snapshot_has_the_table_as_it_was(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(cluster)
    connection.query("CREATE TABLE shop.fixed (id int PRIMARY KEY, v text)")
    connection.query("INSERT INTO shop.fixed (id, v) VALUES (1, 'a')")
    telling = tables.telling

    def emptied(frame: DataFrame, described: Described) -> DataFrame:
        """As the table is when the frame has been made."""
        connection.query("TRUNCATE shop.fixed")
        return telling(frame, described)

    monkeypatch.setattr(tables, "telling", emptied)
    where = structs.replace(access(cluster), others=(("snapshot", "true"),))
    wanted = Export(TableName("shop", "fixed"), str(tmp_path / "fixed"))
    assert export.run(spark, where, wanted, running.Silent()).rows == 1
    connection.query("DROP TABLE shop.fixed")
    connection.close()


class Changing:
    """Changes the table where the job has described it and reads next."""

    def __init__(self, change: Callable[[], object]) -> None:
        self.change = change

    def phase(self, text: str) -> None:
        if text.startswith(("reading shop", "digests of shop")):
            self.change()

    def at(self, done: int, total: int) -> None:
        """Nothing."""


def test_a_table_that_changes_under_an_export_is_no_export(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Emptied, made anew, or with a column of the same name that is another: a part of the rows is lost."""
    connection, where = connect(cluster), access(cluster)
    made = "CREATE TABLE shop.changing (id int PRIMARY KEY, v text)"
    changes = {
        "was emptied": ["TRUNCATE shop.changing"],
        "was dropped and made anew": ["DROP TABLE shop.changing", made],
        "column v .*was altered": [
            "ALTER TABLE shop.changing DROP v",
            "ALTER TABLE shop.changing ADD v text",
        ],
    }

    connection.query(made)
    for number, (problem, statements) in enumerate(changes.items()):
        connection.query("INSERT INTO shop.changing (id, v) VALUES (1, 'a')")
        wanted = Export(TableName("shop", "changing"), str(tmp_path / str(number)))
        with pytest.raises(PreconditionError, match=problem):
            export.run(spark, where, wanted, Changing(partial(_each, connection, statements)))
        assert sorted(path.name for path in Path(wanted.to).iterdir()) == [manifest.BEGUN]
    wanted = Export(TableName("shop", "changing"), str(tmp_path / "added"))
    change = partial(connection.query, "ALTER TABLE shop.changing ADD w text")
    assert export.run(spark, where, wanted, Changing(change)).rows == 1
    connection.query("DROP TABLE shop.changing")
    connection.close()


def _each(connection: CqlConnection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.query(statement)


def test_a_load_instead_of_the_rows_ends_what_reads_them(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """What was read is of two tables then; a load that adds rows is a write like others."""
    connection, where = connect(cluster), access(cluster)
    connection.query("CREATE TABLE shop.replaced (id int PRIMARY KEY, v text)")
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]})
    load = partial(bulk_load, rows, **options(cluster, "replaced"))
    load()
    name = TableName("shop", "replaced")
    added = export.run(spark, where, Export(name, str(tmp_path / "added")), Changing(load))
    assert added.rows == 1
    emptied = Changing(partial(load, mode="overwrite"))
    with pytest.raises(PreconditionError, match="was emptied while the job ran"):
        export.run(spark, where, Export(name, str(tmp_path / "other")), emptied)
    with pytest.raises(PreconditionError, match="was emptied while the job ran"):
        verify.run(spark, where, Verify(str(tmp_path / "added"), "shop.replaced"), emptied)
    connection.query("DROP TABLE shop.replaced")
    connection.close()


def test_one_job_at_a_time_writes_to_a_directory(cluster: LocalCluster, tmp_path: Path) -> None:
    """Two exports into one place took rows from each other, and both said that they were whole."""
    place = tmp_path / "out"
    with (
        places.claimed(place),
        pytest.raises(PreconditionError, match="another job is writing to"),
        places.claimed(place),
    ):
        pass
    with (
        places.claimed(place),
        pytest.raises(PreconditionError, match="another job is writing to"),
    ):
        export.run(None, access(cluster), Export(EVENTS, str(place)), running.Silent())  # type: ignore[arg-type]
    with places.claimed(place):
        assert list(place.iterdir()) == []


def test_what_an_attempt_wrote_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    target, first = tmp_path / "data", places.attempt_in(tmp_path)
    first.mkdir()
    (first / "a").touch()
    second = places.attempt_in(tmp_path)
    assert not first.exists(), "what was broken off goes"
    with pytest.raises(PreconditionError, match="cannot be named data"):
        places.made_whole(first, target)
    with pytest.raises(ValueError, match="gone"), places.given_up(second):
        second.mkdir()
        raise ValueError("gone")
    assert list(tmp_path.iterdir()) == []
    for name in ("b", "c"):
        attempt = places.attempt_in(tmp_path)
        attempt.mkdir()
        (attempt / name).touch()
        places.made_whole(attempt, target)
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "c"]


def test_a_description_makes_the_table_again() -> None:
    made = DESCRIBED.statements(TableName("other", "copy"))
    assert made == [
        'CREATE TYPE IF NOT EXISTS "other"."day" ("at" date)',
        'CREATE TYPE IF NOT EXISTS "other"."span" ("first" frozen<day>)',
        'CREATE TABLE "other"."copy" ("customer" int, "Number" int, "since" frozen<span> static, '
        '"what" text, PRIMARY KEY (("customer"), "Number")) WITH CLUSTERING ORDER BY ("Number" DESC)',
    ]


def test_a_table_is_described_as_the_cluster_has_it(cluster: LocalCluster) -> None:
    found = tables.describe(access(cluster), EVENTS)
    assert found.key_names() == ["day", "at"] and found.partition_key_names() == ["day"]
    assert found.epoch > 0 and found.cql.startswith("CREATE TABLE shop.events")


def test_errors_of_tasks_come_back_as_they_were() -> None:
    told = (
        "[PYTHON_EXCEPTION] Job aborted\nTraceback ...\n"
        "lockstep.values.errors.InvalidRequest: column at: does not fit\n  at org.apache"
    )
    error = running.plain_error(told, "PythonException")
    assert isinstance(error, InvalidRequest) and error.message == "column at: does not fit"
    missing = running.plain_error(
        "[PATH_NOT_FOUND] Path does not exist. SQLSTATE: 42K03;\n...", "AnalysisException"
    )
    assert isinstance(missing, ConfigurationError) and missing.message.endswith("does not exist.")
    lost = running.plain_error("java.lang.Exception: lost\n at x", "Py4JJavaError")
    assert type(lost) is LockstepError and "java.lang.Exception: lost" in lost.message
    raised = running.plain_error(
        "[PYTHON_DATA_SOURCE_ERROR] Failed to commit: Traceback (most recent call last):\n"
        '  File "a.py", line 1, in commit\n    now()\nOverflowError: out of range\n SQLSTATE: 38000',
        "AnalysisException",
    )
    assert type(raised) is LockstepError, "what Python raised is no fault of who asked"
    assert "Failed to commit: OverflowError: out of range" in raised.message


def test_pairs_are_taken_apart() -> None:
    assert running.pairs(["a=1", "b=x=y"], "--conf") == (("a", "1"), ("b", "x=y"))
    with pytest.raises(ConfigurationError, match="--conf 'a' is not NAME=VALUE"):
        running.pairs(["a"], "--conf")
