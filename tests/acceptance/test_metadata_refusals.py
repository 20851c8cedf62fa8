"""Nodes whose version does not fit: one that cannot read an entry, and ones that are too old to take part.

Real node processes that pretend, by testing settings, to be of another version.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from lockstep.local import layout
from lockstep.local.clusters import LocalCluster
from lockstep.local.processes import State
from lockstep.node.settings import emit
from lockstep.values.errors import CannotApply, PreconditionError
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, Load, lockstep, until

pytestmark = pytest.mark.slow

FIRST = "127.0.1.141"
HOST = f"{FIRST}:{ADMIN_PORT}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("home")
    with LocalCluster.create("versions", 3, first_address=FIRST, ports=parts.PORTS, home=home) as made:
        made.start()
        yield made


@pytest.fixture
def load(cluster: LocalCluster) -> Iterator[Load]:
    made = Load(cluster.contact_points[:2])
    yield made
    made.close()


def pretend(cluster: LocalCluster, name: str, **testing: Any) -> None:
    """Restart a node with these testing settings and no others."""
    cluster.stop([name])
    file = cluster.paths.configuration(name)
    settings = tomllib.loads(file.read_text())
    settings["testing"] = {"faults": True, **testing}
    file.write_text(emit(settings))
    cluster.start([name])


def status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    return cluster.admin(name).get("/v1/status")


def test_a_node_that_cannot_apply_an_entry_stops_and_says_why_while_others_go_on(
    cluster: LocalCluster, load: Load
) -> None:
    pretend(cluster, "n3", hide_kinds=["set_service"])
    assert lockstep("cms", "freeze", "an entry that n3 cannot read", "--host", HOST).code == 0
    until(lambda: status(cluster, "n3")["broken"])
    reason = "entry kind 14 is not known to this version"
    assert reason in status(cluster, "n3")["verdict"]
    assert f"error[CANNOT_APPLY]: {reason}" in cluster.paths.log("n3").read_text()
    assert cluster.state("n3") is State.RUNNING, "for its operators"
    shown = lockstep("cms", "describe", "--host", f"{cluster.file.node('n3').address}:{ADMIN_PORT}")
    assert "Broken" in shown.out
    assert reason in shown.out
    verified = lockstep("metadata", "verify", "--host", HOST)
    assert verified.code == 6
    assert "stopped" in verified.out
    assert reason in verified.out
    # Two voters decide, and the third one counts for nothing.
    assert lockstep("cms", "thaw", "--host", HOST).code == 0
    load.session.execute(f"ALTER TABLE {parts.KEYSPACE}.load ADD without_n3 int")
    until(lambda: not next(node for node in status(cluster, "n1")["nodes"] if node["id"] == 3)["alive"])
    assert status(cluster, "n3")["epoch"] < status(cluster, "n1")["epoch"]
    load.goes_on(20)


def test_it_stops_again_at_the_same_entry_and_goes_on_with_a_version_that_knows_it(
    cluster: LocalCluster, load: Load
) -> None:
    # It serves for a moment unless it hears of the entry before its doors are open.
    with suppress(CannotApply):
        pretend(cluster, "n3", hide_kinds=["set_service"])
    until(lambda: status(cluster, "n3")["broken"])
    pretend(cluster, "n3")
    until(lambda: status(cluster, "n3")["epoch"] == status(cluster, "n1")["epoch"])
    assert status(cluster, "n3")["broken"] is None
    until(lambda: lockstep("metadata", "verify", "--host", HOST).code == 0)
    load.goes_on(20)
    own = parts.connect([cluster.file.node("n3").address])
    own.connect().execute(f"SELECT without_n3 FROM {parts.KEYSPACE}.load LIMIT 1")
    own.shutdown()


def test_a_member_that_became_older_than_the_log_does_not_start(cluster: LocalCluster) -> None:
    with pytest.raises(PreconditionError, match="reads the log up to version 0, and the cluster writes"):
        pretend(cluster, "n3", log_version=0)
    assert cluster.state("n3") is State.STOPPED
    pretend(cluster, "n3")


def test_a_newcomer_that_is_too_old_cannot_register(cluster: LocalCluster, load: Load) -> None:
    content = cluster.file
    older = {**content.settings, "testing": {"faults": True, "log_version": 0}}
    layout.write(cluster.paths, msgspec.structs.replace(content, settings=older))
    with pytest.raises(PreconditionError, match="reads the log up to version 0, and the cluster writes"):
        cluster.add()
    nodes = status(cluster, "n1")["nodes"]
    assert [node["address"] for node in nodes] == cluster.contact_points[:3]
    load.goes_on()


def test_a_newer_node_changes_nothing_for_the_others(cluster: LocalCluster, load: Load) -> None:
    pretend(cluster, "n2", log_version=7)
    own = parts.connect([FIRST])
    session = own.connect()
    versions = {
        row.broadcast_address: row.serialization_version
        for row in session.execute("SELECT * FROM system_views.cluster_metadata_directory")
    }
    own.shutdown()
    assert sorted(versions.values()) == [1, 1, 7], versions
    load.session.execute(f"ALTER TABLE {parts.KEYSPACE}.load ADD with_a_newer_node int")
    load.goes_on()
    assert parts.settled_errors(cluster) == ""
