"""Which entries and which nodes a cluster of several versions takes."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory, NodeState
from lockstep.metadata.extensions import EXTENSIONS
from lockstep.metadata.log.registry import (
    LOG_VERSION,
    SINCE,
    EntryKind,
    Registry,
    lowest_version,
    refuse_newer_kind,
)
from lockstep.metadata.transformations import KINDS, Initialize, Register, SetExtension, UpdateNode
from lockstep.values.errors import VersionMismatch
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder
from tests.metadata.test_log import register

NEW_KIND = 2000


class NewThing(msgspec.Struct, frozen=True, array_like=True):
    """A kind of version 2."""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return cluster.changed(EXTENSIONS.set(cluster.extensions.insert("new", b"1")))


def of_version_2() -> Registry:
    return Registry(KINDS, {1000: SetKeyspaces, NEW_KIND: NewThing}, since={NEW_KIND: 2})


def cluster_with(*versions: int) -> History:
    made = History(of_version_2())
    founders = tuple(
        msgspec.structs.replace(founder(number, (number,)), log_version=version)
        for number, version in enumerate(versions, 1)
    )
    made.submit(Initialize("id", "name", founders, (NodeId(1),)))
    return made


def joining(number: int, version: int) -> Register:
    return msgspec.structs.replace(register(number), log_version=version)


def test_every_kind_has_a_version_and_the_newest_is_the_log_version() -> None:
    assert set(SINCE) == {kind.value for kind in EntryKind}
    assert max(SINCE.values()) == LOG_VERSION == Registry(KINDS, since=SINCE).version
    assert of_version_2().version == 2


def test_a_node_that_left_is_not_named_among_those_to_upgrade() -> None:
    old = [msgspec.structs.replace(node, log_version=1) for node in cluster_with(2, 2).now.directory.nodes]
    left = msgspec.structs.replace(old[0], state=NodeState.LEFT, tokens=())
    with pytest.raises(VersionMismatch, match="nodes 2 cannot"):
        refuse_newer_kind(Directory((left, *old[1:]), 3), NEW_KIND, 2)


def test_a_kind_that_some_node_cannot_read_is_refused_until_that_node_is_upgraded() -> None:
    made = cluster_with(2, 1, 2)
    refusal = made.tried(NewThing())
    assert isinstance(refusal, VersionMismatch) and refusal.code == "VERSION_MISMATCH"
    assert "nodes 2 cannot" in refusal.message
    made.submit(SetExtension("old", b"1"))
    node = made.now.directory.by_id[NodeId(2)]
    made.submit(UpdateNode(node.id, node.address, 7000, 9042, 7080, "2", 2))
    assert lowest_version(made.now.directory) == 2
    made.submit(NewThing())
    assert made.now.extensions.get("new") == b"1"


def test_a_node_that_cannot_read_the_log_is_not_registered() -> None:
    made = cluster_with(2, 2)
    refusal = made.tried(joining(7, 1))
    assert isinstance(refusal, VersionMismatch)
    made.submit(joining(7, 2))
    assert cluster_with(2, 1).tried(joining(7, 1)) is None


def test_a_node_does_not_go_back_below_what_the_others_write() -> None:
    made = cluster_with(2, 2)
    node = made.now.directory.nodes[0]
    assert isinstance(
        made.tried(UpdateNode(node.id, node.address, 7000, 9042, 7080, "1", 1)), VersionMismatch
    )
    mixed = cluster_with(2, 1)
    mixed.submit(UpdateNode(node.id, node.address, 7000, 9042, 7080, "1", 1))


def test_nodes_that_left_do_not_hold_the_others_back() -> None:
    made = cluster_with(2, 1)
    nodes = made.now.directory.nodes
    left = msgspec.structs.replace(nodes[1], state=NodeState.LEFT, tokens=())
    assert lowest_version(Directory((nodes[0], left), 3)) == 2
    assert lowest_version(Directory()) == 0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kinds_of_the_first_version_are_never_held_back(kind: int) -> None:
    assert of_version_2().since(kind) == 1
