"""The commands of `lockstep pipeline` as far as they get without Spark: plans, mistakes, a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from lockstep.cli.main import root
from lockstep.cli.shared import jobs, render
from lockstep.local.clusters import LocalCluster
from lockstep.spark.jobs.audit import AuditReport, Unanswered
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .support import NOBODYS_ADDRESS, PORTS, connect


def run(*arguments: str, host: str = NOBODYS_ADDRESS) -> Result:
    return CliRunner().invoke(root, ["pipeline", *arguments], env={"LOCKSTEP_HOST": f"{host}:{PORTS[2]}"})


def test_a_sweep_says_what_it_would_run() -> None:
    told = run("sweep", "--scenario", "quorums", "--seeds", "40", "--dry-run")
    assert (told.exit_code, told.output) == (0, "runs 40 seeds of quorums, 2 twice\n")
    plan = json.loads(run("sweep", "--seeds", "3", "--dry-run", "-o", "json").output)
    assert (plan["schema"], plan["seeds"], len(plan["scenarios"])) == ("sweep-plan/1", 3, 3)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sweep", "--scenario", "nothing"], "no scenario 'nothing'"),
        (["sweep", "--plant", "nothing@1"], "no planted bug 'nothing'"),
        (["export", "events", "--to", "x"], "'events' is not KEYSPACE.TABLE"),
        (["export", "shop.events", "--to", "x", "--option", "hosts"], "--option 'hosts' is not NAME=VALUE"),
        (["load", "shop.events"], "Missing option '--from'"),
        (["verify", "shop.events"], "Missing argument 'B'"),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], problem: str) -> None:
    told = run(*arguments)
    assert told.exit_code == 2 and "error[CONFIGURATION]" in told.output
    assert problem in told.output and "Traceback" not in told.output


def test_a_cluster_that_is_not_there_is_unreachable() -> None:
    told = run("export", "shop.events", "--to", "x", "--port", str(PORTS[0]))
    assert told.exit_code == 4 and "none of the hosts answers" in told.output
    assert run("history").exit_code == 4


def test_a_host_needs_no_port() -> None:
    told = run("export", "shop.events", "--to", "x", "--port", str(PORTS[0]), "--host", NOBODYS_ADDRESS)
    assert told.exit_code == 4 and "none of the hosts answers" in told.output


def test_plans_of_a_cluster(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.local.clusters.layout.clusters_home", lambda: cluster.paths.root.parent)
    host, port = cluster.contact_points[0], str(PORTS[0])
    shared = ("--port", port, "--dry-run")
    told = run("export", "shop.events", "--to", str(tmp_path / "new"), *shared, host=host)
    assert told.exit_code == 0 and "reads shop.events at LOCAL_QUORUM" in told.output
    (tmp_path / "in.csv").write_text("day,at,what\n1,2,x\n")
    told = run("load", "shop.events", "--from", str(tmp_path / "in.csv"), *shared, host=host)
    assert told.output == "reads 1 csv file, 18 B\nwrites day, at, what of shop.events\n"
    told = run("verify", "shop.events", "shop.events", *shared, host=host)
    assert told.exit_code == 0 and "compares day, at, what by 4096 digests a side" in told.output
    told = run("audit", "shop.events", "-o", "json", *shared, host=host)
    plan = json.loads(told.output)
    assert plan["schema"] == "audit-plan/1" and len(plan["replicas"]) == 3
    told = run("history", "--dry-run", host=host)
    assert told.exit_code == 0 and told.output.startswith("reads epochs 1 to ")
    told = run("history", "--from", "1000000", host=host)
    assert told.exit_code == 2 and "are no range" in told.output


#: A bucket with its replica that did not answer, or not with rows.
_SILENT = (Unanswered(0, 9, 3, "no node answers"),)


@pytest.mark.parametrize(
    ("outcome", "code", "last_line"),
    [
        ({}, 0, "all replicas hold the same"),
        ({"complete": False, "unanswered": _SILENT}, 6, "all replicas that answered hold the same"),
        (
            {"equal": False, "complete": False, "unread": ((0, 9),), "unanswered": _SILENT},
            6,
            "replicas may differ in 1 bucket, whose rows were not told",
        ),
        ({"equal": False, "different": 2, "wrong": ((0, 9),)}, 1, "2 differences in 1 bucket"),
        (
            {"equal": False, "complete": False, "different": 2, "wrong": ((0, 9),), "unanswered": _SILENT},
            1,
            "2 differences in 1 bucket",
        ),
    ],
)
def test_an_audit_ends_with_the_code_of_its_outcome(
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    outcome: dict[str, Any],
    code: int,
    last_line: str,
) -> None:
    whole = AuditReport("t", 1, True, True, 9, ((1, 5),), 0, 0, (), False, (), (), (), 0.5)
    report = msgspec.structs.replace(whole, **outcome)
    monkeypatch.setattr(jobs, "run", lambda *_: report)
    shared = ("audit", "shop.events", "--port", str(PORTS[0]))
    told = run(*shared, host=cluster.contact_points[0])
    assert (told.exit_code, told.output.splitlines()[-1]) == (code, last_line)
    assert ("node 3 did not answer for (0, 9]: no node answers" in told.output) is bool(report.unanswered)
    told = run(*shared, "-o", "json", host=cluster.contact_points[0])
    assert told.exit_code == code and json.loads(told.output)["schema"] == "audit/1"


def test_what_an_audit_found_in_a_tracked_table_is_repaired_by_comparing_data(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ids are alike: a wait for them would end at once and mend nothing."""
    monkeypatch.setattr("lockstep.local.clusters.layout.clusters_home", lambda: cluster.paths.root.parent)
    connection = connect(cluster)
    connection.query(
        "CREATE KEYSPACE followed WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} "
        "AND replication_type = 'tracked'"
    )
    connection.query("CREATE TABLE followed.t (id int PRIMARY KEY, v text)")
    connection.query("INSERT INTO followed.t (id, v) VALUES (1, 'a')", (), Consistency.ALL)
    report = AuditReport(
        "followed.t", 1, False, True, 9, ((1, 1),), 1, 0, (), False, ((TOKEN_MIN, TOKEN_MAX),), (), (), 0.5
    )
    monkeypatch.setattr(jobs, "run", lambda *_: report)
    host = cluster.contact_points[0]
    told = run("audit", "followed.t", "--repair", "--port", str(PORTS[0]), host=host)
    connection.query("DROP KEYSPACE followed")
    connection.close()
    assert told.exit_code == 0, told.output
    (ran, *_) = cluster.admin("n1").get("/v1/repairs")["repairs"]
    assert ran["state"] == "done" and ran["progress"]["full"] and ran["progress"]["leaves"] > 0


def test_a_package_that_is_missing_is_named() -> None:
    def missing(job: jobs.JobCall) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow.parquet'", name="pyarrow.parquet")

    shared = {"hosts": "", "port": 9042, "options": (), "master": "", "conf": ()}
    with pytest.raises(ConfigurationError, match=r"package pyarrow\.parquet is not installed") as told:
        jobs._called(missing)(call=render.Call("h", 1.0, "table"), **shared)
    assert "lockstep-db[spark]" in told.value.hint


def test_phases_are_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    told = jobs.Told()
    told.phase("reading")
    told.at(1, 2)
    told.close()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "reading\n")


def test_a_bar_is_drawn_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    bar = jobs.Bar()
    bar.phase("reading")
    bar.at(1, 2)
    bar.phase("writing")
    bar.close()
    captured = capsys.readouterr()
    assert captured.out == "" and "reading" in captured.err and "2/2" in captured.err
