"""How many voters the metadata group should have, and which nodes they are.

Invariant: pure and deterministic. The number is odd, because one more than that survives no further loss;
voters stay where they can; with three data centres or more none holds half of the votes or more. The number
follows how many nodes the cluster has, not what they do at the moment: who is rebuilt, shut out or replaced
counts. A choice never survives fewer losses than the present voters do, unless so many suit the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.groups.service import Service
from lockstep.values.ids import NodeId
from lockstep.values.limits import METADATA_VOTERS_MAX

#: (nodes up to, voters): one voter is as good as two; five survive the loss of one during maintenance.
SIZES = ((2, 1), (5, 3), (100, 5))
#: With so many data centres no one of them may decide alone.
SPREAD_DCS_MIN = 3


#: A node that fills its ranges anew has the log as before.
_VOTING_STATES = (NodeState.NORMAL, NodeState.REBUILDING)


def has_place(cluster: ClusterMetadata, node: NodeInfo) -> bool:
    """Whether the node is one of the cluster's, or takes the place of one now."""
    if node.state in _VOTING_STATES:
        return True
    request = cluster.requests.by_node.get(node.id)
    return request is not None and bool(request.about.replaced) and request.node == node.id


def staying(cluster: ClusterMetadata) -> tuple[NodeInfo, ...]:
    """The nodes by whose number the voters are sized: those of the cluster that are not to leave.

    One that is being replaced is to leave, and counts by the node that takes its place.
    """
    leaving = (*cluster.service.leaving, *(operation.about.departing for operation in cluster.operations))
    return tuple(
        node
        for node in cluster.directory.nodes
        if node.may_vote and node.id not in leaving and has_place(cluster, node)
    )


def eligible(cluster: ClusterMetadata) -> tuple[NodeInfo, ...]:
    """Nodes that may vote: those that stay, and are not shut out."""
    return tuple(node for node in staying(cluster) if node.id not in cluster.excluded_by_node)


def tolerance(voters: int) -> int:
    """How many of so many voters may fail."""
    return max(0, voters - 1) // 2


def size_for(nodes: int) -> int:
    """Voters that suit a cluster of so many nodes."""
    return next((voters for most, voters in SIZES if nodes <= most), METADATA_VOTERS_MAX)


def target_size(cluster: ClusterMetadata) -> int:
    """Voters the group should have; 0 when no node may vote."""
    return _feasible(cluster.service.size or size_for(len(staying(cluster))), eligible(cluster))


def _feasible(wanted: int, nodes: Sequence[NodeInfo]) -> int:
    """The largest odd number up to `wanted` that these nodes can fill under the rule of data centres."""
    size = min(wanted, len(nodes))
    size -= 1 - size % 2 if size else 0
    dcs = _count_by_dc(nodes)
    while size > 1 and sum(min(count, dc_limit(size, len(dcs))) for count in dcs.values()) < size:
        size -= 2
    assert size % 2 == 1 or size == 0, "an even number of voters survives no more losses"
    return size


def dc_limit(size: int, dcs: int) -> int:
    """The most voters of `size` that one of `dcs` data centres may have."""
    return size if dcs < SPREAD_DCS_MIN or size <= 1 else (size - 1) // 2


def choose_voters(
    cluster: ClusterMetadata, *, down: Collection[NodeId] = (), lost: Collection[NodeId] = ()
) -> tuple[NodeId, ...]:
    """The voters the group should have, ascending; the present ones when nothing better can be had.

    `down`: nodes not to add. `lost`: voters to do without, as many as others can replace. A voter that is to
    go keeps its vote while nobody can take it and the group would survive fewer losses without it.
    """
    current = cluster.service.voters
    nodes = eligible(cluster)
    size = target_size(cluster)
    for gone in _most_first(lost):
        usable = [n for n in nodes if n.id not in gone and (n.id in current or n.id not in down)]
        chosen = _chosen(usable, nodes, size, cluster.service, down)
        if len(chosen) == size:
            return chosen
    return _with_leaving(cluster, size, down)


