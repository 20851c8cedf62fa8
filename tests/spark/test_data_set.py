"""The guide that takes a data set through Spark does what it says, with a slice of the data; with all of them
when LOCKSTEP_FLIGHTS names the file."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import lockstep.spark
from lockstep.cli.main import root
from lockstep.local.clusters import LocalCluster
from lockstep.spark.jobs import running

from .support import PORTS, connect

PAGE = Path(__file__).parents[2] / "docs/guides/a-data-set-through-spark.md"
SLICE = Path(os.environ.get("LOCKSTEP_FLIGHTS", "") or Path(__file__).with_name("flights.csv"))
BLOCK = re.compile(r"<!-- (cql|sh|python) -->\n```\w+\n(.*?)```", re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        program, *arguments = line.split()
        assert program == "lockstep", line
        yield arguments


@pytest.mark.slow
def test_the_whole_way(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CSV, table, SQL, table, Parquet; the session is that of the other tests, the cluster too."""
    host = cluster.contact_points[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "open_session", lambda _settings: spark)
    monkeypatch.setattr(lockstep.spark, "session", lambda _app: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _session: None)
    monkeypatch.setenv("LOCKSTEP_HOST", f"{host}:{PORTS[2]}")
    monkeypatch.setattr("lockstep.local.clusters.layout.clusters_home", lambda: cluster.paths.root.parent)
    (tmp_path / "flights.csv").write_text(SLICE.read_text())
    connection = connect(cluster)
    printed = []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "cql":
            for statement in ("DROP KEYSPACE IF EXISTS nyc", *text.split(";\n")):
                if statement:
                    connection.query(statement)
        elif kind == "python":
            here = text.replace("127.0.0.1", host).replace('"keyspace"', f'"port": "{PORTS[0]}", "keyspace"')
            (tmp_path / "page.py").write_text(here)
            runpy.run_path(str(tmp_path / "page.py"))
        else:
            for arguments in commands(text):
                done = CliRunner().invoke(root, [*arguments, "--port", str(PORTS[0])], standalone_mode=False)
                printed.append(f"{done.output}\nexit {done.exit_code}")
                assert done.exit_code == 0, printed[-1]
    rows = len(SLICE.read_text().splitlines()) - 1
    told = "\n".join(printed)
    assert f"{rows:,} of {rows:,} rows written to nyc.flights" in told
    assert told.count("\nequal\n") == 2 and "all replicas hold the same" in told
    (found,) = connection.query("SELECT sum(flights) AS n, sum(late) AS late FROM nyc.delays")
    late = sum(
        int(line.split(",")[5]) > 15
        for line in SLICE.read_text().splitlines()[1:]
        if line.split(",")[5] != "NA"
    )
    assert (found["n"], found["late"]) == (rows, late)
    connection.close()
