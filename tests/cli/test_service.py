"""`lockstep cms` and `why` against a node with canned answers: plans, waits, exit codes, text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lockstep.cli.main import root
from lockstep.cli.shared import runs
from tests.cli.fake_admin import FakeAdmin, node, status

PLAN = {
    "schema": "cms-plan/1",
    "epoch": 42,
    "steps": ["one step", "another step"],
    "waits_for": "2 of the voters 1, 2, 3",
    "way_back": "lockstep cms thaw",
    "changes": [{"path": "service.frozen", "before": "", "after": "upgrade"}],
}
SERVICE: dict[str, Any] = {
    "epoch": 42,
    "asked": 1,
    "role": "leader",
    "leader": 1,
    "term": 3,
    "commit_index": 99,
    "recovery_generation": 0,
    "groups": {"metastorage": "Degraded", "cmg": "Available"},
    "members": [
        {"node": 1, "alive": True, "role": "voting member", "state": "Healthy", "leader": True, "epoch": 42},
        {"node": 3, "alive": False, "role": "voting member", "state": None, "epoch": 40, "reason": "gone"},
    ],
    "management": {"state": "Available", "leader": 2, "term": 1, "voters": [1, 2, 3], "outgoing": []},
    "raft": {"voters": [1, 2, 3], "outgoing": [1, 2], "joint": True, "learners": [4]},
    "size": {"actual": 3, "wanted": 5, "set_by": "operator"},
    "state": "changing",
    "change": {"id": 40, "additions": [4], "removals": [3], "done": 0, "steps": 2, "reason": "asked for"},
    "waiting": [{"node": 4, "reason": "does not have the log yet", "since_s": 2.5}],
    "frozen": "an upgrade",
    "paused": "",
    "leaving": [3],
    "log": {
        "oldest_entry": 30,
        "oldest_value": 29,
        "bytes_since_snapshot": 2048,
        "snapshot_here": 30,
        "snapshot_bytes": 1048576,
        "snapshot_age_s": 61.2,
    },
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, list(arguments))


def ask(answers: dict[str, Any], *arguments: str) -> tuple[Result, FakeAdmin]:
    with FakeAdmin(answers) as fake:
        return run(*arguments, "--host", fake.host), fake


def test_describe_tells_members_groups_the_change_and_the_log() -> None:
    result, _ = ask({"GET /v1/cms": SERVICE}, "cms", "describe")
    assert result.exit_code == 0, result.output
    for text in (
        "metadata group (metastorage): Degraded",
        "management group (cmg): Available",
        "leader: node 1, term 3, epoch 42, asked: node 1 (leader)",
        "size: 3, wanted 5 (set by the operator), changing",
        "change 40 adds 4, removes 3: 0 of 2 steps done (asked for)",
        "waits for node 4: does not have the log yet (2.5 s)",
        "frozen: an upgrade",
        "leaving: 3",
        "raft: voters 1, 2, 3, joint with 1, 2, learners 4, recovery generation 0",
        "management group: voters 1, 2, 3, leader node 2, term 1",
        "entries from epoch 30, values from epoch 29, snapshot of epoch 30, 1.0 MiB, 61 s old, 2.0 KiB since",
    ):
        assert text in result.output
    assert "gone" in result.output
    document, _ = ask({"GET /v1/cms": SERVICE}, "cms", "describe", "-o", "json")
    assert json.loads(document.stdout) == {"schema": "cms/1", **SERVICE}


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (["snapshot", "--reason", "r"], "snapshot", {"reason": "r", "dry_run": True}),
        (["truncate"], "truncate", {"dry_run": True}),
        (["truncate", "--epoch", "7"], "truncate", {"epoch": 7, "dry_run": True}),
        (["freeze", "upgrade"], "freeze", {"reason": "upgrade", "dry_run": True}),
        (["thaw"], "thaw", {"dry_run": True}),
        (["reconfigure", "--cancel"], "cancel", {"dry_run": True}),
        (["reconfigure", "--resume"], "resume", {"dry_run": True}),
        (["reconfigure", "5"], "reconfigure", {"size": 5, "dry_run": True}),
    ],
)
def test_every_change_can_be_planned(arguments: list[str], path: str, body: dict[str, Any]) -> None:
    answers = {f"POST /v1/cms/{path}": PLAN}
    result, fake = ask(answers, "cms", *arguments, "--dry-run")
    assert result.exit_code == 0, result.output
    assert fake.calls == [(f"POST /v1/cms/{path}", body)], "a plan asks once and waits for nobody"
    for text in ("1. one step", "waits for: 2 of the voters", "way back: lockstep cms thaw"):
        assert text in result.output
    document, _ = ask(answers, "cms", *arguments, "--dry-run", "-o", "json")
    assert json.loads(document.stdout)["schema"] == "cms-plan/1"


def test_a_plan_shows_what_the_entry_would_change() -> None:
    result, _ = ask({"POST /v1/cms/freeze": PLAN}, "cms", "freeze", "upgrade", "--dry-run")
    assert "  service.frozen: (empty) -> upgrade" in result.output.splitlines()


def kept(*epochs: int, epoch: int = 43, truncated: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "snapshots": [{"epoch": one} for one in epochs], "truncated_here": truncated}


def waiting(path: str, answer: dict[str, Any], there: Any, *arguments: str) -> tuple[Result, FakeAdmin]:
    with FakeAdmin({}) as fake:
        nodes = [node(1, admin_port=fake.port), node(2, alive=False)]
        fake.answers = {
            "GET /v1/nodes": {"nodes": nodes},
            "GET /v1/cms/snapshots": there,
            f"POST /v1/cms/{path}": answer,
        }
        return run("cms", path, *arguments, "--host", fake.host), fake


def test_a_snapshot_is_waited_for_on_every_node_that_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: None)
    result, _ = waiting("snapshot", {"epoch": 43}, [kept(30), kept(30), kept(30, 43)])
    assert result.exit_code == 0, result.output
    assert result.stderr == "waits: node 1 has not written the snapshot of epoch 43\n"
    assert result.stdout.splitlines() == [
        "epoch 43: every node writes its snapshot",
        "  node 2 is down: it follows when it is back",
    ]


def test_a_wait_that_ends_early_says_that_the_change_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: None)
    result, _ = waiting("snapshot", {"epoch": 43}, kept(30), "--timeout", "0")
    assert result.exit_code == 5
    assert "epoch 43" in result.stderr and "node 1 has not written" in result.stderr
    result, _ = waiting(
        "truncate", {"epoch": 44, "truncated_epoch": 30}, kept(30, epoch=43), "--timeout", "0"
    )
    assert result.exit_code == 5 and "node 1 has not applied epoch 44" in result.stderr


def test_a_truncation_is_waited_for_until_the_entries_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: None)
    steps = [kept(30), kept(30, epoch=44), kept(30, epoch=44, truncated=30)]
    result, _ = waiting("truncate", {"epoch": 44, "truncated_epoch": 30}, steps)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        "waits: node 1 has not applied epoch 44",
        "waits: node 1 keeps entries up to epoch 30",
    ]


def test_no_wait_asks_no_other_node() -> None:
    result, fake = waiting("truncate", {"epoch": 44, "truncated_epoch": 30}, kept(), "--no-wait")
    assert result.exit_code == 0
    assert [call for call, _ in fake.calls] == ["POST /v1/cms/truncate"]
    result, fake = waiting("thaw", {"epoch": 44, "state": "settled", "voters": [1]}, kept(), "--no-wait")
    assert result.exit_code == 0 and len(fake.calls) == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((409, {"code": "REJECTED", "message": "nothing changed"}), 3),
        ((504, {"code": "OUTCOME_UNKNOWN", "message": "no leader"}), 5),
        ((503, {"code": "PEER_UNREACHABLE", "message": "nobody"}), 4),
        ((400, {"code": "CONFIGURATION", "message": "not a number"}), 2),
    ],
)
def test_refusals_end_with_the_exit_code_of_their_kind(answer: Any, code: int) -> None:
    for command in (["snapshot"], ["truncate"], ["freeze", "x"], ["thaw"], ["reconfigure", "5"]):
        result, _ = ask({f"POST /v1/cms/{command[0]}": answer}, "cms", *command)
        assert (result.exit_code, "error[" in result.stderr) == (code, True), command


def test_an_epoch_that_is_kept_no_more_names_the_oldest() -> None:
    message = "this node can read the metadata from epoch 30 on, not that of epoch 7"
    gone = (400, {"code": "LOG_TRUNCATED", "message": message, "hint": "ask a node with an archive"})
    result, _ = ask({"GET /v1/metadata?epoch=7": gone}, "metadata", "show", "--epoch", "7")
    assert result.exit_code == 1
    assert result.stderr == f"error[LOG_TRUNCATED]: {message}\nhint: ask a node with an archive\n"


def test_a_dump_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "metadata.dump"
    answers: dict[str, Any] = {
        "GET /v1/status": status(epoch=42),
        "GET /v1/cms/dump?epoch=42&offset=0&entries=true": {"data": "YWJj", "size_bytes": 5},
        "GET /v1/cms/dump?epoch=42&offset=3&entries=true": (503, {"code": "PEER_TIMEOUT", "message": "late"}),
    }
    result, _ = ask(answers, "cms", "dump", str(file))
    assert result.exit_code != 0
    assert list(tmp_path.iterdir()) == []
    answers["GET /v1/cms/dump?epoch=42&offset=3&entries=true"] = {"data": "ZGU=", "size_bytes": 5}
    result, _ = ask(answers, "cms", "dump", str(file), "-o", "json")
    assert json.loads(result.stdout) == {
        "schema": "cms-dump-file/1",
        "file": str(file),
        "epoch": 42,
        "size_bytes": 5,
    }
    assert file.read_bytes() == b"abcde"
    assert ask(answers, "cms", "dump", str(file))[0].exit_code == 2


def test_load_refuses_what_is_no_dump_and_a_directory_with_something(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"not a dump at all")
    assert run("cms", "load", str(tmp_path / "bad"), "--check").exit_code == 1
    assert run("cms", "load", str(tmp_path / "none"), "--check").exit_code == 2
    used = ["cms", "load", str(tmp_path / "bad"), "--data-directory", str(tmp_path), "--dry-run"]
    assert run(*used).exit_code == 2
    assert run("cms", "load", str(tmp_path / "bad")).exit_code == 2


def test_why_gives_reasons_with_hints() -> None:
    result, _ = ask({"GET /v1/cms": SERVICE}, "why", "cms")
    assert result.exit_code == 0, result.output
    assert "it is frozen: an upgrade" in result.output and "hint: lockstep cms thaw" in result.output
    assert "its voters wait for node 4: does not have the log yet" in result.output
    assert "node 3 does not answer: gone" in result.output
    well = {**SERVICE, "frozen": "", "waiting": [], "members": SERVICE["members"][:1]}
    result, _ = ask({"GET /v1/cms": well}, "why", "cms")
    assert result.output == "the metadata service: nothing is wrong\n"


def test_why_of_a_node_asks_what_both_groups_say_of_it() -> None:
    broken = {"states": [{"node": 2, "answered": True, "state": "Broken", "reason": "kind 99 is not known"}]}
    nodes = [node(1), node(2, epoch=40)]
    events = [
        {"epoch": 1, "at_us": 1, "text": "is registered as node 2"},
        {"epoch": 1, "at_us": 1, "text": "votes on the metadata"},
        {"epoch": 9, "at_us": 2, "text": "begins to leave the ring"},
    ]
    answers = {
        "GET /v1/status": status(nodes=nodes),
        "GET /v1/story?kind=node&id=127.0.0.2": {"thing": "node 2", "from_epoch": 0, "events": events},
        "GET /v1/story?kind=node&id=7": {"thing": "node 7", "from_epoch": 3, "left_out": 2, "events": events},
        "GET /management/v1/recovery/metastorage/state/local?nodes=2": broken,
        "GET /management/v1/recovery/cmg/state/local?nodes=2": {"states": []},
    }
    result, _ = ask(answers, "why", "127.0.0.2")
    assert "it is 2 epochs behind" in result.output
    assert "metastorage: Broken: kind 99 is not known" in result.output
    assert "lockstep explain CANNOT_APPLY" in result.output
    told = [line.split("  ")[-1].strip() for line in result.output.splitlines()[-3:]]
    assert told == [event["text"] for event in events]
    assert result.output.count("epoch 1 ") == 1
    result, _ = ask(answers, "why", "node:7", "--events", "1")
    assert result.output.startswith("node 7: it has left the cluster\n  4 earlier events are left out")
    assert "what was before epoch 4 is not kept" in result.output


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        (["request:7"], "kind=request&id=7"),
        (["operation:3"], "kind=operation&id=3"),
        (["epoch:12"], "kind=epoch&id=12"),
        (["token:-123"], "kind=token&id=-123"),
        (["ks.t:-5"], "kind=token&id=-5&keyspace=ks&table=t"),
        (["ks:9"], "kind=token&id=9&keyspace=ks"),
        (["range", "ks", "-77"], "kind=token&id=-77&keyspace=ks"),
    ],
)
def test_why_tells_the_story_of_whatever_is_named(thing: list[str], path: str) -> None:
    told = {"thing": "it", "from_epoch": 0, "events": [{"epoch": 3, "at_us": 0, "text": "happened"}]}
    answers = {
        f"GET /v1/story?{path}": told,
        "GET /v1/requests/7": {"id": "7", "state": "done"},
        "GET /v1/status": status(),
    }
    result, _ = ask(answers, "why", *thing)
    assert result.exit_code == 0 and "epoch 3" in result.output and "happened" in result.output, result.output


def test_why_explains_codes_and_refuses_what_it_does_not_know() -> None:
    assert "rather than skip it" in run("why", "cannot_apply").output
    unknown = (
        400,
        {"code": "CONFIGURATION", "message": "there never was a node nothing", "hint": "nodes: 1"},
    )
    result, _ = ask({"GET /v1/story?kind=node&id=nothing": unknown}, "why", "nothing")
    assert result.exit_code == 2 and "request:ID" in result.stderr and "never was a node" in result.stderr


def test_status_shows_both_groups_and_a_freeze() -> None:
    groups = {
        "cmg": {"state": "Available", "available": True, "available_peers": 3},
        "metastorage": {"state": "Unavailable", "available": False, "available_peers": 1},
    }
    result, _ = ask({"GET /v1/status": status(groups=groups, frozen="an upgrade")}, "status")
    assert "groups: cmg available (3 voters up), metastorage unavailable (1 voters up)" in result.output
    assert "metadata is frozen: an upgrade" in result.output
