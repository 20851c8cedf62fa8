"""Read sessions as commands tell them, against admin APIs of canned answers."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from lockstep.cli.main import root
from lockstep.cli.status import session_line
from lockstep.documents import read
from lockstep.documents.runs import ReadSessionRun
from tests.cli.fake_admin import FakeAdmin, node

SESSION = {
    "id": "abc", "keyspace_name": "ks", "table_name": "t", "epoch": 41, "opened": 1_700_000_000_000,
    "lease_ms": 600_000, "lease_left_ms": 500_400,
}  # fmt: skip
LIST = "GET /v1/read-sessions"
END = "DELETE /v1/read-sessions/abc"


def answer(number: int, *sessions: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "read-sessions/1", "node": number, "read_sessions": list(sessions)}


def ask(
    first: dict[str, Any], second: dict[str, Any], *arguments: str
) -> tuple[Result, FakeAdmin, FakeAdmin]:
    """Against two nodes; a third one does not answer where `--silent` is asked for."""
    silent = "--silent" in arguments
    wanted = [one for one in arguments if one != "--silent"]
    with FakeAdmin(first) as one, FakeAdmin(second) as other:
        nodes = [
            node(number, address=fake.address, admin_port=fake.port)
            for number, fake in ((1, one), (2, other))
        ]
        if silent:
            nodes.append(node(3, address="127.0.0.1", admin_port=1))
        one.answers["GET /v1/nodes"] = {"schema": "nodes/1", "epoch": 42, "nodes": nodes}
        return CliRunner().invoke(root, [*wanted, "--host", one.host]), one, other


def test_a_session_is_listed_once_with_its_nodes() -> None:
    later = {**SESSION, "id": "later", "opened": 1_700_000_009_000}
    first, second = answer(1, later, SESSION), answer(2, {**SESSION, "lease_left_ms": 590_000})
    result, _, _ = ask({LIST: first}, {LIST: second}, "pipeline", "sessions", "list")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["abc", "later"]
    assert all(text in lines[1] for text in ("ks.t", "41", "590", "1, 2"))
    result, _, _ = ask({LIST: first}, {LIST: second}, "pipeline", "sessions", "list", "-o", "json")
    told = json.loads(result.stdout)
    assert told["schema"] == "read-session-list/1"
    assert [(one["id"], one["nodes"]) for one in told["sessions"]] == [("abc", [1, 2]), ("later", [1])]
    result, _, _ = ask({LIST: answer(1)}, {LIST: answer(2)}, "pipeline", "sessions", "list")
    assert "no read session is open" in result.stdout


def test_nodes_that_do_not_answer_are_named() -> None:
    known = {LIST: answer(1, SESSION)}
    result, _, _ = ask(known, {LIST: answer(2)}, "pipeline", "sessions", "list", "--silent")
    assert result.exit_code == 6
    assert "node 3 did not answer" in result.stdout


def test_a_session_is_ended_at_every_node_that_has_it() -> None:
    known = {LIST: answer(1, SESSION), END: answer(1)}
    result, one, other = ask(known, {LIST: answer(2)}, "pipeline", "sessions", "cancel", "abc")
    assert result.stdout == "ended read session abc of ks.t at 1 node\n", result.output
    assert (END, None) in one.calls and (END, None) not in other.calls
    both = {LIST: answer(2, SESSION), END: (500, {"message": "broken"})}
    result, one, other = ask(known, both, "pipeline", "sessions", "cancel", "abc")
    assert result.exit_code == 6 and "node 2 did not answer" in result.stdout
    result, one, _ = ask(
        known, {LIST: answer(2, SESSION)}, "pipeline", "sessions", "cancel", "abc", "--dry-run"
    )
    assert result.stdout == "would end read session abc of ks.t at 2 nodes\n"
    assert (END, None) not in one.calls
    result, _, _ = ask({LIST: answer(1)}, {LIST: answer(2)}, "pipeline", "sessions", "cancel", "abc")
    assert (
        result.exit_code != 0 and "there is no read session abc: it has ended, or never was" in result.output
    )


def test_why_says_what_keeps_a_session() -> None:
    late = {**SESSION, "lease_left_ms": 5_000}
    result, _, _ = ask({LIST: answer(1, late)}, {LIST: answer(2)}, "why", "session:abc")
    assert "its job keeps what ks.t was at epoch 41 on nodes 1" in result.stdout, result.output
    assert "its lease ends in 5 s" in result.stdout
    result, _, _ = ask({LIST: answer(1, late)}, {LIST: answer(2)}, "why", "session:other")
    assert result.exit_code != 0 and "there is no read session other" in result.output


def test_status_has_a_line_for_each() -> None:
    assert session_line(read(ReadSessionRun, SESSION)) == (
        "read session abc of ks.t at epoch 41, lease ends in 500 s"
    )
