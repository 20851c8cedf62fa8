"""Commands against a node with canned answers: what they ask, print, and exit with."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from lockstep.cli import topology
from lockstep.cli.cluster import _refuse_member
from lockstep.cli.main import root
from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.cli.why import _node_reasons
from lockstep.documents import read
from lockstep.documents.status import Status
from lockstep.local.clusters import LocalCluster
from lockstep.values.errors import ConfigurationError, PreconditionError
from tests.cli.fake_admin import FakeAdmin, node, status


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(root, list(arguments))


def ask(answers: dict[str, Any], *arguments: str) -> tuple[Result, FakeAdmin]:
    with FakeAdmin(answers) as fake:
        return run(*arguments, "--host", fake.host), fake


OPERATION = {
    "id": "17",
    "kind": "decommission",
    "node": 3,
    "stage": "write-both",
    "stage_epoch": 41,
    "waiting": [{"node": 2, "reason": "has not applied epoch 41", "since_s": 4.06}],
    "progress": {"bytes": 1_500_000, "fragments": 3412},
}


def test_status_shows_verdict_then_nodes_then_operations_with_reasons() -> None:
    nodes = [node(1), node(2, epoch=40), node(3, alive=False, voter=False, state="leaving")]
    answer = status(nodes=nodes, operations=[OPERATION], verdict="degraded: node 3 is down")
    result, _ = ask({"GET /v1/status": answer}, "status")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "degraded: node 3 is down",
        "cluster tour, 2 of 3 nodes alive, epoch 42 hash 9f3c1a2b4d5e, "
        "metadata leader: node 2, asked: 127.0.0.1",
        "",
        "node  address    dc   rack   alive  state    tokens  owns   epoch    metadata",
        "   1  127.0.0.1  dc1  rack1  up     normal       16  33.3%  42       voter",
        "   2  127.0.0.2  dc1  rack1  up     normal       16  33.3%  40 (-2)  leader",
        "   3  127.0.0.3  dc1  rack1  down   leaving      16  33.3%  42",
        "",
        "request 17: decommission of node 3, stage write-both since epoch 41, "
        "1.4 MiB streamed, 3,412 fragments",
        "  waits for node 2: has not applied epoch 41 (4.1 s)",
    ]


def test_json_is_the_nodes_answer_with_its_schema_first() -> None:
    result, _ = ask({"GET /v1/status": status()}, "status", "-o", "json")
    assert json.loads(result.stdout) == status()
    assert result.stdout.splitlines()[1] == '  "schema": "status/1",'


@pytest.mark.parametrize(
    ("arguments", "request_line", "schema"),
    [
        (["ring"], "GET /v1/nodes", "nodes/1"),
        (["ring", "shop"], "GET /v1/placements?keyspace=shop", "placements/1"),
        (["describe", "shop"], "GET /v1/describe?keyspace=shop", "describe/1"),
        (["describe", "shop.item"], "GET /v1/describe?keyspace=shop&table=item", "describe/1"),
        (["metadata", "show"], "GET /v1/metadata", "metadata/1"),
        (["metadata", "show", "--epoch", "7"], "GET /v1/metadata?epoch=7", "metadata/1"),
        (["metadata", "diff", "3", "9"], "GET /v1/metadata/diff?from=3&to=9", "metadata-diff/1"),
        (["cms", "describe"], "GET /v1/cms", "cms/1"),
        (
            ["recovery", "cluster", "states", "cmg"],
            "GET /management/v1/recovery/cmg/state/global",
            "group-global-state/1",
        ),
        (
            ["recovery", "cluster", "states", "metastorage", "--local", "--nodes", "1,2"],
            "GET /management/v1/recovery/metastorage/state/local?nodes=1%2C2",
            "group-local-states/1",
        ),
        (["topology", "requests"], "GET /v1/requests", "requests/1"),
        (["topology", "cancel", "17"], "DELETE /v1/requests/17", "request/1"),
    ],
)
def test_each_command_asks_for_its_path_and_prints_json_with_a_schema(
    arguments: list[str], request_line: str, schema: str
) -> None:
    result, fake = ask({request_line: {"value": 1}}, *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    assert fake.calls == [(request_line, None)]
    assert json.loads(result.stdout) == {"schema": schema, "value": 1}
    result, _ = ask({request_line: {"value": 1}}, *arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["remove", "3"], {"kind": "remove"}),
        (["decommission", "3", "--refuse"], {"kind": "decommission", "policy": "refuse"}),
        (["move", "3", "--token", "7", "--token", "9"], {"kind": "move", "tokens": [7, 9]}),
        (["rebuild", "3", "--from", "dc2"], {"kind": "rebuild", "source_dc": "dc2"}),
    ],
)
def test_operations_are_asked_for_with_what_they_need(arguments: list[str], body: dict[str, object]) -> None:
    answers = {"GET /v1/nodes": NODES, "POST /v1/requests": {"id": "17", "state": "queued"}}
    result, fake = ask(answers, "topology", *arguments, "--no-wait")
    assert result.exit_code == 0, result.output
    assert fake.calls[-1] == ("POST /v1/requests", {"node": 3, "dry_run": False, **body})


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (
            ["cmg", "--nodes", "3,4, 5"],
            {"nodes": ["3", "4", "5"], "dryRun": False},
            "cmg goes from nodes 1, 2, 3 to 3, 4, 5",
        ),
        (
            ["cmg", "--follow", "--dry-run"],
            {"nodes": [], "dryRun": True},
            "cmg would go from nodes 1, 2, 3 to the voters of metastorage, now 3, 4, 5",
        ),
    ],
)
def test_a_group_is_given_other_members(arguments: list[str], body: dict[str, object], said: str) -> None:
    path = "POST /management/v1/recovery/cmg/reconfigure"
    answer = {
        "group": "cmg",
        "before": [1, 2, 3],
        "after": [3, 4, 5],
        "follows": not body["nodes"],
        "dry_run": body["dryRun"],
    }
    result, fake = ask({path: answer}, "recovery", "cluster", "reconfigure", *arguments)
    assert (result.exit_code, result.output) == (0, said + "\n")
    assert fake.calls[-1] == (path, body)


@pytest.mark.parametrize(
    "arguments", [["cmg"], ["metastorage", "--follow"], ["cmg", "--follow", "--nodes", "1"]]
)
def test_a_group_is_given_members_or_follows(arguments: list[str]) -> None:
    result, fake = ask({}, "recovery", "cluster", "reconfigure", *arguments)
    assert result.exit_code == 2 and not fake.calls


def test_a_queued_request_is_listed_with_what_it_waits_for() -> None:
    reason = "at most 4 operations run at once"
    waiting = [{"node": None, "operation": 1, "rule": "parallel", "reason": reason}]
    row = {"id": "9", "kind": "move", "node": 2, "state": "queued", "requested_epoch": 8, "waiting": waiting}
    result, _ = ask({"GET /v1/requests": {"requests": [row]}}, "topology", "requests")
    assert "queued" in result.output and "from 8" in result.output
    assert "waits in the queue: at most 4 operations run at once" in result.output


def test_nodes_are_excluded_by_any_of_their_names() -> None:
    answers = {"GET /v1/nodes": NODES, "POST /v1/excluded": {"excluded": []}}
    result, fake = ask(answers, "topology", "exclude", "3", "--undo")
    assert (result.exit_code, result.output) == (0, "no node is excluded\n")
    wanted = {"nodes": [3], "undo": True, "reason": ""}
    assert fake.calls[-1] == ("POST /v1/excluded", wanted)


def test_ring_of_a_keyspace_lists_its_ranges_and_replicas() -> None:
    ranges = [{"start": -10, "end": 0, "reads": [1, 2], "writes": [1, 2, 3]}]
    answer = {"schema": "placements/1", "epoch": 42, "keyspace": "shop", "ranges": ranges}
    result, _ = ask({"GET /v1/placements?keyspace=shop": answer}, "ring", "shop")
    assert "keyspace shop, epoch 42, 1 ranges" in result.output
    assert "-10" in result.output
    assert "1 2 3" in result.output


def test_describe_prints_statements_that_can_be_piped_on() -> None:
    statements = [{"cql": "CREATE KEYSPACE a;"}, {"cql": "CREATE TABLE a.b (k int PRIMARY KEY);"}]
    result, _ = ask({"GET /v1/describe?keyspace=a": {"statements": statements}}, "describe", "a")
    assert result.output == "CREATE KEYSPACE a;\n\nCREATE TABLE a.b (k int PRIMARY KEY);\n"


def test_diff_shows_before_and_after_of_each_path() -> None:
    changes = [{"path": "nodes/3/state", "before": "normal", "after": "leaving"}, {"path": "x", "after": 1}]
    result, _ = ask({"GET /v1/metadata/diff?from=1&to=2": {"changes": changes}}, "metadata", "diff", "1", "2")
    assert result.output == "nodes/3/state\n  - normal\n  + leaving\nx\n  + 1\n"


def test_lists_of_names_are_told_without_brackets() -> None:
    answer = {"epoch": 3, "keyspaces": [{"name": "shop", "tables": ["item", "sale"]}]}
    result, _ = ask({"GET /v1/metadata": answer}, "metadata", "show")
    assert result.output.splitlines()[-1] == "shop  item, sale"


def test_diff_cuts_a_value_of_many_lines_for_people_but_not_in_json() -> None:
    answers = {"GET /v1/metadata/diff?from=1&to=2": {"changes": [{"path": "x", "after": "r" * 9000}]}}
    result, _ = ask(answers, "metadata", "diff", "1", "2")
    assert result.output == f"x\n  + {'r' * 300}… (8700 characters more: -o json)\n"
    whole, _ = ask(answers, "metadata", "diff", "1", "2", "-o", "json")
    assert json.loads(whole.stdout)["changes"][0]["after"] == "r" * 9000


def test_describe_takes_names_with_the_quotes_of_cql() -> None:
    answers = {"GET /v1/describe?keyspace=a&table=Mixed": {"statements": [{"cql": "CREATE TABLE a.b;"}]}}
    result, _ = ask(answers, "describe", 'a."Mixed"')
    assert result.output == "CREATE TABLE a.b;\n"


def test_another_protocol_at_the_port_is_said_without_its_bytes() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(b"\x84\x00\x00\x00\x00\x00\x00\x00\x02no\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    result = run("status", "--host", f"127.0.0.1:{listener.getsockname()[1]}")
    thread.join()
    listener.close()
    assert result.exit_code == 1
    assert result.output.endswith("did not answer with HTTP\nhint: is this a Lockstep admin port?\n")


def test_node_info_joins_identity_and_progress() -> None:
    result, _ = ask({"GET /v1/status": status()}, "node", "info", "-o", "json")
    facts = json.loads(result.stdout)
    assert (facts["schema"], facts["id"], facts["host_id"], facts["epoch"]) == ("node/1", 1, "h1", 42)
    assert facts["rack"] == "rack1"


def entries(first: int, last: int, branch: int = 10**9) -> list[dict[str, Any]]:
    """A hash chain; from epoch `branch` on it is another one."""

    def digest(epoch: int) -> str:
        return f"{'b' if epoch >= branch else 'a'}{epoch:04d}"

    return [
        {"epoch": e, "kind": "k", "actor": "n1", "term": 1, "previous_hash": digest(e - 1), "hash": digest(e)}
        for e in range(first, last + 1)
    ]


def test_cms_log_shows_the_newest_entries() -> None:
    answers = {
        "GET /v1/status": status(epoch=42),
        "GET /v1/metadata/log?from=13&to=42&available=true": {"entries": entries(13, 42)},
    }
    result, _ = ask(answers, "cms", "log")
    assert len(result.output.splitlines()) == 31
    assert result.output.splitlines()[-1].startswith("   42  k")


@pytest.mark.parametrize("asked", [("--from", "5", "--to", "3"), ("--from", "99"), ("--from", "-5")])
def test_cms_log_refuses_what_is_no_range(asked: tuple[str, ...]) -> None:
    result, _ = ask({"GET /v1/status": status(epoch=42)}, "cms", "log", *asked)
    assert (result.exit_code, "are no range" in result.output) == (2, True), result.output


def test_cms_log_says_when_there_is_nothing() -> None:
    result, _ = ask(
        {"GET /v1/metadata/log?from=90&to=99": {"entries": []}}, "cms", "log", "--from", "90", "--to", "99"
    )
    assert (result.exit_code, result.output) == (0, "no entries from epoch 90 to 99\n")


def test_a_long_log_is_fetched_in_parts() -> None:
    answers = {
        "GET /v1/metadata/log?from=1&to=256": {"entries": entries(1, 200)},
        "GET /v1/metadata/log?from=201&to=300": {"entries": entries(201, 300)},
    }
    result, fake = ask(answers, "cms", "log", "--from", "1", "--to", "300", "-o", "json")
    assert [e["epoch"] for e in json.loads(result.stdout)["entries"]] == list(range(1, 301))
    assert len(fake.calls) == 2


NODES = {"nodes": [node(1), node(2), node(3)]}


@pytest.mark.parametrize("name", ["3", "127.0.0.3", "00000000-0000-0000-0000-000000000003"])
def test_decommission_finds_its_node_by_any_name_and_waits_for_the_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology.time, "sleep", lambda seconds: None)
    running = {"id": "17", "kind": "decommission", "node": 3, "state": "running"}
    answers = {
        "GET /v1/nodes": NODES,
        "POST /v1/requests": {"id": "17", "state": "queued"},
        "GET /v1/requests/17": [
            {**running, "state": "queued"},
            running | OPERATION,
            running | {"state": "done"},
        ],
    }
    result, fake = ask(answers, "topology", "decommission", name)
    assert result.exit_code == 0, result.output
    assert ("POST /v1/requests", {"kind": "decommission", "node": 3, "dry_run": False}) in fake.calls
    assert "waits for node 2: has not applied epoch 41" in result.stderr
    assert result.stdout == "request 17 done: decommission of node 3\n"


def test_a_dry_run_changes_nothing_and_prints_the_plan() -> None:
    plan = {
        "schema": "request-plan/1",
        "steps": [{"stage": "write-both", "asked": [1, 2]}],
        "reversible_until": "x",
    }
    result, fake = ask(
        {"GET /v1/nodes": NODES, "POST /v1/requests": plan}, "topology", "decommission", "2", "--dry-run"
    )
    assert fake.calls[-1][1] == {"kind": "decommission", "node": 2, "dry_run": True}
    assert "write-both" in result.output


def test_no_wait_returns_at_once_with_the_id() -> None:
    answers = {"GET /v1/nodes": NODES, "POST /v1/requests": {"id": "17", "state": "queued"}}
    result, fake = ask(answers, "topology", "decommission", "2", "--no-wait", "-o", "json")
    assert json.loads(result.stdout) == {"schema": "request/1", "id": "17", "state": "queued"}
    assert len(fake.calls) == 2


def test_a_wait_that_ends_early_prints_the_id_and_exits_5() -> None:
    answers = {
        "GET /v1/nodes": NODES,
        "POST /v1/requests": {"id": "17"},
        "GET /v1/requests/17": {"id": "17", "state": "running"},
    }
    result, _ = ask(answers, "topology", "decommission", "2", "--timeout", "0")
    assert result.exit_code == 5
    assert "error[OUTCOME_UNKNOWN]: request 17 still runs" in result.stderr
    assert "hint: lockstep topology watch 17" in result.stderr


def test_a_failed_request_fails_the_command() -> None:
    answers = {"GET /v1/requests/9": {"id": "9", "state": "failed", "reason": "node 2 died"}}
    result, _ = ask(answers, "topology", "watch", "9")
    assert result.exit_code == 1
    assert "node 2 died" in result.stdout


def test_watch_follows_what_runs() -> None:
    done = {"id": "9", "state": "done"}
    answers = {
        "GET /v1/requests": {"requests": [{"id": "8", "state": "done"}, {"id": "9", "state": "running"}]},
        "GET /v1/requests/9": done,
    }
    result, fake = ask(answers, "topology", "watch")
    assert result.exit_code == 0
    assert [call for call, _ in fake.calls] == ["GET /v1/requests", "GET /v1/requests/9"]


@pytest.mark.parametrize(
    ("answer", "exit_code", "text"),
    [
        (
            (409, {"code": "PRECONDITION", "message": "too few nodes"}),
            3,
            "error[PRECONDITION]: too few nodes",
        ),
        ((409, {"error": {"code": "REJECTED", "message": "locked"}}), 3, "error[REJECTED]: locked"),
        ((504, {"code": "OUTCOME_UNKNOWN", "message": "?", "hint": "look"}), 5, "hint: look"),
        ((503, {"message": "no leader"}), 4, "error[PEER_UNREACHABLE]: no leader"),
        ((400, {"message": "bad", "facts": {"epoch": 4}}), 2, "  epoch: 4"),
        ((500, {}), 1, "error[LOCKSTEP]: GET /v1/status"),
        ((200, b"<html>"), 1, "did not answer with JSON"),
        ((200, b"[]"), 1, "answered with list"),
    ],
)
def test_what_a_node_reports_decides_text_and_exit_code(answer: Any, exit_code: int, text: str) -> None:
    result, _ = ask({"GET /v1/status": answer}, "status")
    assert result.exit_code == exit_code
    assert text in result.stderr
    assert result.stdout == ""


def test_a_closed_port_is_unreachable() -> None:
    with FakeAdmin({}) as fake:
        gone = fake.host
    result = run("status", "--host", gone)
    assert result.exit_code == 4
    assert f"error[PEER_UNREACHABLE]: no node answers at {gone}" in result.stderr
    assert "hint: " in result.stderr


def test_the_host_comes_from_the_environment_when_not_given() -> None:
    with FakeAdmin({"GET /v1/nodes": {"nodes": []}}) as fake:
        assert run("ring", LOCKSTEP_HOST=fake.host).exit_code == 0
        assert fake.calls == [("GET /v1/nodes", None)]


def test_colour_and_boxes_appear_only_on_a_terminal_that_wants_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    render.table(["node", "state"], [["n1", "up"]])
    boxed = capsys.readouterr().out
    assert "n1" in boxed
    assert "─" in boxed
    assert "\x1b[3" not in boxed
    assert render.styled("fine", "green") == "fine"
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[32m" in render.styled("fine", "green")


@pytest.mark.parametrize("first", ["0", "-3", "43"])
def test_verify_refuses_to_start_where_the_log_has_nothing(first: str) -> None:
    result, _ = ask({"GET /v1/status": status(epoch=42)}, "metadata", "verify", "--from", first)
    assert (result.exit_code, "42 are no range" in result.output) == (2, True), result.output


def test_a_forced_removal_says_what_was_given_up_and_waits_for_nothing() -> None:
    answer = {
        "schema": "force-remove/1",
        "node": 2,
        "epoch": 9,
        "dry_run": False,
        "way_back": "none",
        "degraded": [{"replication": "SimpleStrategy", "left": 1, "right": 5, "missing": [3]}],
    }
    arguments = ("topology", "remove", "2", "--force", "--reason", "burnt")
    result, fake = ask({"GET /v1/nodes": NODES, "POST /v1/requests": answer}, *arguments)
    assert result.exit_code == 0, result.output
    wanted = {"kind": "remove", "node": 2, "dry_run": False, "force": True, "reason": "burnt"}
    assert fake.calls[-1][1] == wanted
    assert "node 2 was given up at epoch 9" in result.stdout
    assert "(1, 5] of SimpleStrategy: node 3 may lack writes" in result.stdout


def test_requests_say_which_keyspace_and_which_replication() -> None:
    change = {
        "id": "3", "kind": "replication_change", "node": None, "keyspace": "shop", "state": "queued",
        "replication": {"class": "NetworkTopologyStrategy", "east": "3", "west": "2"},
    }  # fmt: skip
    result, _ = ask({"GET /v1/requests": {"requests": [change]}}, "topology", "requests")
    assert "replication_change of keyspace shop to east 3, west 2" in result.stdout


@pytest.mark.parametrize("token", [str(2**63), "99999999999999999999999", str(-(2**63))])
def test_a_token_outside_the_ring_is_refused_before_anybody_is_asked(token: str) -> None:
    result, fake = ask({"GET /v1/nodes": NODES}, "topology", "move", "2", "--token", token)
    assert (result.exit_code, fake.calls) == (2, []), result.output


def test_a_dry_run_of_an_exclusion_does_not_sound_done() -> None:
    listed = [
        {"node": 1, "since_epoch": 4, "reason": "earlier"},
        {"node": 2, "since_epoch": 10, "reason": "looks odd"},
    ]
    answer = {"schema": "excluded/1", "epoch": 9, "dry_run": True, "excluded": listed}
    answers = {"GET /v1/nodes": NODES, "POST /v1/excluded": answer}
    result, _ = ask(answers, "topology", "exclude", "2", "--dry-run")
    assert result.stdout == "node 1 is excluded since epoch 4: earlier\nnode 2 would be excluded: looks odd\n"


def test_of_many_degraded_ranges_the_first_are_listed() -> None:
    degraded = [
        {"replication": "SimpleStrategy", "left": n, "right": n + 1, "missing": [3]} for n in range(20)
    ]
    answer = {"schema": "force-remove/1", "node": 2, "epoch": 9, "way_back": "none", "degraded": degraded}
    answers = {"GET /v1/nodes": NODES, "POST /v1/requests": answer}
    result, _ = ask(answers, "topology", "remove", "2", "--force")
    assert "20 ranges" in result.stdout and "  and 12 more (-o json lists them)\n" in result.stdout
    assert result.stdout.count("may lack writes") == 8


def test_a_narrow_terminal_does_not_break_words_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    render.table(["node", "state", "waits"], [["127.0.39.100", "decommissioning", "for node 3 " * 5]])
    told = capsys.readouterr().out
    assert "127.0.39.100" in told and "decommissioning" in told


def test_a_node_that_the_cluster_counts_in_is_not_forgotten() -> None:
    class Clustered:
        def node_id(self, name: str) -> int:
            if name != "n3":
                raise ConfigurationError(f"{name} is no member of the cluster")
            return 3

    with pytest.raises(PreconditionError, match="n3 is node 3 of the cluster and has not left it"):
        _refuse_member(cast(LocalCluster, Clustered()), "n3")
    _refuse_member(cast(LocalCluster, Clustered()), "n4")


def test_a_node_that_is_shut_out_is_not_told_to_be_down() -> None:
    shut = [{"node": 2, "since_epoch": 10, "reason": "looks odd"}]
    answer = status(epoch=10, nodes=[node(2, alive=False, epoch=10, state="normal")], excluded=shut)

    class Asked:
        def group_local(self, group: str, one: str) -> dict[str, Any]:
            return {}

    told = read(Status, answer)
    reasons = _node_reasons(cast(ClusterClient, Asked()), told, told.nodes[0])
    assert [one["sentence"] for one in reasons] == ["it is excluded since epoch 10: looks odd"]
    assert reasons[0]["hint"].startswith("lockstep topology exclude 2 --undo")
