"""Transformations of the metadata's own parts: making the cluster, registering and updating nodes.

Invariant: each is a pure function of the value and its own fields. What changes the schema is in
metadata.schema_change, what changes ownership in topology.transformations.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata, Identity
from lockstep.metadata.directory import Directory, NodeInfo, NodeState
from lockstep.metadata.registry import EntryKind
from lockstep.metadata.service import Service
from lockstep.metadata.versions import refuse_older_node
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    EXTENSION_NAME_CHARACTERS_MAX,
    EXTENSIONS_MAX,
    NODES_MAX,
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


class Initialize(msgspec.Struct, frozen=True, array_like=True):
    """The first entry. Founders get ids 1..n in the given order and are normal at once.

    `voters` are positions' ids (1..n); empty means the first founder.
    """

    cluster_id: str
    cluster_name: str
    founders: tuple[Founder, ...]
    voters: tuple[NodeId, ...] = ()

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if cluster.epoch != 0:
            raise Rejected(f"this cluster was already made, as {cluster.identity.cluster_id}")
        if not self.cluster_id or not self.founders:
            raise Rejected("a cluster needs an id and at least one founder")
        directory = Directory()
        for founder in self.founders:
            directory = directory.with_node(self._node(directory, founder, epoch))
        wanted = self.voters or tuple(node.id for node in directory.nodes[:INITIAL_VOTERS_MAX])
        if tuple(sorted(set(wanted))) != wanted or any(voter not in directory.by_id for voter in wanted):
            raise Rejected(f"voters {list(wanted)} are not distinct founders in ascending order")
        identity = Identity(self.cluster_id, self.cluster_name, (self.cluster_id,))
        return msgspec.structs.replace(
            cluster, identity=identity, directory=directory, service=Service(wanted)
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
        )
        refuse_collisions(directory, node)
        refuse_bad_tokens(directory, node.tokens)
        return node


class Register(msgspec.Struct, frozen=True, array_like=True):
    """Admit a node: it gets an id and state `none`, and owns nothing until it bootstraps.

    It is refused when it cannot read every version of the log that the others may write. `replaces` names
    the dead node whose tokens it is to take: only then may it come with that node's address.
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

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        directory = cluster.directory
        if directory.next_node_id > NODES_MAX:
            raise Rejected(f"all {NODES_MAX} node ids were given")
        if not self.host_id or not self.dc or not self.rack:
            raise Rejected("a node needs a host id, a data centre and a rack")
        refuse_older_node(directory, self.log_version)
        node = NodeInfo(
            id=NodeId(directory.next_node_id),
            host_id=self.host_id,
            address=self.address,
            internode_port=self.internode_port,
            cql_port=self.cql_port,
            admin_port=self.admin_port,
            dc=self.dc,
            rack=self.rack,
            version=self.version,
            epoch=epoch,
            log_version=self.log_version,
            may_vote=self.may_vote,
            replaces=self.replaces,
        )
        if self.replaces:
            _refuse_replacing(directory, node)
        refuse_collisions(directory, node)
        return msgspec.structs.replace(cluster, directory=directory.with_node(node))


class UpdateNode(msgspec.Struct, frozen=True, array_like=True):
    """A node came back with new addresses or another version; its place and state stay."""

    node: NodeId
    address: str
    internode_port: int
    cql_port: int
    admin_port: int
    version: str
    log_version: int = 1

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
        )
        if self.log_version < found.log_version:
            refuse_older_node(cluster.directory, self.log_version)
        if changed == found:
            return cluster
        changed = msgspec.structs.replace(changed, epoch=epoch)
        refuse_collisions(cluster.directory, changed)
        return msgspec.structs.replace(cluster, directory=cluster.directory.with_node(changed))


def refuse_before_initialize(cluster: ClusterMetadata) -> None:
    """Raises Rejected when no cluster was made yet."""
    if cluster.epoch == 0:
        raise Rejected("the cluster is not initialized")


def _refuse_replacing(directory: Directory, node: NodeInfo) -> None:
    """Raises Rejected unless the node that is to be replaced is there, fits, and nobody else replaces it."""
    dead = directory.by_id.get(node.replaces)
    if dead is None or dead.state is not NodeState.NORMAL:
        what = "there is no such node" if dead is None else f"it is {dead.state}"
        raise Rejected(f"node {node.replaces} cannot be replaced: {what}")
    if (dead.dc, dead.rack) != (node.dc, node.rack):
        raise Rejected(
            f"node {dead.id} stands in {dead.dc}/{dead.rack}, its replacement in {node.dc}/{node.rack}",
            hint="a replacement takes over the place; remove the node and let this one join instead",
        )
    for other in directory.nodes:
        if other.replaces == dead.id and other.state is not NodeState.LEFT:
            raise Rejected(
                f"node {other.id} was admitted to replace node {dead.id} and is {other.state}",
                hint=f"`lockstep topology remove {other.id} --force` forgets it",
            )


def refuse_collisions(directory: Directory, node: NodeInfo) -> None:
    """Raises Rejected when another node has this host id or one of these address and port pairs.

    A node and the dead one it was admitted to replace may share an address.
    """
    wanted = _doors(node)
    if len(set(wanted)) != len(wanted):
        raise Rejected(f"the ports of {node.address} are not distinct: {list(wanted)}")
    for other in directory.nodes:
        if other.id == node.id:
            continue
        if other.host_id == node.host_id:
            raise Rejected(f"host id {node.host_id} belongs to node {other.id} ({other.state})")
        if other.state is NodeState.LEFT or node.replaces == other.id:
            continue
        shared = [door for door in wanted if door in _doors(other)]
        if shared:
            raise Rejected(f"address {shared[0][0]}:{shared[0][1]} belongs to node {other.id}")


def _doors(node: NodeInfo) -> tuple[tuple[str, int], ...]:
    """Address and port pairs the node listens on; port 0 means that door is closed."""
    ports = (node.internode_port, node.cql_port, node.admin_port)
    return tuple((node.address, port) for port in ports if port)


def refuse_bad_tokens(directory: Directory, tokens: tuple[int, ...]) -> None:
    """Raises Rejected for tokens that are missing, repeated, out of the ring or owned by a node."""
    if not tokens or len(tokens) > TOKENS_PER_NODE_MAX:
        raise Rejected(f"a node owns 1 to {TOKENS_PER_NODE_MAX} tokens, not {len(tokens)}")
    if len(set(tokens)) != len(tokens):
        raise Rejected("the tokens are not distinct")
    for token in tokens:
        if not TOKEN_MIN < token <= TOKEN_MAX:
            raise Rejected(f"token {token} is outside the ring")
        owner = directory.token_owners.get(token)
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
            return msgspec.structs.replace(cluster, extensions=cluster.extensions.discard(self.name))
        if self.name not in cluster.extensions and len(cluster.extensions) >= EXTENSIONS_MAX:
            raise Rejected(f"the metadata keeps at most {EXTENSIONS_MAX} extensions")
        return msgspec.structs.replace(cluster, extensions=cluster.extensions.insert(self.name, self.value))


KINDS: dict[int, type] = {
    EntryKind.SET_EXTENSION: SetExtension,
    EntryKind.INITIALIZE: Initialize,
    EntryKind.REGISTER: Register,
    EntryKind.UPDATE_NODE: UpdateNode,
}
