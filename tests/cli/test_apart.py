"""Nodes that seem down and run under another id of the cluster: what `lockstep recovery` and `why` say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from tests.cli.fake_admin import FakeAdmin, node, status

OLD, NEW, OTHER = "old-id", "new-id", "other-id"
STATE = "GET /management/v1/cluster/state"


def state(number: int, *lineage: str) -> dict[str, Any]:
    """What a node says that is of the last of these incarnations."""
    return {
        "node": number,
        "cluster_name": "try",
        "cluster_id": lineage[-1],
        "epoch": 9,
        "leader": number,
        "lineage": [{"cluster_id": one, "kind": "founding"} for one in lineage],
    }


def asked(own: Sequence[str], theirs: Sequence[str], word: str, *command: str, **also: Any) -> str:
    """What the command says at node 1, which takes node 2 for dead."""
    with FakeAdmin({STATE: state(2, *theirs)}) as other:
        two = node(2, alive=False, admin_port=other.port, address=other.address, **also)
        nodes = [node(1), two]
        answers: dict[str, Any] = {
            STATE: state(1, *own),
            "GET /v1/nodes": {"schema": "nodes/1", "epoch": 42, "nodes": nodes},
            "GET /v1/status": status(nodes=nodes),
            "GET /v1/story?kind=node&id=2": {"thing": "node 2", "from_epoch": 0, "events": []},
        }
        for group in ("cmg", "metastorage"):
            path = f"GET /management/v1/recovery/{group}/state"
            answers[f"{path}/global"] = {"group": group, "state": word}
            answers[f"{path}/local?nodes=2"] = {"states": []}
        with FakeAdmin(answers) as one:
            told = CliRunner().invoke(root, [*command, "--host", one.host])
            assert told.exit_code == 0, told.output
            return told.output.replace(one.host, "HERE").replace(other.host, "THERE")


@pytest.mark.parametrize("word", ["Available", "Degraded"])
def test_nodes_that_missed_a_repair_are_to_be_brought(word: str) -> None:
    told = asked([OLD, NEW], [OLD], word, "recovery")
    assert told.splitlines()[-1] == (
        f"next: node 2 runs as cluster {OLD}, from which this one was made anew: "
        "`lockstep recovery cluster migrate --old-cluster-url THERE --new-cluster-url HERE`"
    )


@pytest.mark.parametrize("word", ["Available", "Degraded", "Unavailable"])
def test_a_former_cluster_is_to_follow_before_anything_else(word: str) -> None:
    told = asked([OLD], [OLD, NEW], word, "recovery")
    assert told.splitlines()[-1] == (
        f"next: node 2 runs as cluster {NEW}, which was made anew from this one: "
        "`lockstep recovery cluster migrate --old-cluster-url HERE --new-cluster-url THERE`"
    )


def test_two_repairs_of_one_cluster_are_to_be_compared() -> None:
    told = asked([OLD, NEW], [OLD, OTHER], "Available", "recovery")
    assert "`lockstep recovery diff --old-cluster-url THERE --new-cluster-url HERE`" in told


def test_a_repaired_group_without_a_majority_gets_its_voters_first() -> None:
    told = asked([OLD, NEW], [OLD], "Unavailable", "recovery")
    assert "next: start the voters that are down" in told


@pytest.mark.parametrize(
    ("theirs", "also"), [([OTHER], {}), ([OLD, NEW], {}), ([OLD], {"excluded": True})], ids=str
)
def test_strangers_those_who_just_begin_and_zombies_are_not_told_of(
    theirs: list[str], also: dict[str, Any]
) -> None:
    told = asked([OLD, NEW], theirs, "Available", "recovery", **also)
    assert told.splitlines()[-1] == "next: nothing is to be done"


def test_why_tells_such_a_node_from_a_dead_one() -> None:
    told = asked([OLD, NEW], [OLD], "Available", "why", "node:2")
    assert f"it does not take part: node 2 runs as cluster {OLD}" in told
    assert "hint: lockstep recovery cluster migrate --old-cluster-url THERE" in told
    told = asked([OLD, NEW], [OTHER], "Available", "why", "node:2")
    assert "it seems down: no sign of life" in told
