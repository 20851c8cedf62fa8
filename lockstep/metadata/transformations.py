"""Transformations of the metadata's own parts: making the cluster, registering and updating nodes.

Invariant: each is a pure function of the value and its own fields. What changes the schema is in
metadata.schema_change, what changes ownership in topology.transformations.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cdc import GENERATIONS, first_generation
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import (
    BASE_FEATURES,
    DIRECTORY,
    FEATURE_STATE,
    IDENTITY,
    Directory,
    FeatureState,
    Identity,
    NodeInfo,
    NodeState,
    lacking,
)
from lockstep.metadata.extensions import EXTENSIONS
from lockstep.metadata.groups.ringed import RINGED
from lockstep.metadata.groups.service import SERVICE, Service
from lockstep.metadata.joining import JoinRefusal, collision, joining_node, refusal_of
from lockstep.metadata.log.registry import EntryKind, refuse_older_node
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    EXTENSION_NAME_CHARACTERS_MAX,
    EXTENSIONS_MAX,
    TOKENS_PER_NODE_MAX,
)
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: Voters of a new cluster when it names none. The group grows with the cluster by the rules of its members.
INITIAL_VOTERS_MAX = 1


class Founder(msgspec.Struct, frozen=True, array_like=True):
    """A node that is in the cluster from its first epoch, with the tokens it owns."""

    host_id: str
    address: str
    internode_port: int
    cql_port: int
    admin_port: int
    dc: str
    rack: str
    tokens: tuple[int, ...]
    version: str = ""
    log_version: int = 1
    features: tuple[str, ...] = BASE_FEATURES


class Initialize(msgspec.Struct, frozen=True, array_like=True):
    """The first entry. Founders get ids 1..n in the given order and are normal at once; the first of them
    owns tokens. What all of them can do is enabled at once.

    `voters` are positions' ids (1..n); empty means the first founder. `at_ms` is the founder's wall clock:
    from then on the first generation of change data capture counts.
    """

    cluster_id: str
    cluster_name: str
    founders: tuple[Founder, ...]
    voters: tuple[NodeId, ...] = ()
    at_ms: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if cluster.epoch != 0:
            raise Rejected(f"this cluster was already made, as {cluster.identity.cluster_id}")
        if not self.cluster_id or not self.founders:
            raise Rejected("a cluster needs an id and at least one founder")
        if not self.founders[0].tokens:
            raise Rejected("the first node of a cluster owns tokens", hint="set its [placement] num_tokens")
        directory = Directory()
        for founder in self.founders:
            directory = directory.with_node(self._node(directory, founder, epoch))
        wanted = self.voters or tuple(node.id for node in directory.nodes[:INITIAL_VOTERS_MAX])
        if tuple(sorted(set(wanted))) != wanted or any(voter not in directory.by_id for voter in wanted):
            raise Rejected(f"voters {list(wanted)} are not distinct founders in ascending order")
        assert len(directory.circle.tokens) == sum(len(f.tokens) for f in self.founders), "no token is lost"
        identity = Identity(self.cluster_id, self.cluster_name, (self.cluster_id,))
        common = set(self.founders[0].features).intersection(*(f.features for f in self.founders))
        return cluster.changed(
            IDENTITY.set(identity),
            DIRECTORY.set(directory),
            SERVICE.set(Service(wanted)),
            FEATURE_STATE.set(FeatureState(tuple(sorted(common)), epoch)),
            GENERATIONS.set((first_generation(self.cluster_id, directory.circle.tokens, self.at_ms, epoch),)),
        )

    @staticmethod
    def _node(directory: Directory, founder: Founder, epoch: int) -> NodeInfo:
        node = NodeInfo(
            id=NodeId(directory.next_node_id),
            host_id=founder.host_id,
            address=founder.address,
            internode_port=founder.internode_port,
            cql_port=founder.cql_port,
            admin_port=founder.admin_port,
            dc=founder.dc,
            rack=founder.rack,
            state=NodeState.NORMAL,
            tokens=tuple(sorted(founder.tokens)),
            version=founder.version,
            epoch=epoch,
            log_version=founder.log_version,
            num_tokens=len(founder.tokens),
            features=founder.features,
            accepted_epoch=epoch,
        )
        _refuse(collision(directory, node))
        if node.tokens:
            refuse_bad_tokens(directory, node.tokens)
        return node


class Register(msgspec.Struct, frozen=True, array_like=True):
    """Admit a node: it gets an id and state `none`, and owns nothing until it bootstraps.

    It is refused for the reasons of `metadata.joining`. `replaces` names the dead node whose tokens it is to
    take: only then may it come with that node's address. A node that was admitted and is not normal yet may
    present itself again, with a larger `attempt`: its addresses and what it can do are then those of now.
    `as_of`: the epoch by which it saw whether it had to be let in by the management group; 0: not said.
    """

    host_id: str
    address: str
    internode_port: int
    cql_port: int
    admin_port: int
    dc: str
    rack: str
    version: str = ""
    log_version: int = 1
    may_vote: bool = True
    replaces: NodeId = NodeId(0)
    num_tokens: int = 1
    features: tuple[str, ...] = BASE_FEATURES
    attempt: int = 0
    as_of: int = 0

    def entry(self, cluster: ClusterMetadata, epoch: int) -> NodeInfo:
        """The node's entry once it is accepted at `epoch`."""
        known = joining_node(cluster, self.host_id)
        return NodeInfo(
            id=known.id if known is not None else NodeId(cluster.directory.next_node_id),
            host_id=self.host_id,
            address=self.address,
            internode_port=self.internode_port,
            cql_port=self.cql_port,
            admin_port=self.admin_port,
            dc=self.dc,
            rack=self.rack,
            state=known.state if known is not None else NodeState.NONE,
            version=self.version,
            epoch=epoch,
            log_version=self.log_version,
            may_vote=self.may_vote,
            replaces=self.replaces,
            num_tokens=self.num_tokens,
            features=tuple(sorted(self.features)),
            attempt=self.attempt,
            accepted_epoch=epoch,
        )

    def is_before_log(self, cluster: ClusterMetadata) -> bool:
        """Whether it was made on the ring, and there is a log by now."""
        return 0 < self.as_of < cluster.parts[RINGED].built_epoch

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        refuse_older_node(cluster.directory, self.log_version)
        if self.is_before_log(cluster):
            raise Rejected(
                "the cluster got a log meanwhile, whose management group has to let the node in",
                hint="it asks again by itself",
            )
        node = self.entry(cluster, epoch)
        _refuse(refusal_of(cluster, node))
        return _announced(cluster, node, epoch)


