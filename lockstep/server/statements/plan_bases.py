"""What a plan was made against, and whether that still holds.

Invariant: a plan is carried out only while everything it was made from is as it was: nodes, placements,
keyspaces' replication, operations, the queue, the exclude list and the voters. Other entries may come and go.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.diff import diff
from lockstep.node.log.metadata_past import Past
from lockstep.node.services import NodeServices
from lockstep.values import codec
from lockstep.values.errors import ConfigurationError, LockstepError, Rejected
from lockstep.values.hash_tree import blake

#: Changes that a refusal names; `lockstep metadata diff` has all.
_CHANGES_NAMED_MAX = 6
_PLACEMENTS = "placements."
#: Where the metadata keeps what each part is made from.
_PATHS = {
    "nodes": "directory",
    "placements": "placements",
    "keyspaces": "schema",
    "operations": "operations",
    "queue": "requests",
    "excluded": "excluded",
    "voters": "service",
}


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`digest` is over all `parts`, name to digest, all in hexadecimal."""

    cluster: str
    epoch: int
    digest: str
    parts: dict[str, str]


def base_of(cluster: ClusterMetadata) -> Base:
    parts = {
        "nodes": [
            (n.id, n.host_id, n.address, n.internode_port, n.dc, n.rack, n.state, n.tokens)
            for n in cluster.directory.nodes
        ],
        "placements": cluster.placements.rings,
        "keyspaces": [(k.name, k.replication) for k in cluster.schema.keyspaces],
        "operations": [(o.id, o.stage, o.cancel_reason) for o in cluster.operations],
        "queue": [request.id for request in cluster.requests.queue],
        "excluded": cluster.excluded,
        "voters": cluster.service.members,
    }
    told = {name: blake(codec.encode(part)).hex()[:32] for name, part in parts.items()}
    whole = blake(codec.encode(list(told.items()))).hex()
    return Base(cluster.identity.cluster_id, cluster.epoch, whole, told)


async def refuse_moved(node: NodeServices, base: Base) -> None:
    """Raises Rejected, naming what changed, when the metadata is not what the plan was made against."""
    cluster = node.log.cluster
    if base.cluster != cluster.identity.cluster_id:
        raise Rejected(f"the plan is for cluster {base.cluster}, this is {cluster.identity.cluster_id}")
    if base.epoch > cluster.epoch:
        raise ConfigurationError(
            f"the plan is of epoch {base.epoch}, this node is at {cluster.epoch}", hint="ask another node"
        )
    now = base_of(cluster)
    moved = [name for name, digest in now.parts.items() if base.parts.get(name) != digest]
    if not moved:
        return
    named = await _named(node, base.epoch, moved)
    raise Rejected(
        f"reality moved since the plan of epoch {base.epoch}: {', '.join(moved)} changed{named}",
        hint=f"plan again with --dry-run; `lockstep metadata diff {base.epoch} {cluster.epoch}` shows all",
    )


async def _named(node: NodeServices, epoch: int, moved: list[str]) -> str:
    """The changed paths, as far as this node still has the value of then."""
    try:
        before: Any = await Past(node.log.state).value_at(epoch)
    except LockstepError:
        return ""
    heads = tuple(_PATHS[name] for name in moved)
    found = [change.path for change in diff(before, node.log.cluster) if change.path.startswith(heads)]
    # A path into the placements is a line of a replication and a range each, by the hundred.
    paths = [path for path in found if not path.startswith(_PLACEMENTS)]
    if len(paths) < len(found):
        paths.append(f"{len(found) - len(paths)} differences of placements")
    more = len(paths) - _CHANGES_NAMED_MAX
    shown = ", ".join(paths[:_CHANGES_NAMED_MAX])
    return f" ({shown}{f', {more} more' if more > 0 else ''})" if paths else ""
