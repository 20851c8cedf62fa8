"""Which cluster this is, and its nodes: ids, addresses, places, states, owned tokens, features, and who is
shut out.

Invariant: nodes are sorted by id, ids are never reused, no two nodes that have not left share a host id or an
address, and no token has two owners. A name is never given a second meaning. `BASE_FEATURES` never changes:
entries of the first version that name no features mean these.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from lockstep.metadata.part import Item, Part, Parts, collected, digest_of_each, struct_part, tuple_part
from lockstep.placement.circle import Circle, Owner
from lockstep.values.ids import NodeId
from lockstep.values.memo import keep, kept

METADATA_LOG: Final = "metadata-log"
CLUSTER_FEATURES: Final = "cluster-features"
FILE_STREAMING: Final = "file-streaming"
REPLICATION_CHANGE: Final = "replication-change"
ZERO_TOKEN_NODES: Final = "zero-token-nodes"

#: Name -> what it lets the cluster do, for people.
FEATURES: Final[Mapping[str, str]] = {
    CLUSTER_FEATURES: "what nodes can do is announced, and switched on for all of them at once",
    FILE_STREAMING: "ranges move as sorted files with checksums, and a broken stream goes on where it was",
    METADATA_LOG: "nodes, schema and ownership are one value, changed by the entries of one log",
    REPLICATION_CHANGE: "the replication of a keyspace with tables changes in safe steps",
    ZERO_TOKEN_NODES: "nodes without tokens coordinate requests and may vote, and store nothing",
}
#: What every node of the first version can do.
BASE_FEATURES: Final = (
    CLUSTER_FEATURES,
    FILE_STREAMING,
    METADATA_LOG,
    REPLICATION_CHANGE,
    ZERO_TOKEN_NODES,
)
#: What this version can do, sorted.
SUPPORTED: Final = tuple(sorted(FEATURES))


class FeatureState(msgspec.Struct, frozen=True, array_like=True):
    """`enabled` is sorted and only grows. `announced_epoch`: when a node last said what it supports."""

    enabled: tuple[str, ...] = ()
    announced_epoch: int = 0

    def validate(self) -> None:
        assert self.enabled == tuple(sorted(set(self.enabled))), "enabled features are sorted and unique"


NO_FEATURES = FeatureState()


def lacking(enabled: Sequence[str], supported: Sequence[str]) -> tuple[str, ...]:
    """The enabled features that are not among the supported ones."""
    held = set(supported)
    return tuple(name for name in enabled if name not in held)


#: What all nodes can do and do, and since when the nodes' support is as it is.
FEATURE_STATE: Final[Part[FeatureState]] = struct_part(
    "features", 11, NO_FEATURES, lambda one: one.validate()
)


class NodeState(enum.StrEnum):
    NONE = "none"
    BOOTSTRAPPING = "bootstrapping"
    DECOMMISSIONING = "decommissioning"
    REMOVING = "removing"
    REPLACING = "replacing"
    REBUILDING = "rebuilding"
    NORMAL = "normal"
    LEFT = "left"


#: States in which a node's tokens count when replicas are computed.
OWNING_STATES = (NodeState.NORMAL, NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.REBUILDING)


class NodeInfo(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """One node. `host_id` is a UUID as text; `tokens` are those it owns, sorted; `epoch` last changed it."""

    id: NodeId
    host_id: str
    address: str
    internode_port: int
    cql_port: int
    admin_port: int
    dc: str
    rack: str
    state: NodeState = NodeState.NONE
    tokens: tuple[int, ...] = ()
    version: str = ""
    epoch: int = 0
    #: The newest version of the metadata log that the node reads (see metadata.versions).
    log_version: int = 1
    #: Whether it may be chosen as a voter; told when it registers.
    may_vote: bool = True
    #: The dead node it was admitted to replace, whose address it may have; 0 for an ordinary node.
    replaces: NodeId = NodeId(0)
    #: How many tokens it asked for; 0: it never owns any, coordinates requests and may vote.
    num_tokens: int = 1
    #: What it can do (see metadata.feature_names), sorted.
    features: tuple[str, ...] = BASE_FEATURES
    #: The attempt to join that was accepted last; later ones of the same host are larger.
    attempt: int = 0
    #: Epoch of the entry that accepted that attempt: the node has applied it before it writes anything.
    accepted_epoch: int = 0

    @property
    def is_zero_token(self) -> bool:
        return self.num_tokens == 0

    @property
    def owns_tokens(self) -> bool:
        return bool(self.tokens) and self.state in OWNING_STATES

    @property
    def owner(self) -> Owner:
        return Owner(self.id, self.dc, self.rack, self.tokens)


class Directory(msgspec.Struct, frozen=True, array_like=True, dict=True):
    nodes: tuple[NodeInfo, ...] = ()
    next_node_id: int = 1

    @cached_property
    def by_id(self) -> dict[NodeId, NodeInfo]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def by_host_id(self) -> dict[str, NodeInfo]:
        return {node.host_id: node for node in self.nodes}

    @cached_property
    def by_address(self) -> dict[tuple[str, int], NodeInfo]:
        """(address, internode port) -> node; a node that left frees its address.

        A node that replaces a dead one at the same address comes after it, and is the one that is there.
        """
        return {(n.address, n.internode_port): n for n in self.nodes if n.state is not NodeState.LEFT}

    @cached_property
    def shadowed(self) -> frozenset[NodeId]:
        """Dead nodes whose address another node has taken over: nothing may be sent to them any more."""
        return frozenset(
            n.id
            for n in self.nodes
            if n.state is not NodeState.LEFT and self.by_address[n.address, n.internode_port].id != n.id
        )

    @cached_property
    def present_ids(self) -> tuple[NodeId, ...]:
        """Ids of the nodes that have not left, ascending."""
        return tuple(node.id for node in self.nodes if node.state is not NodeState.LEFT)

    @cached_property
    def dc_by_id(self) -> dict[NodeId, str]:
        return {node.id: node.dc for node in self.nodes}

    @cached_property
    def circle(self) -> Circle:
        """The owned tokens with their owners; a directory made by `with_node` takes it over."""
        return Circle.of(self.owners)

    @cached_property
    def data_centers(self) -> tuple[str, ...]:
        """Data centres of the nodes that have not left and own tokens or will, sorted."""
        return tuple(
            sorted({n.dc for n in self.nodes if n.state is not NodeState.LEFT and not n.is_zero_token})
        )

    @cached_property
    def owners(self) -> tuple[Owner, ...]:
        """The token owners from which replicas are computed, by id."""
        return tuple(node.owner for node in self.nodes if node.owns_tokens)

    def node(self, node_id: NodeId) -> NodeInfo | None:
        return self.by_id.get(node_id)

    def in_state(self, state: NodeState) -> tuple[NodeInfo, ...]:
        return tuple(node for node in self.nodes if node.state is state)

    def with_node(self, changed: NodeInfo) -> Directory:
        """This directory with one node replaced, or added when its id is the next free one."""
        known = self.by_id.get(changed.id)
        if known is not None:
            assert changed.host_id == known.host_id, "a node id is of one host"
            assert changed.epoch >= known.epoch, "a node changes at epochs that follow each other"
            nodes = tuple(changed if node.id == changed.id else node for node in self.nodes)
            after = Directory(nodes, self.next_node_id)
        else:
            assert changed.id == self.next_node_id, f"node ids are dense: {changed.id} is not next"
            after = Directory((*self.nodes, changed), self.next_node_id + 1)
        circle = kept(self, "circle")
        if circle is not None:
            # Sorting all tokens anew would cost far more than the change.
            keep(
                after, "circle", circle.changed({changed.id: changed.owner if changed.owns_tokens else None})
            )
        return after

    def validate(self) -> None:
        ids = [node.id for node in self.nodes]
        assert ids == sorted(set(ids)), "nodes are sorted by id"
        assert not ids or ids[-1] < self.next_node_id, "node ids are never reused"
        present = [node for node in self.nodes if node.state is not NodeState.LEFT]
        assert len({node.host_id for node in self.nodes}) == len(self.nodes), "host ids are unique"
        doors = {node.id: (node.address, node.internode_port) for node in present}
        shared = sum(node.replaces in doors and doors[node.replaces] == doors[node.id] for node in present)
        assert len(self.by_address) == len(present) - shared, "addresses are unique"
        tokens = [token for node in self.nodes for token in node.tokens]
        assert len(set(tokens)) == len(tokens), "a token has one owner"
        for node in self.nodes:
            assert node.tokens == tuple(sorted(node.tokens)), f"tokens of node {node.id} are sorted"
            assert not node.tokens or node.owns_tokens, f"node {node.id} is {node.state} and has tokens"
            assert not node.tokens or not node.is_zero_token, f"node {node.id} asked for no tokens"
            assert node.accepted_epoch <= node.epoch, f"node {node.id} changes after it was accepted"


EMPTY_DIRECTORY = Directory()


def _of_items(items: Sequence[Item]) -> Directory:
    next_node_id = next((value for kind, value in items if kind == 1), 1)
    return Directory(tuple(value for kind, value in items if kind == 0), next_node_id)


DIRECTORY: Final[Part[Directory]] = Part(
    name="directory",
    number=2,
    empty=EMPTY_DIRECTORY,
    items=lambda value: (*((0, node) for node in value.nodes), (1, value.next_node_id)),
    kinds=(NodeInfo, int),
    builder=collected(_of_items),
    # A change of one node costs its bytes and 32 of every other.
    digest=lambda value: digest_of_each(value.nodes, value.next_node_id),
    validate=lambda now, before: now[DIRECTORY].validate(),
)


class Exclusion(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`epoch` is that of the entry that excluded the node: it is taken back once it has applied it."""

    node: NodeId
    epoch: int
    reason: str


