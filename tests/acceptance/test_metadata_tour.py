"""The commands of operators for the metadata, on a real cluster: look, plan, change, lose members, prove.

The tests are the chapters of one story and run in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.parts import lockstep, until

pytestmark = pytest.mark.slow

FIRST = "127.0.78.1"
NODES = [f"127.0.78.{number}" for number in (1, 2, 3)]
CLUSTER, ARCHIVED = "tour", "archived"
ALONE = "127.0.78.9"


class Story:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.host = FIRST

    def run(self, *arguments: str, code: int = 0, host: str = "") -> str:
        done = lockstep(*arguments, "--host", f"{host or self.host}:7080", home=self.home)
        assert done.code == code, f"{arguments}: exit code {done.code}\n{done.out}{done.err}"
        assert "Traceback" not in done.out + done.err
        return done.out + done.err

    def json(self, *arguments: str, code: int = 0, host: str = "") -> dict[str, Any]:
        done = lockstep(*arguments, "--host", f"{host or self.host}:7080", "-o", "json", home=self.home)
        assert done.code == code, f"{arguments}: exit code {done.code}\n{done.out}{done.err}"
        document: dict[str, Any] = json.loads(done.out)
        assert document["schema"].endswith("/1")
        return document

    def cluster(self, *arguments: str) -> None:
        done = lockstep("cluster", *arguments, home=self.home)
        assert done.code == 0, done.err

    def epoch(self) -> int:
        return int(self.json("cms", "describe")["epoch"])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    made = Story(tmp_path_factory.mktemp("home"))
    try:
        made.cluster("create", CLUSTER, "-n", "3", "--first-address", FIRST)
        yield made
    finally:
        for name in (CLUSTER, ARCHIVED):
            lockstep("cluster", "destroy", name, home=made.home)


def test_describe_shows_members_groups_and_log(story: Story) -> None:
    for host in NODES:
        found = story.json("cms", "describe", host=host)
        assert found["groups"] == {"metastorage": "Available", "cmg": "Available"}
        assert [member["address"] for member in found["members"]] == NODES
        assert found["log"]["oldest_value"] == 0
    assert "wanted 3" in story.run("cms", "describe")
    assert story.run("why", "cms") == "the metadata service: nothing is wrong\n"


def test_plans_change_nothing(story: Story) -> None:
    before = story.epoch()
    for change in (["snapshot"], ["freeze", "a plan"], ["thaw"], ["reconfigure", "1"]):
        assert "way back" in story.run("cms", *change, "--dry-run")
    story.run("cms", "truncate", "--dry-run", code=3)
    assert story.epoch() == before


def test_frozen_metadata_refuses_changes_with_the_reason(story: Story) -> None:
    story.run("cms", "freeze", "an upgrade")
    refused = story.run("topology", "decommission", NODES[2], code=3)
    assert "an upgrade" in refused and "lockstep cms thaw" in refused
    assert "metadata is frozen: an upgrade" in story.run("status", host=NODES[1])
    story.run("cms", "thaw")


def test_snapshot_and_truncation_bound_what_can_be_shown(story: Story) -> None:
    assert story.json("metadata", "show", "--epoch", "2")["epoch"] == 2
    taken = story.json("cms", "snapshot", "--reason", "tour")
    assert [row["result"] for row in taken["nodes"]] == ["done"] * 3
    assert "nothing changed" in story.run("cms", "snapshot", code=3)
    story.run("cms", "truncate")
    for host in NODES:
        kept = story.json("cms", "snapshots", host=host)
        assert kept["first_epoch"] == taken["epoch"], host
        gone = story.run("metadata", "show", "--epoch", "2", host=host, code=1)
        assert f"from epoch {taken['epoch'] - 1} on" in gone
        assert "LOG_TRUNCATED" in story.run("metadata", "diff", "1", "3", host=host, code=1)
        assert "LOG_TRUNCATED" in story.run("cms", "log", "--from", "1", host=host, code=1)
    assert story.json("metadata", "show", "--epoch", str(taken["epoch"] - 1))["epoch"] == taken["epoch"] - 1
    assert "TruncateLog" in story.run("cms", "log")
    found = story.json("metadata", "verify")
    assert found["agree"] and found["complete"]
    assert {row["oldest"] for row in found["nodes"]} == {taken["epoch"]}


def test_a_dump_is_loaded_and_seeds_a_directory(story: Story, tmp_path: Path) -> None:
    file, seeded = str(tmp_path / "metadata.dump"), tmp_path / "seeded"
    made = story.json("cms", "dump", file)
    checked = lockstep("cms", "load", file, "--check", "-o", "json", home=story.home)
    assert checked.code == 0, checked.err
    facts = json.loads(checked.out)
    value = story.json("metadata", "show", "--epoch", str(made["epoch"]))
    assert (facts["epoch"], facts["hash"], facts["nodes"]) == (value["epoch"], value["hash"], 3)
    planned = lockstep("cms", "load", file, "--data-directory", str(seeded), "--dry-run", home=story.home)
    assert planned.code == 0 and not seeded.exists(), planned.err
    done = lockstep("cms", "load", file, "--data-directory", str(seeded), home=story.home)
    assert done.code == 0 and (seeded / "metadata").is_dir(), done.err
    damaged = bytearray(Path(file).read_bytes())
    damaged[len(damaged) // 3] ^= 4
    Path(file).write_bytes(bytes(damaged))
    refused = lockstep("cms", "load", file, "--check", home=story.home)
    assert refused.code == 1 and "CORRUPT_FILE" in refused.err


def test_voters_are_taken_away_and_come_back(story: Story) -> None:
    story.run("cms", "reconfigure", "1")
    alone = story.json("cms", "describe")
    assert (alone["size"]["actual"], alone["size"]["set_by"]) == (1, "operator")
    assert "hint:" in story.run("cms", "reconfigure", "2", code=3)
    story.run("cms", "reconfigure", "auto")
    until(lambda: story.json("recovery", "cluster", "states", "cmg")["available_peers"] == 3)
    assert story.json("cms", "describe")["size"] == {
        "actual": 3,
        "wanted": 3,
        "set_by": "size of the cluster",
    }


def test_a_lost_member_is_seen_and_does_not_stop_changes(story: Story) -> None:
    story.cluster("kill", CLUSTER, "n3")
    until(lambda: story.json("cms", "describe")["groups"]["metastorage"] == "Degraded")
    taken = story.json("cms", "snapshot")
    assert [row["result"] for row in taken["nodes"]] == ["done", "done", "down"]
    assert "it seems down" in story.run("why", NODES[2])
    found = story.json("metadata", "verify", code=6)
    assert found["agree"] and not found["complete"]
    story.cluster("start", CLUSTER, "n3")
    until(lambda: len(story.json("cms", "snapshots", host=NODES[2])["snapshots"]) > 1)


def test_a_lost_majority_is_seen_and_reading_goes_on(story: Story) -> None:
    story.cluster("kill", CLUSTER, "n2")
    story.cluster("kill", CLUSTER, "n3")
    until(lambda: story.json("cms", "describe")["groups"]["metastorage"] == "Unavailable")
    until(lambda: "no majority of the metadata group" in story.run("status"))
    assert "metastorage unavailable" in story.run("status")
    assert "no leader is known" in story.run("why", "cms") or "does not answer" in story.run("why", "cms")
    story.run("cms", "snapshot", code=4)
    epoch = story.epoch()
    assert story.json("metadata", "show", "--epoch", str(epoch))["epoch"] == epoch
    assert story.json("metadata", "verify", code=6)["agree"]
    story.cluster("start", CLUSTER, "n2")
    until(lambda: story.json("cms", "describe")["groups"]["metastorage"] == "Degraded", timeout_s=20)
    story.run("cms", "freeze", "by the new leader")
    story.run("cms", "thaw")
    story.cluster("start", CLUSTER, "n3")
    until(lambda: story.json("metadata", "verify")["complete"])


def test_a_node_that_cannot_apply_an_entry_is_seen_and_resumes_after_an_upgrade(story: Story) -> None:
    """A node of an older version, which does not know what freezing is; then it is upgraded."""
    file = story.home / "clusters" / CLUSTER / "n3" / "lockstep.toml"
    newer = file.read_text()
    older = newer.replace("[testing]\n", '[testing]\nhide_kinds = ["set_service"]\n').replace(
        "hide_kinds = []\n", ""
    )
    # It has applied such entries before: a snapshot stands for them.
    story.run("cms", "snapshot")
    story.run("cms", "truncate")
    story.cluster("stop", CLUSTER, "n3")
    file.write_text(older)
    story.cluster("start", CLUSTER, "n3")
    story.run("cms", "freeze", "a new kind of entry", "--no-wait")
    until(lambda: "this node serves no more" in story.run("status", host=NODES[2]))
    assert "is not known to this version" in story.run("why", NODES[2], host=NODES[2])
    found = story.json("metadata", "verify", code=6)
    assert found["nodes"][2]["result"] == "stopped" and found["agree"]
    story.cluster("stop", CLUSTER, "n3")
    file.write_text(newer)
    story.cluster("start", CLUSTER, "n3")
    until(lambda: story.json("metadata", "verify")["complete"])
    story.run("cms", "thaw")
    until(lambda: "nothing is wrong" in story.run("why", "3"))


def test_an_archive_answers_for_epochs_that_are_dropped(story: Story, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    setting = f"metadata.archive_directory={archive}"
    story.cluster("create", ARCHIVED, "-n", "1", "--first-address", ALONE, "--set", setting)
    story.host = ALONE
    try:
        for number in range(3):
            story.run("cms", "freeze", f"reason {number}")
            story.run("cms", "snapshot")
        story.run("cms", "thaw")
        story.run("cms", "truncate")
        until(lambda: story.json("cms", "snapshots")["first_epoch"] > 5)
        oldest = story.json("cms", "snapshots")
        assert oldest["oldest_value"] == 0, "the archive begins at the first epoch"
        assert story.json("metadata", "show", "--epoch", "2")["service"]["frozen"] == "reason 0"
        assert story.json("metadata", "diff", "2", "4")["changes"]
        log = story.json("cms", "log", "--from", "1")
        assert [entry["epoch"] for entry in log["entries"]] == list(range(1, story.epoch() + 1))
        found = story.json("metadata", "verify")
        assert found["agree"] and found["nodes"][0]["oldest"] == 1
        segment = next(file for file in sorted(archive.rglob("log-*")))
        damaged = bytearray(segment.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        segment.write_bytes(bytes(damaged))
        broken = story.json("metadata", "verify", code=1)
        assert broken["first_divergence"]["part"] == "log"
    finally:
        story.host = FIRST
