"""The admin API over real sockets: documents as commands read them, errors, metrics, faults."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.documents import read
from lockstep.documents.recovery import GroupReconfiguration
from lockstep.documents.requests import MetadataDiff, Request, RequestPlan, Requests, Story, Streams
from lockstep.documents.runs import BackupPlan, BackupRun, Backups, Loads, Repair, RepairPlan, Repairs
from lockstep.documents.service import (
    Digest,
    DumpPiece,
    GlobalState,
    LocalStates,
    LoggedEntries,
    Proof,
    Service,
    ServicePlan,
    Snapshots,
    Voters,
)
from lockstep.documents.status import Description, ExcludedNodes, Features, Gossip, Placements, Status
from lockstep.documents.status import Nodes as ListedNodes
from lockstep.local.admin_client import AdminClient, Credential
from lockstep.metadata.extensions import EXTENSIONS
from lockstep.server.main import AdminDoor, serve_admin
from lockstep.values.errors import ConfigurationError, LockstepError, Rejected
from tests.server.parts import ADMIN_PORT, CQL_PORT, Nodes, nodes
from tests.server.wire_client import WireClient

#: The same on all nodes, as operators may have it.
TOKEN = "t" * 64


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    token_file = tmp_path_factory.mktemp("token") / "admin.token"
    token_file.write_text(TOKEN)
    with (
        nodes(tmp_path_factory.mktemp("admin"), 3, testing_faults="true") as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("LOCKSTEP_TOKEN_FILE", str(token_file))
        made.add(testing_faults="true")
        doors: list[AdminDoor] = []
        for member in made.members:
            doors.append(made.call(serve_admin(member.node.services, member.server, TOKEN)))
        with WireClient(made.members[0].address, CQL_PORT, 5) as client:
            client.startup()
            client.query(
                "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
            )
            client.query("CREATE TABLE shop.item (id int PRIMARY KEY, name text)")
        yield made
        for door in doors:
            made.loop.call_soon_threadsafe(door.close)


def admin(cluster: Nodes, index: int = 0) -> AdminClient:
    return AdminClient(cluster.members[index].address, ADMIN_PORT, credential=Credential(f"Bearer {TOKEN}"))


def test_status_has_what_the_command_shows(cluster: Nodes) -> None:
    wait_for_members(cluster)

    def heard_of_all() -> bool:
        seen = admin(cluster).get("/v1/status")
        return all(node["epoch"] == seen["epoch"] for node in seen["nodes"])

    until(heard_of_all)  # Nodes tell of an epoch with their next message.
    found = admin(cluster).get("/v1/status")
    assert found["schema"] == "status/1"
    assert found["verdict"].startswith("healthy")
    assert found["epoch"] == cluster.members[0].node.log.cluster.epoch
    assert [node["address"] for node in found["nodes"]] == [member.address for member in cluster.members]
    assert sum(node["owns"] for node in found["nodes"]) == pytest.approx(1)
    assert [node["voter"] for node in found["nodes"]] == [True, True, True, False]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.05)


def test_a_full_disk_shows_in_status_why_and_metrics(cluster: Nodes) -> None:
    wait_for_members(cluster)
    member = cluster.members[0]
    space, host = member.node.data.engine.space, f"{member.address}:{ADMIN_PORT}"
    reserve_bytes = space.reserve_bytes
    assert admin(cluster).get("/v1/status")["level"] == "healthy"
    space.reserve_bytes = 1 << 62
    try:
        until(lambda: admin(cluster).get("/v1/status")["level"] == "degraded")
        (one,) = admin(cluster).get("/v1/status")["conditions"]
        assert (one["code"], one["node"]) == ("DISK_FULL", 1)
        assert one["at_risk"] and one["hint"] and one["since_us"] > 0
        until(lambda: admin(cluster, 3).get("/v1/status")["level"] == "degraded")
        shown = CliRunner().invoke(root, ["status", "--host", host]).output
        assert "this node refuses writes: its disk is full" in shown and "hint: make room" in shown
        assert "its disk is full" in CliRunner().invoke(root, ["why", "1", "--host", host]).output
        _, body = raw(cluster, "GET", "/metrics")
        assert b'lockstep_node_condition{code="DISK_FULL",subject=""} 1' in body
        assert b"lockstep_cluster_level 1" in body
        code = CliRunner().invoke(root, ["status", "--exit-code", "--host", host]).exit_code
        assert code == 10 and CliRunner().invoke(root, ["status", "--host", host]).exit_code == 0
        status, answer = raw(cluster, "GET", "/health/ready")
        assert status == 200 and json.loads(answer)["level"] == "degraded", "it still reads"
        with WireClient(member.address, CQL_PORT, 5) as client:
            client.startup()
            asked = "SELECT code, node_id, level FROM system_views.conditions"
            assert "DISK_FULL" in str(client.query(asked))
    finally:
        space.reserve_bytes = reserve_bytes
    until(lambda: admin(cluster, 3).get("/v1/status")["level"] == "healthy")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["ring"],
        ["ring", "shop"],
        ["describe", "shop"],
        ["describe", "shop.item"],
        ["metadata", "show"],
        ["metadata", "show", "--epoch", "1"],
        ["metadata", "diff", "1", "5"],
        ["metadata", "verify"],
        ["cms", "describe"],
        ["cms", "log"],
        ["cms", "snapshots"],
        ["recovery", "cluster", "states", "cmg"],
        ["recovery", "cluster", "states", "cmg", "--local"],
        ["recovery", "cluster", "states", "metastorage", "--global"],
        ["recovery", "cluster", "states", "metastorage", "--local", "--nodes", "1,4"],
        ["topology", "requests"],
        ["topology", "exclude", "4", "--dry-run", "--reason", "suspect"],
        ["node", "info"],
        ["topology", "decommission", "4", "--dry-run"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_commands_read_what_the_node_answers(cluster: Nodes, arguments: list[str], output: str) -> None:
    host = f"{cluster.members[2].address}:{ADMIN_PORT}"
    result = CliRunner().invoke(root, [*arguments, "--host", host, "-o", output])
    assert result.exit_code == 0, result.output
    if output == "json":
        assert "/1" in json.loads(result.stdout)["schema"]


def test_placements_are_those_of_the_metadata(cluster: Nodes) -> None:
    ranges = admin(cluster).get("/v1/placements", keyspace="shop")["ranges"]
    value = cluster.members[0].node.log.cluster
    ring = value.placements.ring(value.schema.by_name["shop"].group)
    assert [(r["start"], r["end"], tuple(r["reads"])) for r in ranges] == [
        (placed.range.left, placed.range.right, placed.group.reads) for placed in ring.ranges
    ]


def test_the_log_is_answered_in_the_range_asked(cluster: Nodes) -> None:
    entries = admin(cluster).get("/v1/metadata/log", **{"from": 2, "to": 3})["entries"]
    assert [entry["epoch"] for entry in entries] == [2, 3]
    assert entries[1]["previous_hash"] == entries[0]["hash"]
    past = admin(cluster).get("/v1/metadata/log", **{"from": 9999, "to": 10_000})
    assert past["entries"] == []


def test_the_value_at_an_old_epoch_is_the_one_of_then(cluster: Nodes) -> None:
    first = admin(cluster).get("/v1/metadata", epoch=1)
    assert len(first["nodes"]) == 3 and first["keyspaces"] == []
    assert [k["name"] for k in admin(cluster).get("/v1/metadata")["keyspaces"]] == ["shop"]


def test_what_a_node_refuses_keeps_its_code(cluster: Nodes) -> None:
    with pytest.raises(Rejected, match="odd number"):
        admin(cluster, 1).post("/v1/cms/reconfigure", {"size": 2, "dry_run": True})
    with pytest.raises(ConfigurationError, match="no keyspace"):
        admin(cluster).get("/v1/placements", keyspace="nowhere")
    with pytest.raises(ConfigurationError, match="not a request"):
        admin(cluster).post("/v1/requests", {"kind": "explode", "node": 1})
    with pytest.raises(ConfigurationError, match="no request 77"):
        admin(cluster).get("/v1/requests/77")
    with pytest.raises(LockstepError, match="knows GET"):
        admin(cluster).delete("/v1/status")


def test_a_frozen_cluster_says_why(cluster: Nodes) -> None:
    host = f"{cluster.members[2].address}:{ADMIN_PORT}"
    assert "upgrade" in CliRunner().invoke(root, ["cms", "freeze", "upgrade", "--host", host]).output
    try:
        with pytest.raises(Rejected, match="frozen: upgrade"):
            admin(cluster, 1).post("/v1/requests", {"kind": "decommission", "node": 4})
    finally:
        assert CliRunner().invoke(root, ["cms", "thaw", "--host", host]).exit_code == 0


def test_the_decommission_of_a_voter_is_planned_with_its_substitution(cluster: Nodes) -> None:
    body = {"kind": "decommission", "node": 1, "dry_run": True}
    plan = admin(cluster, 1).post("/v1/requests", body)
    assert plan["steps"][0] == {"stage": "substituting_voter", "work": "another node gets its vote"}
    assert len(plan["steps"]) > 3


def raw(cluster: Nodes, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(cluster.members[0].address, ADMIN_PORT, timeout=5)
    shown = {"Authorization": f"Bearer {TOKEN}"}
    connection.request(method, path, body or None, shown | {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_unreadable_requests_get_an_error_and_no_more(cluster: Nodes) -> None:
    assert raw(cluster, "GET", "/nowhere")[0] == 404
    assert raw(cluster, "POST", "/v1/requests", b"{")[0] == 400
    for body in (b"[" * 100_000, b'{"kind": "\\ud800"}', b'{"node": NaN}', b"9" * 5000):
        assert raw(cluster, "POST", "/v1/requests", body)[0] == 400
    assert raw(cluster, "GET", "//[x", b"")[0] == 400
    for number in ("9" * 20, "9" * 5000, "%D9%A1"):
        for method, path in (("DELETE", "requests"), ("DELETE", "repairs"), ("GET", "backup-runs")):
            assert raw(cluster, method, f"/v1/{path}/{number}", b"")[0] == 400
    assert raw(cluster, "POST", "/v1/requests", b"x" * (2 << 20))[0] == 413
    with socket.create_connection((cluster.members[0].address, ADMIN_PORT), timeout=5) as connection:
        connection.sendall(b"\x00\x01nonsense\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")
    assert raw(cluster, "GET", "/v1/status")[0] == 200


def test_one_connection_serves_several_requests(cluster: Nodes) -> None:
    connection = http.client.HTTPConnection(cluster.members[0].address, ADMIN_PORT, timeout=5)
    for path in ("/v1/nodes", "/v1/cms", "/v1/status"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["schema"]
    connection.close()


def test_openapi_lists_every_path_with_its_summary(cluster: Nodes) -> None:
    document = admin(cluster).get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    assert {"/v1/status", "/v1/requests/{id}", "/metrics", "/v1/testing/partition"} <= set(document["paths"])
    for methods in document["paths"].values():
        assert all(described["summary"] for described in methods.values())


def test_metrics_are_prometheus_text_with_the_houses_names(cluster: Nodes) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    wait_for_members(cluster)
    status, body = raw(cluster, "GET", "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    groups = {"cmg_available", "cmg_availablePeers", "metastorage_available", "metastorage_availablePeers"}
    assert all(name.startswith("lockstep_") for name in families if name not in {*groups, "schemaSync_waits"})
    values = {name: families[name].samples[0].value for name in groups}
    voters = len(cluster.members[0].node.log.cluster.voters)
    assert values == dict.fromkeys(groups, 1) | {name: voters for name in groups if name.endswith("Peers")}
    epoch: Any = families["lockstep_metadata_epoch_entries"]
    assert epoch.samples[0].value == cluster.members[0].node.log.cluster.epoch
    assert len(families["lockstep_gossip_alive_bool"].samples) == 4
    assert len(families["lockstep_metadata_lag_epochs"].samples) == 4
    assert {sample.labels["group"] for sample in families["lockstep_consensus_term_number"].samples} == {
        "metastorage",
        "cmg",
    }
    for name, kind in (
        ("lockstep_metadata_catch_up_entries", "counter"),
        ("lockstep_metadata_catch_up_bytes", "counter"),
        ("lockstep_metadata_forks", "counter"),
        ("lockstep_gossip_announcements", "counter"),
        ("lockstep_replication_refusals", "counter"),
        ("lockstep_consensus_voters_unreachable_count", "gauge"),
        ("lockstep_metadata_commit_duration_seconds", "histogram"),
        ("schemaSync_waits", "histogram"),
    ):
        assert families[name].type == kind, name
        assert families[name].documentation, name


def test_commits_are_counted_by_how_they_ended(cluster: Nodes) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def counted() -> dict[str, float]:
        _, body = raw(cluster, "GET", "/metrics")
        families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        series = families["lockstep_metadata_commit_duration_seconds"].samples
        for outcome in ("accepted", "rejected", "unknown", "unreached"):
            own = [sample for sample in series if sample.labels["outcome"] == outcome]
            buckets = [sample.value for sample in own if sample.name.endswith("_bucket")]
            assert buckets == sorted(buckets), "buckets are cumulative"
            total = next(sample.value for sample in own if sample.name.endswith("_count"))
            assert buckets[-1] == total, outcome
        return {s.labels["outcome"]: s.value for s in series if s.name.endswith("_count")}

    before = counted()
    admin(cluster).post("/v1/cms/freeze", {"reason": "counting"})
    admin(cluster).post("/v1/cms/thaw", {})
    with pytest.raises(Rejected):
        admin(cluster).post("/v1/cms/truncate", {"epoch": 5000})
    after = counted()
    changed = {outcome: after[outcome] - before[outcome] for outcome in after}
    assert changed == {"accepted": 2, "rejected": 1, "unknown": 0, "unreached": 0}


def test_plans_change_nothing(cluster: Nodes) -> None:
    before = admin(cluster).get("/v1/metadata")
    for path, body in (
        ("/v1/cms/snapshot", {}),
        ("/v1/cms/freeze", {"reason": "a plan"}),
        ("/v1/cms/reconfigure", {"size": 1}),
    ):
        plan = admin(cluster).post(path, {**body, "dry_run": True})
        assert plan["schema"] == "cms-plan/1" and plan["steps"] and plan["way_back"], path
    for path, body in (("/v1/cms/cancel", {}), ("/v1/cms/truncate", {"epoch": 5000})):
        with pytest.raises(Rejected):
            admin(cluster).post(path, {**body, "dry_run": True})
    assert admin(cluster).get("/v1/metadata") == before


def test_each_node_proves_its_log_and_tells_digests_by_part(cluster: Nodes) -> None:
    epoch = admin(cluster).get("/v1/metadata")["epoch"]
    proofs = [admin(cluster, at).get("/v1/metadata/proof", **{"from": 1}) for at in range(3)]
    assert all(proof["problem"] is None and proof["oldest"] == 1 for proof in proofs)
    for asked in (epoch, epoch // 2, 1, 0):
        digests = [admin(cluster, at).get("/v1/metadata/digest", epoch=asked) for at in range(3)]
        parts = [found["parts"] for found in digests]
        assert parts[0] == parts[1] == parts[2] and "schema" in parts[0]
        assert len({found["digest"] for found in digests}) == 1
    values = {admin(cluster).get("/v1/metadata/digest", epoch=at)["digest"] for at in range(epoch + 1)}
    assert len(values) == epoch + 1, "every epoch has a digest of its own"


def test_a_changed_entry_in_memory_breaks_the_proof(cluster: Nodes) -> None:
    state = cluster.members[2].node.log.state
    held = state.entries[2]
    state.entries[2] = msgspec.structs.replace(held, actor="somebody else")
    try:
        proof = admin(cluster, 2).get("/v1/metadata/proof", **{"from": 1})
    finally:
        state.entries[2] = held
    assert proof["problem"]["epoch"] == 3 and "does not have the hash" in proof["problem"]["reason"]


def test_verify_names_the_node_and_the_part_that_differ(cluster: Nodes) -> None:
    state = cluster.members[2].node.log.state
    held = state.current
    host = f"{cluster.members[0].address}:{ADMIN_PORT}"
    state.newest.show(held.changed(EXTENSIONS.set(held.extensions.insert("x", b"y"))))
    try:
        result = CliRunner().invoke(root, ["metadata", "verify", "--host", host, "-o", "json"])
    finally:
        state.newest.show(held)
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert found["first_divergence"] == {
        "node": cluster.members[2].node.context.own_id(),
        "epoch": held.epoch,
        "part": "extensions",
        "exact": True,
    }
    again = CliRunner().invoke(root, ["metadata", "verify", "--host", host])
    assert again.exit_code == 0, again.output


def test_the_service_is_described_as_a_whole(cluster: Nodes) -> None:
    wait_for_members(cluster)
    for at in range(4):
        found = admin(cluster, at).get("/v1/cms")
        assert found["groups"] == {"metastorage": "Available", "cmg": "Available"}
        assert [member["state"] for member in found["members"]] == ["Healthy"] * 3
        assert found["raft"]["voters"] == [1, 2, 3] and not found["raft"]["joint"]
        assert [(one["role"], one["state"]) for one in found["management"]["states"]] == [
            ("voting member", "Healthy")
        ] * 3
        assert found["size"] == {"actual": 3, "wanted": 3, "set_by": "size of the cluster"}
        assert (found["change"], found["waiting"], found["frozen"]) == (None, [], "")
        assert found["log"]["oldest_entry"] == 1 and found["recovery_generation"] == 0
        assert found["leader"] in (1, 2, 3) and found["term"] >= 1


def test_the_views_of_the_metadata_can_be_read_by_key(cluster: Nodes) -> None:
    with WireClient(cluster.members[0].address, CQL_PORT, 5) as client:
        client.startup()

        def rows(text: str) -> int:
            return len(client.query(f"SELECT * FROM system_views.{text}").rows)

        epoch = cluster.members[0].node.log.cluster.epoch
        name = cluster.members[0].node.log.cluster.identity.cluster_name
        assert rows("cluster_metadata_log") == epoch
        assert rows("cluster_metadata_log WHERE epoch = 2") == 1
        assert rows(f"cluster_metadata_log WHERE cluster = '{name}' AND epoch > 1 AND epoch <= 3") == 2
        assert rows("cluster_metadata_log WHERE cluster = 'none'") == 0
        assert rows("cluster_metadata_directory WHERE node_id = 2") == 1
        assert rows("cluster_metadata_directory WHERE node_id = 99") == 0
        assert rows("cluster_metadata_directory") == 4
        assert rows("cms_members") == 3
        assert rows("placements WHERE keyspace_name = 'shop'") == rows("placements") > 10
        assert rows("barriers") == rows("sessions") == rows("cluster_metadata_locks") == 0
        assert rows("settings WHERE name = 'cluster.name'") == 1


def wait_for_members(cluster: Nodes) -> None:
    """Until both groups have the voters that a cluster of four has, and nobody is being added."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        found = [
            admin(cluster).get(f"/management/v1/recovery/{group}/state/global")
            for group in ("cmg", "metastorage")
        ]
        if all(len(answer["voters"]) == answer["available_peers"] == 3 for answer in found):
            return
        time.sleep(0.1)
    raise AssertionError(f"no three voters: {found}")


