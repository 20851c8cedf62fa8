"""`lockstep gossip info` prints what the asked node knows of all."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from lockstep.cli.main import root
from tests.cli.fake_admin import FakeAdmin


def told(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "node": number, "host_id": f"h{number}", "address": f"127.0.0.{number}", "dc": "dc1", "rack": "rack1",
        "state": "normal", "tokens": 16, "alive": True, "preferred": True, "phi": 0.31, "silent_s": 0.2,
        "heard": True, "generation": 3, "version": 7, "age_s": 1.0, "ready": True, "load_bytes": 3 << 20,
        "release": "5.0.0", "epoch": 9, "schema_version": "ab", "streams": 0, "uptime_s": 60, **changes,
    }  # fmt: skip


ANSWER = {
    "schema": "gossip/1",
    "asked": 1,
    "phi_threshold": 8.0,
    "rounds": 60,
    "nodes": [
        told(1),
        told(2, preferred=False, phi=4.4),
        told(3, preferred=False, ready=False),
        {"node": 4, "address": "127.0.0.4", "state": "normal", "alive": False, "phi": 300.0, "heard": False},
    ],
}


def ask(path: str, answer: dict[str, Any], *arguments: str) -> Result:
    with FakeAdmin({f"GET {path}": answer}) as admin:
        return CliRunner().invoke(root, ["gossip", "info", "--host", admin.host, *arguments])


def test_each_node_is_a_line_and_the_threshold_is_told() -> None:
    lines = ask("/v1/gossip", ANSWER).output.splitlines()
    assert [line.split()[3] for line in lines[1:5]] == ["up", "slow", "not", "down"]
    assert "3.0 MiB" in lines[1] and "never heard" in lines[4]
    assert lines[5] == "seen from node 1; suspected from phi 8 on"


def test_one_node_is_shown_in_full() -> None:
    result = ask("/v1/gossip?node=2", {**ANSWER, "nodes": [told(2)]}, "--node", "2")
    assert {"node: 2", "ready: yes", "generation: 3", "phi: 0.31"} <= set(result.output.splitlines())


def test_programs_get_the_document() -> None:
    assert json.loads(ask("/v1/gossip", ANSWER, "-o", "json").output) == ANSWER
