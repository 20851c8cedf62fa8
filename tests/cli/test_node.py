"""`lockstep node drain` against an admin API of canned answers."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from lockstep.cli.main import root
from tests.cli.fake_admin import FakeAdmin

SERVING = {
    "schema": "drain/1",
    "node": 2,
    "state": "serving",
    "connections": 3,
    "requests": 1,
    "cut": 0,
    "limit_ms": 15000,
}
DRAINING = {**SERVING, "state": "draining", "connections": 1}
DRAINED = {**SERVING, "state": "drained", "connections": 0, "requests": 0}


def drain(answers: dict[str, Any], *arguments: str) -> tuple[Result, FakeAdmin]:
    with FakeAdmin(answers) as fake:
        return CliRunner().invoke(root, ["node", "drain", *arguments, "--host", fake.host]), fake


def test_a_drain_is_followed_to_its_end() -> None:
    result, fake = drain({"POST /v1/drain": DRAINING, "GET /v1/drain": [DRAINING, DRAINED]})
    assert result.exit_code == 0
    assert result.stdout == "node 2 is drained: 0 connections, 0 requests in flight\n"
    assert fake.calls[0] == ("POST /v1/drain", {"dry_run": False})
    result, _ = drain({"POST /v1/drain": {**DRAINED, "cut": 2}}, "-o", "json")
    assert json.loads(result.stdout)["cut"] == 2


def test_a_dry_run_and_a_wait_that_ends_early_say_so() -> None:
    result, fake = drain({"POST /v1/drain": {**SERVING, "dry_run": True}}, "--dry-run")
    assert result.stdout == "node 2 would close 3 connections, 1 request in flight, in 15 s at most\n"
    assert fake.calls == [("POST /v1/drain", {"dry_run": True})]
    result, _ = drain({"POST /v1/drain": DRAINING, "GET /v1/drain": DRAINING}, "--timeout", "0")
    assert result.exit_code == 5
    result, _ = drain({"POST /v1/drain": DRAINING}, "--no-wait")
    assert result.stdout == "node 2 is draining: 1 connection, 1 request in flight\n"