def test_the_management_group_goes_where_it_is_told_and_back(cluster: Nodes) -> None:
    wait_for_members(cluster)
    path, states = "/management/v1/recovery/cmg/reconfigure", "/management/v1/recovery/cmg/state/global"
    voters = list(cluster.members[0].node.log.cluster.voters)

    def arrived(wanted: list[int]) -> None:
        deadline_s = time.monotonic() + 20
        while admin(cluster, 3).get(states)["voters"] != wanted:
            assert time.monotonic() < deadline_s, admin(cluster, 3).get(states)
            time.sleep(0.1)

    planned = admin(cluster).post(path, {"nodes": ["4"], "dryRun": True})
    assert (planned["before"], planned["after"], planned["dry_run"]) == (voters, [4], True)
    told = admin(cluster).post(path, {"nodes": ["4"]})
    is_served_as(GroupReconfiguration, json.dumps(told).encode())
    arrived([4])
    with pytest.raises(Rejected, match="odd number"):
        admin(cluster).post(path, {"nodes": ["1", "4"]})
    with pytest.raises(ConfigurationError, match="no group"):
        admin(cluster).post(path.replace("cmg", "other"), {})
    with pytest.raises(Rejected, match="voters already"):
        metastorage = path.replace("cmg", "metastorage")
        admin(cluster).post(metastorage, {"nodes": [str(voter) for voter in voters]})
    assert admin(cluster).post(path, {})["follows"] is True
    wait_for_members(cluster)
    arrived(voters)
    deadline_s = time.monotonic() + 20
    while cluster.members[3].node.membership.management.group is not None:
        assert time.monotonic() < deadline_s, "who is out of the group ends its part"
        time.sleep(0.1)