def _validate(now: Parts, before: Parts | None) -> None:
    nodes = [exclusion.node for exclusion in now[EXCLUDED]]
    assert nodes == sorted(set(nodes)), "the exclude list is sorted by node"
    assert now[DIRECTORY].by_id.keys() >= set(nodes), "who is shut out was let in"


#: Nodes that are shut out, by id.
EXCLUDED: Final[Part[tuple[Exclusion, ...]]] = tuple_part("excluded", 9, Exclusion, _validate)


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """`lineage` lists the ids this cluster had, oldest first, the present one last."""

    cluster_id: str = ""
    cluster_name: str = ""
    lineage: tuple[str, ...] = ()


IDENTITY: Final[Part[Identity]] = struct_part("identity", 1, Identity())


class Reset(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """A repair of lost groups that began `cluster_id`. `epoch` and `hash` are the last of the history that it
    continues, `at_us` the wall clock of who carried it out. `lost` says what may be missing, for people."""

    cluster_id: str
    kind: str
    actor: str
    epoch: int
    hash: bytes
    at_us: int
    lost: str = ""


def _validate_lineage(now: Parts, before: Parts | None) -> None:
    identity, repairs = now[IDENTITY], now[LINEAGE]
    begun = tuple(one.cluster_id for one in repairs)
    assert identity.lineage[1:] == begun, "each id but the first was begun by a repair"
    epochs = [one.epoch for one in repairs]
    assert epochs == sorted(set(epochs)), "a repair continues what the one before has begun"


#: What began each id of the cluster but the first, oldest first.
LINEAGE: Final[Part[tuple[Reset, ...]]] = tuple_part("lineage", 20, Reset, _validate_lineage, (IDENTITY,))
