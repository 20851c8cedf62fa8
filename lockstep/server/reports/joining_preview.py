"""Plans for nodes that are not there yet: what a join, or a new node in a dead one's place, would do.

Invariant: the newcomer exists only in a copy of the metadata, with the tokens it would choose itself now.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import DIRECTORY, NodeInfo
from lockstep.node.configuration import PlacementSection
from lockstep.placement.allocation import splitting_tokens
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId

#: What a node has unless `placement.num_tokens` says otherwise.
_NUM_TOKENS = PlacementSection().num_tokens
_TOKENS_MAX = 1024


class JoiningNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that may join; `num_tokens` None: as many as the node that is asked is set to have. A
    replacement takes place and tokens of the dead node instead."""

    address: str = ""
    dc: str = ""
    rack: str = ""
    num_tokens: int | None = None


def with_newcomer(
    cluster: ClusterMetadata, replaced: NodeId | None, new: JoiningNode, num_tokens: int = 0
) -> tuple[ClusterMetadata, PrepareOperation]:
    """The copy in which the newcomer is admitted, and what it would ask for: the place of `replaced`, or to
    join beside the others. `num_tokens`: of nodes here; 0 where they own none."""
    directory = cluster.directory
    node_id = NodeId(directory.next_node_id)
    dead = cluster.node(replaced) if replaced is not None else None
    if replaced is not None and dead is None:
        raise ConfigurationError(f"there is no node {replaced} to replace", hint="lockstep status")
    count = new.num_tokens if new.num_tokens is not None else num_tokens or _NUM_TOKENS
    if not 1 <= count <= _TOKENS_MAX:
        raise ConfigurationError(f"a node has 1 to {_TOKENS_MAX} tokens, not {count}")
    pattern = dead or next((n for n in directory.nodes if n.owns_tokens), None)
    if pattern is None:
        raise ConfigurationError("no node owns tokens yet")
    info = NodeInfo(
        id=node_id,
        host_id=f"newcomer-{node_id}",
        address=new.address or "a new address",
        internode_port=pattern.internode_port,
        cql_port=pattern.cql_port,
        admin_port=pattern.admin_port,
        dc=(dead.dc if dead is not None else new.dc) or pattern.dc,
        rack=(dead.rack if dead is not None else new.rack) or pattern.rack,
        log_version=pattern.log_version,
        replaces=dead.id if dead is not None else NodeId(0),
    )
    with_it = msgspec.structs.replace(
        directory, nodes=(*directory.nodes, info), next_node_id=directory.next_node_id + 1
    )
    copy = cluster.changed(DIRECTORY.set(with_it))
    if dead is not None:
        return copy, PrepareOperation(Replace(node_id, dead.id))
    owned = [node.tokens for node in directory.nodes]
    owned += [request.about.tokens for request in cluster.requests.live if request.about.tokens]
    tokens = splitting_tokens(owned, count)
    return copy, PrepareOperation(Bootstrap(node_id, tokens))