@pytest.mark.parametrize("group", ["cmg", "metastorage"])
def test_a_groups_state_is_told_by_any_node(cluster: Nodes, group: str) -> None:
    path = f"/management/v1/recovery/{group}/state"
    wait_for_members(cluster)
    newest = cluster.members[0].node.log.cluster
    for index in (0, 3):
        found = admin(cluster, index).get(f"{path}/global")
        assert (found["state"], found["voters"]) == ("Available", list(newest.voters))
        assert found["available_peers"] == len(newest.voters)
        states = admin(cluster, index).get(f"{path}/local")["states"]
        votes = [row["node"] for row in states if row["role"] == "voting member"]
        assert votes == list(newest.voters)
        assert all(row["state"] == "Healthy" and row["term"] >= 1 and row["hash"] for row in states)
        if group == "metastorage":
            assert [row["node"] for row in states] == [1, 2, 3, 4]
            assert {(row["epoch"], row["hash"]) for row in states} == {(newest.epoch, newest.hash.hex())}
    assert admin(cluster).get("/v1/status")["groups"][group]["state"] == "Available"
    one = admin(cluster).get(f"{path}/local", nodes=cluster.members[1].address)["states"]
    assert [row["node"] for row in one] == [2]
    with pytest.raises(ConfigurationError, match="no node is called nobody"):
        admin(cluster).get(f"{path}/local", nodes="nobody")


