"""Why a tablet moves, or does not: what a person is told.

Invariant: an explanation is made from the values that plans are made from, and changes nothing.
"""

from __future__ import annotations

from lockstep.placement.tablets.balancer import Plan
from lockstep.placement.tablets.load import GIB, Drain, Host, LoadStatistics, can_receive, is_measured
from lockstep.placement.tablets.map import Tablet
from lockstep.placement.tablets.moves import STREAM_BYTES_PER_S, Move, Why, duration_ms
from lockstep.placement.tablets.target import BalancedTable, Cluster, domain_of
from lockstep.values.ids import NodeId

_REASONS = {
    Why.DRAIN: "its node is to be left",
    Why.BALANCE: "its node is fuller than the other, or has more of the table",
    Why.SHARDS: "its shard is fuller than the other, or has more of the table",
    Why.MERGE: "it is to be merged with the tablet before it",
}


def explain(cluster: Cluster, plan: Plan, group: int, right: int) -> list[str]:
    """Lines about the tablet of a group with this last token: where it is, whether it moves, and why."""
    table = next((one for one in cluster.tables if one.map.id == group), None)
    tablet = table.map.ending(right) if table is not None else None
    if table is None or tablet is None:
        return [f"there is no tablet of group {group} that ends at {right}"]
    lines = [_place(cluster, tablet, node, shard) for node, shard in tablet.replicas]
    lines += [
        f"a drain of node {one.node} cannot be: {one.reason}" for one in plan.failures if one.right == right
    ]
    running = [one.move for one in cluster.running if (one.move.group, one.move.right) == (group, right)]
    lines += [f"it is on its way: {_text(move)}" for move in running]
    for moves, when in ((plan.moves, "moves now"), (plan.left, "moves later")):
        lines += [f"{when}: {_text(one)}" for one in moves if (one.group, one.right) == (group, right)]
    wanted = any((one.group, one.right) == (group, right) for one in (*running, *plan.moves, *plan.left))
    return lines if wanted else [*lines, *_still(cluster, plan, table, tablet)]


def _text(move: Move) -> str:
    took_s = duration_ms([move], STREAM_BYTES_PER_S) / 1000
    (node, shard), (to_node, to_shard) = move.source, move.target
    way = f"from node {node}, shard {shard}, to node {to_node}, shard {to_shard}"
    return f"{way}: {_REASONS[move.why]} ({move.bytes / GIB:.2f} GiB, about {took_s:.0f} s)"


def _place(cluster: Cluster, tablet: Tablet, node: NodeId, shard: int) -> str:
    host = next((one for one in cluster.hosts if one.node == node), None)
    if host is None:
        return f"a replica is on node {node}, which is not known"
    what = f"a replica is on node {node}, shard {shard}"
    return f"{what}, which {_state(host, cluster.statistics)}"


def _state(host: Host, statistics: LoadStatistics) -> str:
    if host.is_excluded:
        return "is excluded"
    if host.drain is not Drain.NONE:
        return "is to be left"
    if not host.is_up:
        return "is down"
    if not is_measured(host, statistics):
        return "has no statistics"
    return f"is {share_used(host, statistics):.1%} full"


def share_used(host: Host, statistics: LoadStatistics) -> float:
    """What tablets fill of a node that is measured."""
    known = statistics.nodes[host.node]
    held = sum([load.bytes for loads in known.tablets.values() for load in loads.values()])
    return held / known.capacity_bytes


def _still(cluster: Cluster, plan: Plan, table: BalancedTable, tablet: Tablet) -> list[str]:
    """Why a tablet stays where it is."""
    key = (table.map.id, tablet.right)
    if key in cluster.held:
        return [f"it stays: {cluster.held[key]} has it"]
    if plan.waits:
        return [f"it stays: {reason}" for reason in plan.waits]
    if not cluster.is_on:
        return ["it stays: balance is off for the cluster"]
    if table.is_finalising:
        return ["it stays: its table is about to split or merge, which waits for moves to end"]
    if not table.is_on:
        return ["it stays: balance is off for its table"]
    if table.is_merging:
        return ["it stays: it lies where the tablet does that it is to be merged with"]
    return [_others(cluster, tablet, node) for node in tablet.nodes]


def _others(cluster: Cluster, tablet: Tablet, node: NodeId) -> str:
    """What there is against each other node of the domain, in one line."""
    hosts = {host.node: host for host in cluster.hosts}
    if node not in hosts:
        return f"node {node} is not known, and hands nothing over"
    if not can_receive(hosts[node], cluster.statistics):
        return f"node {node} {_state(hosts[node], cluster.statistics)}, and hands nothing over"
    domain = domain_of(cluster, hosts[node])
    there = [host for host in cluster.hosts if host.dc == domain.dc and domain.rack in ("", host.rack)]
    texts = [_against(host, cluster, tablet) for host in there if host.node != node]
    return f"it stays on node {node}: {domain.text()} is even ({'; '.join(texts) or 'it has no other node'})"


def _against(host: Host, cluster: Cluster, tablet: Tablet) -> str:
    state = f"node {host.node} {_state(host, cluster.statistics)}"
    return f"{state} and has a replica" if host.node in tablet.nodes else state
