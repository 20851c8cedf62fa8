"""Bulk loads as commands tell them, against an admin API of canned answers."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from lockstep.cli.main import root
from lockstep.cli.status import load_line
from lockstep.documents import read
from lockstep.documents.runs import LoadRun
from tests.cli.fake_admin import FakeAdmin

RUNNING = {
    "job": "nightly", "keyspace": "ks", "table": "t", "state": "running", "phase": "staging",
    "overwrites": False, "began_ms": 1_700_000_000_000, "age_s": 12.4, "lease_left_s": 587.6,
    "began_epoch": 40, "ended_epoch": None, "rows": 0, "bytes": 0, "staged_files": 3,
    "staged_bytes": 2048, "reason": "",
}  # fmt: skip
DONE = {**RUNNING, "job": "first", "state": "committed", "phase": "committed", "rows": 1000,
        "ended_epoch": 39, "lease_left_s": None, "staged_files": 0}  # fmt: skip
ENDED = {**RUNNING, "state": "aborted", "phase": "aborted", "reason": "wrong files", "ended_epoch": 44}
LOADS = {"schema": "loads/1", "node": 1, "epoch": 41, "loads": [RUNNING, DONE]}


def ask(answers: dict[str, Any], *arguments: str) -> tuple[Result, FakeAdmin]:
    with FakeAdmin(answers) as fake:
        return CliRunner().invoke(root, [*arguments, "--host", fake.host]), fake


def test_loads_are_listed_with_what_is_staged() -> None:
    result, _ = ask({"GET /v1/loads": LOADS}, "pipeline", "loads", "list")
    assert result.exit_code == 0, result.output
    first = next(line for line in result.stdout.splitlines() if line.startswith("nightly"))
    assert all(text in first for text in ("ks.t", "staging", "3 files, 2.0 KiB", "12", "588"))
    result, _ = ask({"GET /v1/loads": LOADS}, "pipeline", "loads", "list", "--running", "-o", "json")
    assert [one["job"] for one in json.loads(result.stdout)["loads"]] == ["nightly"]
    result, _ = ask({"GET /v1/loads": {**LOADS, "loads": []}}, "pipeline", "loads", "list")
    assert "no bulk load runs" in result.stdout


def test_a_load_is_cancelled_by_name_and_a_dry_run_changes_nothing() -> None:
    ended = {"schema": "load-end/1", "dry_run": False, "load": ENDED}
    result, fake = ask({"POST /v1/loads/cancel": ended}, *("pipeline", "loads", "cancel", "nightly"),
                       *("--reason", "wrong files"))  # fmt: skip
    assert result.stdout == "load nightly of ks.t is aborted: wrong files\n"
    assert fake.calls == [
        ("POST /v1/loads/cancel", {"job": "nightly", "dry_run": False, "reason": "wrong files"})
    ]
    planned = {"schema": "load-end/1", "dry_run": True, "load": RUNNING}
    result, fake = ask(
        {"POST /v1/loads/cancel": planned}, "pipeline", "loads", "cancel", "nightly", "--dry-run"
    )
    assert result.stdout == "would end load nightly of ks.t: 3 files, 2.0 KiB staged here\n"
    assert fake.calls[0][1] == {"job": "nightly", "dry_run": True}


def test_why_says_what_keeps_a_load_from_its_table() -> None:
    late = {**RUNNING, "lease_left_s": 5.0}
    told = {**LOADS, "loads": [late, DONE, {**ENDED, "job": "given-up"}]}
    result, _ = ask({"GET /v1/loads": told}, "why", "load:nightly")
    assert "it was not committed yet: its job has run for 12 s" in result.stdout
    assert "its lease ends in 5 s" in result.stdout
    result, _ = ask({"GET /v1/loads": told}, "why", "load:first")
    assert "it is part of ks.t since epoch 39, 1000 rows" in result.stdout
    result, _ = ask({"GET /v1/loads": told}, "why", "load:given-up")
    assert "it was aborted at epoch 44: wrong files" in result.stdout
    result, _ = ask({"GET /v1/loads": told}, "why", "load:other")
    assert result.exit_code != 0 and "no load is called other" in result.output


def test_status_has_a_line_for_each_that_runs() -> None:
    assert load_line(read(LoadRun, RUNNING)) == (
        "load nightly of ks.t: staging, 3 files, 2.0 KiB staged here, runs for 12 s, lease ends in 588 s"
    )
    assert load_line(read(LoadRun, {**RUNNING, "overwrites": True, "staged_files": 0})).startswith(
        "load nightly of ks.t: staging, replaces the table, runs for"
    )