def test_a_partition_cuts_a_node_off_until_it_is_healed(cluster: Nodes) -> None:
    others = [f"{member.address}:17000" for member in cluster.members[:3]]
    assert admin(cluster, 3).post("/v1/testing/partition", {"peers": others})["peers"] == sorted(others)
    assert len(cluster.members[3].node.context.internode.faults.blocked_to) == 3
    with pytest.raises(ConfigurationError):
        admin(cluster, 3).post("/v1/testing/partition", {"peers": "all"})
    admin(cluster, 3).post("/v1/testing/heal", {})
    assert not cluster.members[3].node.context.internode.faults.blocked_from


def test_fault_controls_are_closed_unless_configured(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as plain:
        door = plain.call(serve_admin(plain.members[0].node.services, plain.members[0].server, TOKEN))
        with pytest.raises(ConfigurationError, match="there is no"):
            admin(plain).post("/v1/testing/partition", {"peers": []})
        plain.loop.call_soon_threadsafe(door.close)


def test_the_voters_are_shown_planned_and_changed(cluster: Nodes) -> None:
    shown = admin(cluster, 3).get("/v1/cms/reconfiguration")
    assert (shown["state"], shown["voters"], shown["target"]) == ("settled", [1, 2, 3], 3)
    plan = admin(cluster, 3).post("/v1/cms/reconfigure", {"nodes": [2, 3, 4], "dry_run": True})
    assert (plan["additions"], plan["removals"], plan["voters_after"]) == ([4], [1], [2, 3, 4])
    assert admin(cluster).post("/v1/cms/reconfigure", {"size": 1, "dry_run": True})["removals"]
    for body, why in (
        ({"size": 0}, "one voter at least"),
        ({"size": 9}, "more than the 4 normal nodes"),
        ({"nodes": [1, 2]}, "odd number"),
        ({"nodes": [9]}, "there is no node 9"),
    ):
        with pytest.raises(Rejected, match=why):
            admin(cluster).post("/v1/cms/reconfigure", body)
    with pytest.raises(ConfigurationError, match="give one of"):
        admin(cluster).post("/v1/cms/reconfigure", {})
    with pytest.raises(Rejected, match="no change of the voters"):
        admin(cluster).post("/v1/cms/cancel", {})
    for nodes_wanted in ("2,3,4", "1,2,3"):
        command = ["cms", "reconfigure", "--nodes", nodes_wanted, "--timeout", "20"]
        ran = CliRunner().invoke(root, [*command, "--host", f"{cluster.members[1].address}:{ADMIN_PORT}"])
        assert ran.exit_code == 0, ran.output
        assert f"settled: voters {nodes_wanted.replace(',', ', ')}" in ran.output
    status = CliRunner().invoke(
        root, ["cms", "reconfigure", "--status", "--host", f"{cluster.members[2].address}:{ADMIN_PORT}"]
    )
    assert "settled: voters 1, 2, 3" in status.output and "set by an operator" in status.output
    admin(cluster).post("/v1/cms/reconfigure", {"automatic": True})


def test_streams_of_changes_are_made_to_fit_and_then_left(cluster: Nodes) -> None:
    host = f"{cluster.members[1].address}:{ADMIN_PORT}"
    before = read(Streams, admin(cluster, 1).get("/v1/topology/streams"))
    assert before.generations[0].current and all(one.streams for one in before.generations)
    first, second = (CliRunner().invoke(root, ["topology", "cdc-repair", "--host", host]) for _ in range(2))
    assert first.exit_code == 0 or "the streams fit the ring already" in first.output
    assert second.exit_code and "the streams fit the ring already" in second.output
    after = read(Streams, admin(cluster, 1).get("/v1/topology/streams"))
    assert len(after.generations) == len(before.generations) + (first.exit_code == 0)


def until_shut_out(cluster: Nodes) -> dict[str, Any]:
    """The status of the fourth node once it knows that it is excluded."""
    deadline_s = time.monotonic() + 10
    while True:
        answer = admin(cluster, 3).get("/v1/status")
        if answer["excluded"] or time.monotonic() > deadline_s:
            return answer
        time.sleep(0.05)


def test_a_node_is_shut_out_and_taken_back_once_it_has_caught_up(cluster: Nodes) -> None:
    host = f"{cluster.members[1].address}:{ADMIN_PORT}"

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(root, ["topology", "exclude", *arguments, "--host", host])
        return result.exit_code, result.output

    code, output = run("4", "--reason", "its disk is suspect")
    try:
        assert code == 0 and "node 4 is excluded since epoch" in output and "suspect" in output
        # The node that was asked has applied it; others may be an entry behind.
        assert [one["node"] for one in admin(cluster, 1).get("/v1/excluded")["excluded"]] == [4]
        assert "excluded already" in run("4")[1]
        with pytest.raises(Rejected, match="is a voter"):
            admin(cluster, 1).post("/v1/excluded", {"nodes": [1]})
        shown = CliRunner().invoke(root, ["status", "--host", host]).output
        assert shown.startswith("degraded: node 4 is excluded; every range has a quorum"), shown
        assert "its disk is suspect" in shown and " excluded  normal" in shown
        gossip = CliRunner().invoke(root, ["gossip", "info", "--host", host]).output
        assert [line.split()[3] for line in gossip.splitlines()[1:5]] == ["up", "up", "up", "excluded"]
        own = until_shut_out(cluster)
        assert own["verdict"].startswith("unavailable: this node is excluded"), own["verdict"]
    finally:
        undone = run("4", "--undo")
    assert undone == (0, "no node is excluded\n")
    with pytest.raises(Rejected, match="not excluded"):
        admin(cluster, 1).post("/v1/excluded", {"nodes": [4], "undo": True})


def test_a_queued_request_says_why_it_waits_and_can_be_cancelled(cluster: Nodes) -> None:
    admin(cluster, 1).post("/v1/excluded", {"nodes": [4]})
    try:
        asked = admin(cluster, 1).post("/v1/requests", {"kind": "decommission", "node": 1})
        assert (asked["state"], asked["policy"]) in (("queued", "wait"), ("running", "wait"))
        with pytest.raises(Rejected, match="has request"):
            admin(cluster, 2).post("/v1/requests", {"kind": "decommission", "node": 1})
        host = f"{cluster.members[1].address}:{ADMIN_PORT}"
        told = CliRunner().invoke(root, ["why", f"request/{asked['id']}", "--host", host])
        assert told.exit_code == 0 and "vote" in told.output, told.output
        ended = admin(cluster, 1).delete(f"/v1/requests/{asked['id']}")
        assert (ended["state"], ended["reason"]) == ("cancelled", "cancelled by an operator")
    finally:
        admin(cluster, 1).post("/v1/excluded", {"nodes": [4], "undo": True})


def test_a_decommission_runs_to_its_end_and_stays_in_the_list(cluster: Nodes) -> None:
    host = f"{cluster.members[1].address}:{ADMIN_PORT}"
    result = CliRunner().invoke(root, ["topology", "decommission", "4", "--host", host, "-o", "json"])
    assert result.exit_code == 0, result.output
    ended = json.loads(result.stdout)
    assert (ended["state"], ended["kind"], ended["node"]) == ("done", "decommission", 4)
    listed = admin(cluster, 2).get("/v1/requests")["requests"]
    assert [(request["kind"], request["state"]) for request in listed] == [
        ("decommission", "done"),
        ("decommission", "cancelled"),
        ("bootstrap", "done"),
    ]
    assert len(admin(cluster).get("/v1/nodes")["nodes"]) == 3


def test_the_log_and_the_keyspaces_are_told_by_names(cluster: Nodes) -> None:
    summaries = [
        e["summary"] for e in admin(cluster).get("/v1/metadata/log", **{"from": 2, "to": 40})["entries"]
    ]
    assert any("replication=(class: " in summary for summary in summaries), summaries
    assert not any(
        "Replication(" in k["replication"] for k in admin(cluster).get("/v1/metadata")["keyspaces"]
    )


def test_snapshots_truncation_and_dumps_through_the_admin_api(cluster: Nodes, tmp_path: Path) -> None:
    # The last test of this module: the others read the whole log.
    host = f"{cluster.members[2].address}:{ADMIN_PORT}"

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(root, [*arguments, "--host", host])
        assert result.exit_code == 0, result.output
        return result.output

    before = admin(cluster).get("/v1/metadata")["epoch"]
    assert str(before + 1) in run("cms", "snapshot", "--reason", "test")
    with pytest.raises(Rejected, match="nothing changed"):
        admin(cluster).post("/v1/cms/snapshot", {})
    for name, options in (("with", []), ("value", ["--value-only"]), ("past", ["--epoch", "2"])):
        file = str(tmp_path / name)
        run("cms", "dump", file, *options)
        checked = CliRunner().invoke(root, ["cms", "load", file, "--check", "-o", "json"])
        assert checked.exit_code == 0, checked.output
        facts = json.loads(checked.stdout)
        assert facts["epoch"] == (2 if name == "past" else before + 1)
        assert facts["snapshot_epoch"] == (before + 1 if name == "with" else None)
        assert facts["hash"] == admin(cluster).get("/v1/metadata", epoch=facts["epoch"])["hash"]
    seeded = CliRunner().invoke(
        root, ["cms", "load", str(tmp_path / "with"), "--data-directory", str(tmp_path / "d")]
    )
    assert seeded.exit_code == 0 and (tmp_path / "d" / "metadata").is_dir(), seeded.output
    damaged = bytearray((tmp_path / "with").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(bytes(damaged))
    refused = CliRunner().invoke(root, ["cms", "load", str(tmp_path / "damaged"), "--check"])
    assert refused.exit_code == 1 and "CORRUPT_FILE" in refused.output
    run("cms", "truncate")
    with pytest.raises(Rejected, match="beyond the latest snapshot"):
        admin(cluster).post("/v1/cms/truncate", {"epoch": before + 2})


TWO_REPLICAS = {"class": "SimpleStrategy", "replication_factor": "2"}
ONE_REPLICA = {"class": "SimpleStrategy", "replication_factor": "1"}
SERVED: dict[str, type[msgspec.Struct]] = {
    "/v1/status": Status,
    "/v1/nodes": ListedNodes,
    "/v1/gossip": Gossip,
    "/v1/requests": Requests,
    "/v1/excluded": ExcludedNodes,
    "/v1/cms": Service,
    "/v1/cms/reconfiguration": Voters,
    "/v1/placements?keyspace=shop": Placements,
    "/v1/describe?keyspace=shop": Description,
    "/v1/features": Features,
    "/v1/cms/snapshots": Snapshots,
    "/v1/cms/dump": DumpPiece,
    "/v1/metadata/log?from={oldest}&to={newest}&available=true": LoggedEntries,
    "/v1/metadata/diff?from={oldest}&to={newest}": MetadataDiff,
    "/v1/metadata/proof?from=1": Proof,
    "/v1/metadata/digest?epoch={newest}": Digest,
    "/v1/repairs": Repairs,
    "/v1/backups": Backups,
    "/v1/loads": Loads,
    "/v1/story?kind=node&id=1": Story,
    "/management/v1/recovery/cmg/state/local": LocalStates,
    "/management/v1/recovery/metastorage/state/global": GlobalState,
}


def is_served_as(kind: type[msgspec.Struct], body: bytes) -> None:
    known = msgspec.convert(json.loads(body), kind)
    assert json.dumps(msgspec.to_builtins(known)).encode() == body


def test_an_answer_of_another_shape_is_an_error_that_names_the_member() -> None:
    with pytest.raises(LockstepError, match=r"no gossip/1: Expected `array`.*nodes"):
        read(Gossip, {"schema": "gossip/1", "nodes": 3})


@pytest.mark.parametrize("path", SERVED)
def test_what_is_served_is_the_document_byte_for_byte(cluster: Nodes, path: str) -> None:
    told = admin(cluster).get("/v1/cms")
    named = path.format(oldest=max(told["log"]["oldest_value"], 1), newest=told["epoch"])
    status, body = raw(cluster, "GET", named)
    assert status == 200, body
    is_served_as(SERVED[path], body)


def test_a_request_is_served_as_the_document_while_it_runs_and_after(cluster: Nodes) -> None:
    """A change of replication, for its steps tell of path, barrier and work."""
    wanted = {"kind": "replication_change", "keyspace": "shop", "replication": TWO_REPLICAS}
    asked = admin(cluster).post("/v1/requests", wanted)
    seen = set()
    while "done" not in seen:
        status, body = raw(cluster, "GET", f"/v1/requests/{asked['id']}")
        assert status == 200
        is_served_as(Request, body)
        seen.add(json.loads(body)["state"])
        is_served_as(Requests, raw(cluster, "GET", "/v1/requests")[1])
        is_served_as(Status, raw(cluster, "GET", "/v1/status")[1])
        assert "failed" not in seen


@pytest.mark.parametrize(
    ("path", "wanted", "kind"),
    [
        ("/v1/repairs", {"keyspace": "shop"}, RepairPlan),
        ("/v1/backups", {"name": "one", "tables": ["shop"]}, BackupPlan),
        ("/v1/cms/reconfigure", {"size": 1}, ServicePlan),
        ("/v1/cms/freeze", {"reason": "a test"}, ServicePlan),
    ],
)
def test_other_plans_are_served_as_the_document(
    cluster: Nodes, path: str, wanted: dict[str, Any], kind: type[msgspec.Struct]
) -> None:
    status, body = raw(cluster, "POST", path, json.dumps({**wanted, "dry_run": True}).encode())
    assert status == 200, body
    is_served_as(kind, body)


@pytest.mark.parametrize(
    ("path", "run", "wanted", "kind"),
    [
        ("/v1/repairs", "/v1/repairs", {"keyspace": "shop"}, Repair),
        ("/v1/backups", "/v1/backup-runs", {"name": "one", "tables": ["shop"]}, BackupRun),
    ],
)
def test_runs_are_served_as_the_document(
    cluster: Nodes, path: str, run: str, wanted: dict[str, Any], kind: type[msgspec.Struct]
) -> None:
    begun = admin(cluster).post(path, wanted)
    seen = ""
    while seen != "done":
        _, body = raw(cluster, "GET", f"{run}/{begun['id']}")
        is_served_as(kind, body)
        seen = json.loads(body)["state"]
        assert seen in ("running", "done")
    is_served_as(Backups, raw(cluster, "GET", "/v1/backups")[1])
    is_served_as(Repairs, raw(cluster, "GET", "/v1/repairs")[1])


@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": "rebuild", "node": 2},
        {"kind": "replication_change", "keyspace": "shop", "replication": ONE_REPLICA},
    ],
)
def test_plans_are_served_as_the_document(cluster: Nodes, wanted: dict[str, Any]) -> None:
    asked = json.dumps({**wanted, "dry_run": True}).encode()
    status, body = raw(cluster, "POST", "/v1/requests", asked)
    assert status == 200, body
    is_served_as(RequestPlan, body)
