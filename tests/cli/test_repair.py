"""`lockstep repair` against an admin API of canned answers."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from lockstep.cli.main import root
from tests.cli.fake_admin import FakeAdmin

PROGRESS = {
    "ranges": 3,
    "ranges_done": 3,
    "ranges_failed": 0,
    "leaves": 12,
    "leaves_different": 2,
    "changes_sent": 1,
    "bytes_sent": 2048,
}
RUNNING = {"schema": "repair/1", "id": 4, "state": "running", "progress": {**PROGRESS, "ranges_done": 1}}
DONE = {**RUNNING, "state": "done", "progress": PROGRESS}
FAILED = {**DONE, "state": "failed", "reason": "1 of 3 ranges: node 2 is gone"}


def ask(answers: dict[str, Any], *arguments: str) -> tuple[Result, FakeAdmin]:
    with FakeAdmin(answers) as fake:
        return CliRunner().invoke(root, ["repair", *arguments, "--host", fake.host]), fake


def test_a_repair_is_followed_to_its_end() -> None:
    result, fake = ask(
        {"POST /v1/repairs": RUNNING, "GET /v1/repairs/4": [RUNNING, DONE]},
        *("ks.t", "--incremental", "--dc", "east", "--range", "-5:7"),
    )
    assert result.exit_code == 0
    assert result.stdout == "repair 4 done, 3 of 3 ranges, 2 of 12 leaves differed, 1 change sent (2.0 KiB)\n"
    assert fake.calls[0][1] == {
        "keyspace": "ks",
        "table": "t",
        "incremental": True,
        "full": False,
        "dcs": ["east"],
        "ranges": [[-5, 7]],
    }


def test_a_failure_is_told_and_a_wait_that_ends_early_says_that_it_goes_on() -> None:
    result, _ = ask({"POST /v1/repairs": RUNNING, "GET /v1/repairs/4": FAILED}, "ks")
    assert result.exit_code == 1
    assert "  1 of 3 ranges: node 2 is gone" in result.stdout
    result, _ = ask({"POST /v1/repairs": RUNNING, "GET /v1/repairs/4": RUNNING}, "--timeout", "0")
    assert result.exit_code == 5
    assert "lockstep repair --cancel 4" in result.stderr
    result, _ = ask({"DELETE /v1/repairs/4": {**DONE, "state": "cancelled"}}, "--cancel", "4", "-o", "json")
    assert json.loads(result.stdout)["state"] == "cancelled"


def test_who_may_begin_a_repair_and_not_see_it_is_told_that_it_goes_on() -> None:
    refused = 403, {"code": "CQL_UNAUTHORIZED", "message": "User ops has no SELECT permission"}
    result, _ = ask({"POST /v1/repairs": RUNNING, "GET /v1/repairs/4": refused}, "ks")
    assert result.exit_code == 5
    assert "repair 4 has begun" in result.stderr and "User ops has no SELECT permission" in result.stderr
    assert "it goes on: `lockstep repair --cancel 4` ends it" in result.stderr
    result, _ = ask({"POST /v1/repairs": refused}, "ks")
    assert result.exit_code == 1 and "error[CQL_UNAUTHORIZED]" in result.stderr


def test_a_preview_asks_for_nothing_else_and_a_wrong_range_for_nothing_at_all() -> None:
    plan = {
        "schema": "repair-plan/1",
        "refused": "node 2 would take part and cannot be reached",
        "driver": 1,
        "keyspaces": [{"keyspace": "ks", "tables": ["t"], "ranges": 3}],
        "participants": [{"node": 1, "bytes": 10}, {"node": 2, "bytes": None}],
        "steps": ["an entry opens a session"],
        "records": "which ranges were repaired",
        "way_back": "can be ended at any time",
        "changes": [],
    }
    result, fake = ask({"POST /v1/repairs": plan}, "ks", "--preview")
    assert result.exit_code == 0
    assert "would be refused: node 2" in result.stdout and "unknown" in result.stdout
    assert [body["dry_run"] for _, body in fake.calls] == [True]
    result, fake = ask({}, "ks", "--range", "5")
    assert result.exit_code == 2 and not fake.calls


def test_what_is_waited_for_and_what_disagreed_is_told() -> None:
    waits = [
        {"group": 1, "left": -5, "right": 7, "lacking": 3},
        {"group": 1, "left": 7, "right": 9, "lacking": 1},
    ]
    waiting = {**RUNNING, "progress": {**PROGRESS, "ids_lacking": 4, "waits_for": waits}}
    result, fake = ask({"POST /v1/repairs": waiting}, "ks", "--no-wait")
    assert "4 ids lacking, 3 of (-5, 7]" in result.stdout
    body = fake.calls[0][1]
    assert (body["full"], body["incremental"]) == (False, False)
    place = {"keyspace": "ks", "table": "t", "range": [-5, 7], "token": 1, "key": "00000007"}
    data = {**place, "lacks": [{"node": 3, "count": 1}], "holds": [1, 2], "wrong": "data"}
    ids = {**place, "lacks": [{"node": 1, "count": 2}, {"node": 3, "count": 2}], "holds": [2], "wrong": "ids"}
    found = {**DONE, "progress": {**PROGRESS, "full": True, "disagreements": 2, "disagree": [data, ids]}}
    result, fake = ask({"POST /v1/repairs": RUNNING, "GET /v1/repairs/4": found}, "ks", "--full")
    assert fake.calls[0][1]["full"] is True
    assert "data and ids disagreed in 2 partitions" in result.stdout
    assert (
        "  ks.t key 0x00000007 in (-5, 7]: node 3 lacked 1 row that node 1, node 2 had; "
        "its ids claim them: data is wrong\n"
    ) in result.stdout
    assert (
        "node 1 lacked 2 rows, node 3 lacked 2 rows that node 2 had; more lack them: ids are wrong"
        in result.stdout
    )
