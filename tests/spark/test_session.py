"""The data source through a real session: what Spark itself adds, from planning to pickling to types."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from lockstep.local.clusters import LocalCluster

from .conftest import EVENT_ROWS, EVENTS_PER_DAY
from .support import PORTS, connect, options
from .test_columns import SAMPLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: SparkSession, cluster: LocalCluster) -> Load:
    def loaded(table: str = "events", **others: str) -> DataFrame:
        return spark.read.format("lockstep").options(**options(cluster, table, **others)).load()

    return loaded


def test_the_format_is_found_without_registering_it(load: Load) -> None:
    events = load()
    found = events.agg(F.count("*"), F.sum("at"), F.min("what"), F.countDistinct("day", "at")).first()
    days = EVENT_ROWS // EVENTS_PER_DAY
    assert tuple(found) == (EVENT_ROWS, days * sum(range(EVENTS_PER_DAY)), "event 0", EVENT_ROWS)


def test_a_session_without_the_setting_refuses_filters_and_names_it(spark: SparkSession, load: Load) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        with pytest.raises(AnalysisException, match=re.escape(setting)):
            load(filterPushdown="true").where("day = 3").collect()
    finally:
        spark.conf.set(setting, "true")


def test_a_query_that_stops_early_leaves_nothing_on_the_terminal(
    load: Load, cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = load(pageSize="100", batchRows="100", splitsPerRange="1")
    for _ in range(3):
        assert len(rows.limit(5).collect()) == 5
        assert rows.head() is not None
    time.sleep(1.0)
    assert "Traceback" not in capfd.readouterr().err
    assert not any("Traceback" in cluster.paths.log(node.name).read_text() for node in cluster.file.nodes)


def test_a_sql_view_reads_the_table(spark: SparkSession, cluster: LocalCluster) -> None:
    listed = ", ".join(f"{name} '{value}'" for name, value in options(cluster, "events").items())
    spark.sql(f"CREATE OR REPLACE TEMP VIEW events USING lockstep OPTIONS ({listed})")
    assert spark.sql("SELECT count(*) FROM events WHERE at = 3").first()[0] == EVENT_ROWS // EVENTS_PER_DAY


def test_every_type_survives_a_write_and_a_read(
    spark: SparkSession, cluster: LocalCluster, load: Load
) -> None:
    columns = {f"c{number}": text for number, text in enumerate(SAMPLES)}
    connection = connect(cluster)
    listed = ", ".join(f"{name} {text}" for name, text in columns.items())
    connection.query(f"CREATE TABLE shop.everything (id int PRIMARY KEY, {listed})")
    connection.close()
    values: list[Any] = []
    for text in columns.values():
        value = SAMPLES[text][1][0]
        values.append(dict(value) if "map<" in text else value)
    schema = load("everything").schema
    row = dict(zip(columns, values, strict=True))
    rows = [{"id": 1, **row}, {"id": 2, **dict.fromkeys(columns)}]
    frame = spark.createDataFrame([tuple(one[name] for name in schema.names) for one in rows], schema)
    frame.write.format("lockstep").mode("append").options(**options(cluster, "everything")).save()
    back = [one.asDict(recursive=True) for one in load("everything").orderBy("id").collect()]
    sent = [one.asDict(recursive=True) for one in frame.orderBy("id").collect()]
    assert back == sent


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("day = 3", EVENTS_PER_DAY),
        ("day IN (3, 5, 99999)", 2 * EVENTS_PER_DAY),
        ("day = 3 AND at < 4", 4),
        ("day IN (3, 4) AND what LIKE 'event 6%'", 10),
        ("day = 3 OR day = 8", 2 * EVENTS_PER_DAY),
        ("day > 297 AND at = 1", 2),
        ("what = 'event 77'", 1),
        ("day = -1", 0),
        ("day IS NULL", 0),
    ],
)
def test_filters_change_no_result(load: Load, condition: str, rows: int) -> None:
    plain = sorted(load().where(condition).collect())
    pushed = sorted(load(filterPushdown="true").where(condition).collect())
    assert plain == pushed
    assert len(plain) == rows


def test_a_key_filter_reads_one_partition(load: Load) -> None:
    assert load(filterPushdown="true").where("day = 3").rdd.getNumPartitions() == 1
    assert load().where("day = 3").rdd.getNumPartitions() > 1


def test_a_users_schema_prunes_columns(spark: SparkSession, cluster: LocalCluster) -> None:
    reading = spark.read.format("lockstep").options(**options(cluster, "events")).schema("at INT")
    assert reading.load().agg(F.max("at")).first()[0] == EVENTS_PER_DAY - 1


def test_a_limit_ends_early_and_leaves_the_source_usable(load: Load) -> None:
    assert len(load(batchRows="100", pageSize="50").limit(5).collect()) == 5
    assert load().count() == EVENT_ROWS


def test_the_guide_says_what_works(
    spark: SparkSession,
    cluster: LocalCluster,
    load: Load,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text()
    connection = connect(cluster)
    [create] = re.findall(r"CREATE TABLE shop\.orders .*\)(?=\")", guide)
    # There from an attempt before, where this is the second one.
    connection.query("DROP TABLE IF EXISTS shop.orders")
    connection.query(create)
    connection.close()
    code = "\n".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL))
    hosts, given = "127.0.0.1,127.0.0.2", ",".join(cluster.contact_points)
    assert hosts in code and 'hosts="127.0.0.1"' in code
    code = code.replace(f'"{hosts}"', f'"{given}", "port": "{PORTS[0]}"')
    code = code.replace('hosts="127.0.0.1"', f'hosts="{given}", port="{PORTS[0]}"')
    # Java's working directory is fixed once it runs, so the file is named in full.
    code = code.replace('"orders.parquet"', repr(str(tmp_path / "orders.parquet")))
    exec(compile(code, "the guide", "exec"), {})  # noqa: S102
    assert "|       0|" in capfd.readouterr().out
    assert spark.read.parquet(str(tmp_path / "orders.parquet")).count() == 10_000
    # A traceback of Python 3.13 shows all lines of the statement that raised, and the message behind them.
    known = re.findall(r"valid options: (.*?)(?:$|\n)", str(_refused(load)))[-1]
    assert all(f"`{name}`" in guide for name in known.split(", "))


def _refused(load: Load) -> BaseException:
    with pytest.raises(AnalysisException) as caught:
        load(nonsense="1")
    return caught.value


def test_an_unknown_option_lists_the_known_ones(load: Load) -> None:
    with pytest.raises(AnalysisException, match="valid options: hosts, port, keyspace"):
        load(nonsense="1")


def test_a_write_that_cannot_work_fails_before_any_task(spark: SparkSession, cluster: LocalCluster) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS INT) AS day", "'x' AS what")
    writing = frame.write.format("lockstep").options(**options(cluster, "events"))
    for mode in ("append", "overwrite"):
        with pytest.raises(AnalysisException, match=r"lacks key column at of shop\.events"):
            writing.mode(mode).save()
    with pytest.raises(AnalysisException, match="mode overwrite replaces what is in"):
        writing.option("writeMode", "statements").mode("overwrite").save()