def _most_first(nodes: Collection[NodeId]) -> Iterator[tuple[NodeId, ...]]:
    for count in range(len(nodes), -1, -1):
        yield from combinations(sorted(nodes), count)


def _with_leaving(cluster: ClusterMetadata, size: int, down: Collection[NodeId]) -> tuple[NodeId, ...]:
    """Too few nodes are up for `size` voters: exchange those that must go for as many as there are."""
    current = cluster.service.voters
    nodes = [n for n in eligible(cluster) if n.id in current or n.id not in down]
    going = [voter for voter in current if all(node.id != voter for node in nodes)]
    if not going:
        return current
    fewest = 2 * min(tolerance(len(current)), tolerance(size)) + 1
    chosen = _chosen(nodes, nodes, max(fewest, _feasible(len(current), nodes)), cluster.service, down)
    # Who may be dead goes first, for its vote is worth least.
    kept = sorted(going, key=lambda voter: (voter in down, voter))[: max(0, fewest - len(chosen))]
    found = tuple(sorted((*chosen, *kept)))
    return found if len(found) >= fewest and len(found) % 2 else current


def _chosen(
    usable: Sequence[NodeInfo],
    nodes: Sequence[NodeInfo],
    size: int,
    service: Service,
    down: Collection[NodeId],
) -> tuple[NodeId, ...]:
    """Up to `size` of `usable`: present voters first, then whoever spreads them best."""
    limit = dc_limit(size, len(_count_by_dc(nodes)))
    chosen: list[NodeInfo] = []
    for present in (True, False):
        waiting = [node for node in usable if (node.id in service.voters) is present]
        while waiting and len(chosen) < size:
            held = _count_by_dc(chosen)
            open_nodes = [node for node in waiting if held.get(node.dc, 0) < limit]
            if not open_nodes:
                break
            best = min(open_nodes, key=lambda node: _crowding(node, chosen, node.id in down))
            waiting.remove(best)
            chosen.append(best)
    assert all(count <= limit for count in _count_by_dc(chosen).values()), (
        "no data centre has more votes than it may"
    )
    return tuple(sorted(node.id for node in chosen))


def _crowding(node: NodeInfo, chosen: Sequence[NodeInfo], down: bool) -> tuple[bool, bool, int, int, NodeId]:
    same_dc = [other for other in chosen if other.dc == node.dc]
    coming = node.state not in _VOTING_STATES
    return (down, coming, len(same_dc), sum(other.rack == node.rack for other in same_dc), node.id)


def _count_by_dc(nodes: Sequence[NodeInfo]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.dc] = counts.get(node.dc, 0) + 1
    return counts


def crowded_dc(cluster: ClusterMetadata, voters: Sequence[NodeId]) -> str:
    """A data centre with too many of these voters; empty when there is none."""
    nodes = eligible(cluster)
    counts = _count_by_dc([cluster.directory.by_id[voter] for voter in voters])
    limit = dc_limit(len(voters), len(_count_by_dc(nodes)))
    return next((dc for dc in sorted(counts) if counts[dc] > limit), "")


def size_problem(cluster: ClusterMetadata, size: int) -> str:
    """Why the group cannot have this many voters; empty when it can."""
    nodes = eligible(cluster)
    if size < 1:
        return "the metadata group needs one voter at least"
    if size > len(nodes):
        return f"{size} voters are more than the {len(nodes)} normal nodes of the cluster"
    if size > METADATA_VOTERS_MAX:
        return f"at most {METADATA_VOTERS_MAX} nodes vote: more make every change slower"
    if size % 2 == 0:
        return f"{size} voters survive no more losses than {size - 1}: choose an odd number"
    if _feasible(size, nodes) < size:
        return f"{size} voters would put half of the votes into one data centre"
    return ""