class UpdateNode(msgspec.Struct, frozen=True, array_like=True):
    """A node came back with new addresses or another version; its place and state stay."""

    node: NodeId
    address: str
    internode_port: int
    cql_port: int
    admin_port: int
    version: str
    log_version: int = 1
    features: tuple[str, ...] = BASE_FEATURES

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        found = cluster.node(self.node)
        if found is None:
            raise Rejected(f"there is no node {self.node}")
        if found.state is NodeState.LEFT:
            raise Rejected(f"node {self.node} has left the cluster", hint="start it with an empty directory")
        changed = msgspec.structs.replace(
            found,
            address=self.address,
            internode_port=self.internode_port,
            cql_port=self.cql_port,
            admin_port=self.admin_port,
            version=self.version,
            log_version=self.log_version,
            features=tuple(sorted(self.features)),
        )
        if self.log_version < found.log_version:
            refuse_older_node(cluster.directory, self.log_version)
        missing = lacking(cluster.features.enabled, changed.features)
        if missing:
            raise Rejected(
                f"the cluster uses {', '.join(missing)}, which this node does not support any more",
                hint="start a version that supports it",
            )
        if changed == found:
            return cluster
        changed = msgspec.structs.replace(changed, epoch=epoch)
        _refuse(collision(cluster.directory, changed))
        return _announced(cluster, changed, epoch)


def refuse_before_initialize(cluster: ClusterMetadata) -> None:
    """Raises Rejected when no cluster was made yet."""
    if cluster.epoch == 0:
        raise Rejected("the cluster is not initialized")


def _refuse(refusal: JoinRefusal | None) -> None:
    if refusal is not None:
        raise Rejected(refusal.reason, hint=refusal.hint)


def _announced(cluster: ClusterMetadata, node: NodeInfo, epoch: int) -> ClusterMetadata:
    """The value with this entry of a node, and the epoch of the announcement when it can do other things."""
    assert node.epoch == epoch, "the entry that changes a node is known by its epoch"
    known = cluster.directory.by_id.get(node.id)
    assert node.state is not NodeState.LEFT, "who has left announces nothing"
    assert node.accepted_epoch <= epoch, "who announces itself was accepted"
    features = cluster.features
    # A newcomer that can do just what is enabled keeps all else from being enabled: no news of it is needed.
    if node.features != (known.features if known is not None else features.enabled):
        features = FeatureState(features.enabled, epoch)
    return cluster.changed(DIRECTORY.set(cluster.directory.with_node(node)), FEATURE_STATE.set(features))


def refuse_bad_tokens(directory: Directory, tokens: tuple[int, ...]) -> None:
    """Raises Rejected for tokens that are missing, repeated, out of the ring or owned by a node."""
    if not tokens or len(tokens) > TOKENS_PER_NODE_MAX:
        raise Rejected(f"a node owns 1 to {TOKENS_PER_NODE_MAX} tokens, not {len(tokens)}")
    if len(set(tokens)) != len(tokens):
        raise Rejected("the tokens are not distinct")
    for token in tokens:
        if not TOKEN_MIN < token <= TOKEN_MAX:
            raise Rejected(f"token {token} is outside the ring")
        owner = directory.circle.owner_of(token)
        if owner is not None:
            raise Rejected(f"token {token} belongs to node {owner}")


class SetExtension(msgspec.Struct, frozen=True, array_like=True):
    """Keep `value` under `name` for tools; an empty value removes it."""

    name: str
    value: bytes

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        if not self.name or len(self.name) > EXTENSION_NAME_CHARACTERS_MAX:
            raise Rejected(f"the name of an extension has 1 to {EXTENSION_NAME_CHARACTERS_MAX} characters")
        if not self.value:
            return cluster.changed(EXTENSIONS.set(cluster.extensions.discard(self.name)))
        if self.name not in cluster.extensions and len(cluster.extensions) >= EXTENSIONS_MAX:
            raise Rejected(f"the metadata keeps at most {EXTENSIONS_MAX} extensions")
        return cluster.changed(EXTENSIONS.set(cluster.extensions.insert(self.name, self.value)))


KINDS: dict[int, type] = {
    EntryKind.SET_EXTENSION: SetExtension,
    EntryKind.INITIALIZE: Initialize,
    EntryKind.REGISTER: Register,
    EntryKind.UPDATE_NODE: UpdateNode,
}
