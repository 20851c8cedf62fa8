"""Whether a node may join: the one list of reasons, for the node that it asks and for the log.

Invariant: a pure function of the metadata and of what the newcomer says of itself, so the first member that
it asks and the entry that admits it refuse for the same reasons, each with a code that programs may compare.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import ZERO_TOKEN_NODES, Directory, NodeInfo, NodeState, lacking
from lockstep.metadata.log.registry import lowest_version
from lockstep.values.limits import NODES_MAX

#: States of a node that was accepted and is not normal yet: it may present itself again.
JOINING_STATES = (NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.REPLACING)


class JoinCode(enum.StrEnum):
    """Why a node is refused."""

    CLUSTER_NAME = "cluster_name"
    CLUSTER_ID = "cluster_id"
    INCOMPLETE = "incomplete"
    FULL = "full"
    LOG_VERSION = "log_version"
    FEATURES = "features"
    REMOVED = "removed"
    EXCLUDED = "excluded"
    MEMBER = "member"
    EARLIER_ATTEMPT = "earlier_attempt"
    OTHER_PLACE = "other_place"
    PORTS = "ports"
    ADDRESS = "address"
    REPLACED_GONE = "replaced_gone"
    REPLACED_PLACE = "replaced_place"
    REPLACED_TAKEN = "replaced_taken"
    ZERO_TOKENS = "zero_tokens"
    METADATA = "metadata"
    #: The log refused it for something that had changed meanwhile.
    REJECTED = "rejected"


class JoinRefusal(msgspec.Struct, frozen=True, array_like=True):
    """`reason` a sentence, `hint` what to do about it."""

    code: JoinCode
    reason: str
    hint: str = ""


def refusal_by_identity(cluster: ClusterMetadata, cluster_name: str, cluster_id: str) -> JoinRefusal | None:
    """What only the first member asked can tell: whether this is the cluster that is meant ("" is any)."""
    identity = cluster.identity
    if cluster_name and cluster_name != identity.cluster_name:
        return JoinRefusal(
            JoinCode.CLUSTER_NAME,
            f"this is cluster {identity.cluster_name}, and the node is to join {cluster_name}",
            "check [cluster] name and seeds",
        )
    if cluster_id and cluster_id != identity.cluster_id:
        return JoinRefusal(
            JoinCode.CLUSTER_ID,
            f"this cluster is {identity.cluster_id}, and the node's data directory belongs to {cluster_id}",
            "start the node with its own directory, or with an empty one to join as a new node",
        )
    return None


def refusal_of(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    """Why the node cannot join now; None when it can. `wanted` is its entry as it would be."""
    for rule in _RULES:
        found = rule(cluster, wanted)
        if found is not None:
            return found
    return None


def joining_node(cluster: ClusterMetadata, host_id: str) -> NodeInfo | None:
    """The entry of a host that was accepted and is not normal yet."""
    known = cluster.directory.by_host_id.get(host_id)
    return known if known is not None and known.state in JOINING_STATES else None


def _incomplete(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    if not wanted.host_id or not wanted.dc or not wanted.rack:
        return JoinRefusal(JoinCode.INCOMPLETE, "a node needs a host id, a data centre and a rack")
    if wanted.num_tokens < 0:
        return JoinRefusal(JoinCode.INCOMPLETE, "a node wants no negative number of tokens")
    return None


def _host(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    known = cluster.directory.by_host_id.get(wanted.host_id)
    if known is None:
        return None
    whose = f"host id {wanted.host_id} belongs to node {known.id} ({known.state})"
    if known.state is NodeState.LEFT:
        hint = "start it with an empty data directory to join as a new node"
        return JoinRefusal(JoinCode.REMOVED, f"{whose}: it has left the cluster", hint)
    if known.id in cluster.excluded_by_node:
        hint = f"`lockstep topology exclude {known.id} --undo` once it has caught up"
        return JoinRefusal(JoinCode.EXCLUDED, f"{whose}, which is excluded", hint)
    if known.state not in JOINING_STATES:
        return JoinRefusal(JoinCode.MEMBER, whose, "a data directory serves one node: do not copy it")
    if wanted.attempt <= known.attempt:
        later = f"{whose}, which presented itself later (attempt {known.attempt}, this is {wanted.attempt})"
        return JoinRefusal(JoinCode.EARLIER_ATTEMPT, later, "only one process may use a data directory")
    before = (known.dc, known.rack, known.replaces, known.is_zero_token)
    if before != (wanted.dc, wanted.rack, wanted.replaces, wanted.is_zero_token):
        return JoinRefusal(
            JoinCode.OTHER_PLACE,
            f"{whose}, which was accepted in {known.dc}/{known.rack}"
            f"{f' to replace node {known.replaces}' if known.replaces else ''}"
            f"{_tokens_text(known, wanted)}",
            "start it with its former settings, or with an empty data directory after "
            f"`lockstep topology remove {known.id} --force`",
        )
    return None


def _tokens_text(known: NodeInfo, wanted: NodeInfo) -> str:
    if known.is_zero_token == wanted.is_zero_token:
        return ""
    return " without tokens" if known.is_zero_token else " with tokens"


def _full(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    if wanted.id > NODES_MAX:
        return JoinRefusal(JoinCode.FULL, f"all {NODES_MAX} node ids were given")
    return None


def _version(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    lowest = lowest_version(cluster.directory)
    if wanted.log_version >= lowest:
        return None
    reason = f"this node reads the log up to version {wanted.log_version}, and the cluster writes version"
    return JoinRefusal(JoinCode.LOG_VERSION, f"{reason} {lowest}", "upgrade this node")


def _features(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    missing = lacking(cluster.features.enabled, wanted.features)
    if not missing:
        return None
    reason = f"the cluster uses {', '.join(missing)}, which this node does not support"
    return JoinRefusal(JoinCode.FEATURES, reason, "start a version that supports it")


def _replaced(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    """The node that is to be replaced must be there and fit, and nobody else replaces it."""
    if not wanted.replaces or joining_node(cluster, wanted.host_id) is not None:
        return None
    dead = cluster.directory.by_id.get(wanted.replaces)
    if dead is None or dead.state is not NodeState.NORMAL:
        what = "there is no such node" if dead is None else f"it is {dead.state}"
        reason = f"node {wanted.replaces} cannot be replaced: {what}"
        return JoinRefusal(
            JoinCode.REPLACED_GONE, reason, "`lockstep status` lists the nodes; see [cluster] replaces"
        )
    if (dead.dc, dead.rack) != (wanted.dc, wanted.rack):
        return JoinRefusal(
            JoinCode.REPLACED_PLACE,
            f"node {dead.id} stands in {dead.dc}/{dead.rack}, its replacement in {wanted.dc}/{wanted.rack}",
            "a replacement takes over the place; remove the node and let this one join instead",
        )
    if wanted.is_zero_token == bool(dead.tokens):
        reason = (
            f"node {dead.id} owns tokens, and its replacement is to own none"
            if dead.tokens
            else f"node {dead.id} owns no tokens, so only a node without tokens replaces it"
        )
        hint = "set [placement] num_tokens to 0 for a node without tokens, and above for any other"
        return JoinRefusal(JoinCode.ZERO_TOKENS, reason, hint)
    for other in cluster.directory.nodes:
        if other.replaces == dead.id and other.state is not NodeState.LEFT:
            return JoinRefusal(
                JoinCode.REPLACED_TAKEN,
                f"node {other.id} was admitted to replace node {dead.id} and is {other.state}",
                f"`lockstep topology remove {other.id} --force` forgets it",
            )
    return None


def _zero_tokens(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    if not wanted.is_zero_token or ZERO_TOKEN_NODES in cluster.features.enabled:
        return None
    reason = f"a node without tokens needs the feature {ZERO_TOKEN_NODES}, which is not enabled yet"
    return JoinRefusal(JoinCode.ZERO_TOKENS, reason, "upgrade all nodes first")


def _doors_collide(cluster: ClusterMetadata, wanted: NodeInfo) -> JoinRefusal | None:
    return collision(cluster.directory, wanted)


def collision(directory: Directory, node: NodeInfo) -> JoinRefusal | None:
    """Whether another node has this host id or one of these address and port pairs.

    A node and the dead one it was admitted to replace may share an address.
    """
    wanted = _doors(node)
    if len(set(wanted)) != len(wanted):
        return JoinRefusal(JoinCode.PORTS, f"the ports of {node.address} are not distinct: {list(wanted)}")
    for other in directory.nodes:
        if other.id == node.id:
            continue
        if other.host_id == node.host_id:
            whose = f"host id {node.host_id} belongs to node {other.id} ({other.state})"
            return JoinRefusal(JoinCode.MEMBER, whose)
        if other.state is NodeState.LEFT or node.replaces == other.id:
            continue
        shared = [door for door in wanted if door in _doors(other)]
        if shared:
            where = f"address {shared[0][0]}:{shared[0][1]} belongs to node {other.id}"
            return JoinRefusal(JoinCode.ADDRESS, where, "give this node an address and ports of its own")
    return None


def _doors(node: NodeInfo) -> Sequence[tuple[str, int]]:
    """Address and port pairs the node listens on; port 0 means that door is closed."""
    ports = (node.internode_port, node.cql_port, node.admin_port)
    return tuple((node.address, port) for port in ports if port)


#: In the order in which a newcomer hears of them.
_RULES: tuple[Callable[[ClusterMetadata, NodeInfo], JoinRefusal | None], ...] = (
    _full,
    _incomplete,
    _host,
    _version,
    _features,
    _replaced,
    _zero_tokens,
    _doors_collide,
)
