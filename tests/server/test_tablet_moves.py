"""Moves of tablets as operators ask for them: what is refused, what a dry run says, and what they end as."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.cluster import Cluster

from lockstep.local.admin_client import AdminClient, Credential
from lockstep.server.main import AdminDoor, serve_admin
from lockstep.values.errors import LockstepError
from tests.server.parts import ADMIN_PORT, CQL_PORT, nodes

TOKEN = "t" * 64


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminClient]:
    """Of the first of three nodes, with table k.t of four tablets of one copy."""
    with nodes(tmp_path_factory.mktemp("moves"), 3) as made:
        door: AdminDoor = made.call(serve_admin(made.members[0].node.services, made.members[0].server, TOKEN))
        driver = Cluster([made.members[0].address], port=CQL_PORT, protocol_version=5)
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1} "
            "AND tablets = {'initial': 4}"
        )
        session.execute("CREATE TABLE k.t (a int PRIMARY KEY)")
        found = AdminClient(made.members[0].address, ADMIN_PORT, credential=Credential(f"Bearer {TOKEN}"))
        found.post("/v1/tablets/balance", {"on": False})
        yield found
        driver.shutdown()
        made.loop.call_soon_threadsafe(door.close)


def shown(admin: AdminClient, number: int) -> dict[str, Any]:
    found: dict[str, Any] = admin.get("/v1/tablets", keyspace="k", table="t")["tablets"][number]
    return found


def wanted(admin: AdminClient, number: int, **changed: object) -> dict[str, object]:
    (on,) = (replica["node"] for replica in shown(admin, number)["replicas"])
    other = next(node for node in (1, 2, 3) if node != on)
    return {"keyspace": "k", "table": "t", "tablet": number, "from": on, "to": other, **changed}


def test_a_dry_run_says_what_it_would_do_and_does_nothing(admin: AdminClient) -> None:
    asked = wanted(admin, 0, dry_run=True)
    told = admin.post("/v1/tablets/move", asked)
    assert told["schema"] == "tablet-move/1" and told["dry_run"] and told["kind"] == "migration"
    assert [one["node"] for one in told["next"]] == [asked["to"]]
    assert shown(admin, 0)["stage"] == "" and shown(admin, 0)["replicas"] == told["replicas"]


def test_a_move_ends_where_it_was_to_go(admin: AdminClient) -> None:
    asked = wanted(admin, 1)
    admin.post("/v1/tablets/move", asked)
    deadline_s = time.monotonic() + 30
    while shown(admin, 1)["stage"] or shown(admin, 1)["replicas"][0]["node"] != asked["to"]:
        assert time.monotonic() < deadline_s, shown(admin, 1)
        time.sleep(0.05)
    (table,) = admin.get("/v1/tablets", keyspace="k")["tables"]
    assert table["moving"] == 0 and sum(node["tablets"] for node in table["nodes"]) == 4
    assert all(node["coming"] == node["leaving"] == 0 for node in table["nodes"])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tablet": 4}, "has no tablet 4"),
        ({"tablet": -1}, "has no tablet -1"),
        ({"tablet": None}, "say one of"),
        ({"token": 5}, "say one of"),
        ({"table": "nowhere"}, "no table k.nowhere"),
        ({"to": 9}, "no node 9"),
        ({"from": 9}, "has no replica"),
        ({"to_shard": 1}, "no shard 1"),
        ({"speed": 9}, "not a move"),
        ({"to": "x"}, "not a move"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    admin: AdminClient, changed: dict[str, object], text: str
) -> None:
    with pytest.raises(LockstepError, match=text) as found:
        admin.post("/v1/tablets/move", wanted(admin, 2, **changed))
    assert "INTERNAL" not in found.value.code
    assert shown(admin, 2)["stage"] == ""


# Splits and merges


def resize(admin: AdminClient, kind: str, tablet: int | None = None, **more: object) -> dict[str, Any]:
    asked: dict[str, object] = {"keyspace": "k", "table": "t", "kind": kind, **more}
    found: dict[str, Any] = admin.post(
        "/v1/tablets/resize", asked if tablet is None else {**asked, "tablet": tablet}
    )
    return found


def until_resized(admin: AdminClient, tablets: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        table: dict[str, Any] = admin.get("/v1/tablets", keyspace="k")["tables"][0]
        if table["resize_phase"] == "none" and table["tablets"] == tablets:
            return table
        assert time.monotonic() < deadline, table
        time.sleep(0.05)


def test_a_tablet_is_split_by_hand_and_merged_again_while_the_balancer_is_off(admin: AdminClient) -> None:
    rights = [one["end"] for one in admin.get("/v1/tablets", keyspace="k", table="t")["tablets"]]
    told = resize(admin, "split", 0, dry_run=True)
    assert (told["schema"], told["tablets"], told["after"], told["dry_run"]) == (
        "tablet-resize/1",
        4,
        5,
        True,
    )
    assert until_resized(admin, 4)["kept"] == 0
    told = resize(admin, "split", 0)
    table = until_resized(admin, 5)
    assert table["kept"] == 5 and table["resize_number"] > told["number"]
    resize(admin, "merge", 0)
    assert until_resized(admin, 4)["kept"] == 4
    assert [one["end"] for one in admin.get("/v1/tablets", keyspace="k", table="t")["tablets"]] == rights


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        ({"kind": "merge"}, "REJECTED", "would have 2 tablets, and 4 are asked for: initial of the keyspace"),
        ({"kind": "merge", "tablet": 3}, "REJECTED", "has none behind it"),
        ({"kind": "none"}, "REJECTED", "no split or merge of k.t is decided"),
        ({"kind": "none", "tablet": 1}, "CONFIGURATION", "taken back as a whole"),
        ({"kind": "split", "tablet": 4}, "CONFIGURATION", "table k.t has no tablet 4"),
        ({"kind": "halve"}, "CONFIGURATION", "not a split or merge of tablets"),
        ({"kind": "split", "table": "x"}, "CONFIGURATION", "there is no table k.x"),
    ],
)
def test_resizes_that_are_refused(admin: AdminClient, asked: dict[str, Any], code: str, message: str) -> None:
    for dry_run in (True, False):
        with pytest.raises(LockstepError) as refusal:
            admin.post("/v1/tablets/resize", {"keyspace": "k", "table": "t", **asked, "dry_run": dry_run})
        assert refusal.value.code == code and message in refusal.value.message
