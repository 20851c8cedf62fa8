"""What `topology watch` draws, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lockstep.cli.main import root
from lockstep.cli.shared.watch import Screen
from lockstep.cli.shared.watch import tree_lines as lines_of
from lockstep.documents import read
from lockstep.documents.requests import Request
from tests.cli.fake_admin import FakeAdmin, node

RUNNING: dict[str, Any] = {
    "id": "7", "kind": "decommission", "node": 4, "state": "running", "actor": "an operator, through node 1",
    "path": [
        {"stage": "prepared", "state": "done", "epoch": 12},
        {"stage": "write_both_read_old", "state": "current", "epoch": 13},
        {"stage": "write_both_read_new", "state": "to come", "epoch": None},
    ],
    "barrier": {"epoch": 13, "seen": [1, 2], "unseen": [{"node": 3, "epoch": 12}, {"node": 5, "epoch": 9}]},
    "work": [
        {"node": 1, "kind": "stream", "state": "running", "text": "", "bytes": 3 << 20,
         "total_bytes": 12 << 20, "rate_bytes_s": 1 << 20, "left_s": 9, "files_done": 2, "files_total": 8},
        {"node": 2, "kind": "stream", "state": "waiting", "text": ""},
    ],
    "waiting": [
        {"node": 3, "reason": "last seen epoch 12, needs 13 (receives ranges)", "since_s": 4.25},
        {"node": 1, "reason": "stream is running", "since_s": 1.0},
    ],
}  # fmt: skip

TREE = """\
request 7  decommission of node 4  running  asked by an operator, through node 1
├─ ✓ prepared  epoch 12
├─ ▶ write_both_read_old  epoch 13
│  ├─ barrier on epoch 13: seen by 1, 2
│  │  ├─ ! node 3: last seen epoch 12, needs 13 (receives ranges) (4.2 s)
│  │  └─ node 5 has not seen it, and need not: last seen epoch 9
│  ├─ stream on node 1  running  3.0 MiB of 12.0 MiB, 25%, 1.0 MiB/s, 9 s left, 2 of 8 files
│  └─ stream on node 2  waiting
└─ · write_both_read_new"""


def ask(answers: dict[str, Any], *arguments: str) -> tuple[Result, FakeAdmin]:
    with FakeAdmin(answers) as fake:
        made = CliRunner().invoke(root, ["topology", "watch", *arguments, "--host", fake.host])
    return made, fake


def tree_lines(answer: dict[str, Any], *, ages: bool = True) -> list[str]:
    return lines_of(read(Request, answer), ages=ages)


def test_a_request_that_moves_tablets_has_a_bar_that_fills() -> None:
    progress = {"tablets_left": 12, "tablets_total": 32, "left_bytes": 34 << 20, "left_s": 12,
                "ranges_done": 4, "ranges_total": 16}  # fmt: skip
    lines = tree_lines({**RUNNING, "progress": progress})
    assert lines[1] == "├─ ████████████░░░░░░░░ 20 of 32 tablet replicas, 34.0 MiB left, about 12 s left"
    assert (
        lines[1][: -len(", about 12 s left")] == tree_lines({**RUNNING, "progress": progress}, ages=False)[1]
    )
    drained = {**RUNNING, "path": [], "state": "queued", "progress": {"tablets_left": 3, "left_bytes": 0}}
    assert "├─ 3 tablet replicas left" in tree_lines(drained) or "└─ 3 tablet replicas left" in tree_lines(
        drained
    )
    assert "tablet" not in "".join(tree_lines({**RUNNING, "progress": {}}))


def test_the_tree_shows_stages_barrier_work_and_what_is_waited_for() -> None:
    assert "\n".join(tree_lines(RUNNING)) == TREE


def test_what_changes_by_itself_is_left_out_where_lines_are_compared() -> None:
    later = {**RUNNING, "waiting": [{**one, "since_s": one["since_s"] + 1} for one in RUNNING["waiting"]]}
    assert tree_lines(later) != tree_lines(RUNNING)
    assert tree_lines(later, ages=False) == tree_lines(RUNNING, ages=False)


def test_a_queued_request_names_its_holder() -> None:
    reason = "operation 3 (move of node 2) holds range (1, 5] of SimpleStrategy"
    queued = {"id": "8", "kind": "remove", "node": 5, "state": "queued",
              "waiting": [{"node": 2, "operation": 3, "reason": reason}]}  # fmt: skip
    assert tree_lines(queued) == [
        "request 8  remove of node 5  queued",
        "└─ ! waits: operation 3 (move of node 2) holds range (1, 5] of SimpleStrategy",
    ]


def test_an_ended_one_says_why_and_when() -> None:
    ended = {"id": "8", "kind": "remove", "node": 5, "state": "cancelled",
             "reason": "cancelled by an operator", "requested_epoch": 5,
             "began_epoch": 6, "ended_epoch": 9}  # fmt: skip
    assert tree_lines(ended)[1:] == [
        "├─ ! cancelled by an operator",
        "└─ asked for at epoch 5, began at 6, ended at epoch 9",
    ]


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1), ("cancelled", 1)])
def test_the_exit_code_is_the_outcome(state: str, code: int) -> None:
    ended = {**RUNNING, "state": state, "path": []}
    made, fake = ask({"GET /v1/requests/7": [RUNNING, RUNNING, ended]}, "7")
    assert made.exit_code == code, made.output
    assert len(fake.calls) == 3 and made.output.count("prepared") == 1


def test_time_that_is_up_exits_with_5_and_once_with_0() -> None:
    answers = {"GET /v1/requests/7": RUNNING}
    made, _ = ask(answers, "7", "--timeout", "0")
    assert made.exit_code == 5 and "request 7 still runs" in made.output
    made, _ = ask({**answers, "GET /v1/requests": {"requests": [RUNNING]}}, "--once")
    assert made.exit_code == 0 and TREE in made.output


def test_json_is_a_line_for_each_change() -> None:
    moved = {**RUNNING, "work": [{**RUNNING["work"][0], "bytes": 6 << 20}]}
    made, _ = ask({"GET /v1/requests/7": [RUNNING, moved, {**RUNNING, "state": "done"}]}, "7", "-o", "json")
    documents = [json.loads(line) for line in made.stdout.splitlines()]
    assert [one["state"] for one in documents] == ["running", "running", "done"]
    assert all(one["schema"] == "request/1" for one in documents)


def test_a_node_that_does_not_answer_for_a_while_is_asked_again() -> None:
    down = (503, {"message": "no leader"})
    made, _ = ask({"GET /v1/requests/7": [RUNNING, down, {**RUNNING, "state": "done"}]}, "7")
    assert made.exit_code == 0 and "no answer: no leader" in made.output


def test_who_may_ask_for_a_request_and_not_see_it_is_told_that_it_goes_on() -> None:
    refused = 403, {"code": "CQL_UNAUTHORIZED", "message": "User ops has no SELECT permission"}
    nodes = {"nodes": [node(4)]}
    answers = {"GET /v1/nodes": nodes, "POST /v1/requests": RUNNING, "GET /v1/requests/7": refused}
    with FakeAdmin(answers) as fake:
        made = CliRunner().invoke(root, ["topology", "decommission", "4", "--host", fake.host])
    assert made.exit_code == 5 and "request 7 has begun" in made.stderr
    assert "`lockstep topology cancel 7` ends it" in made.stderr
    made, _ = ask({"GET /v1/requests/7": refused}, "7")
    assert made.exit_code == 1 and "error[CQL_UNAUTHORIZED]" in made.stderr


def test_nothing_to_watch_is_told() -> None:
    made, _ = ask({"GET /v1/requests": {"requests": [{"id": "1", "state": "done"}]}})
    assert (made.exit_code, made.output) == (0, "nothing is queued or running\n")


def test_without_a_terminal_counting_on_is_not_printed_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    for moved in range(4):
        work = [{**RUNNING["work"][0], "bytes": moved << 20}]
        screen.show([{**RUNNING, "work": work}], "")
    assert capsys.readouterr().out.count("request 7") == 1
    screen.show([{**RUNNING, "waiting": []}], "")
    assert capsys.readouterr().out.count("request 7") == 1
