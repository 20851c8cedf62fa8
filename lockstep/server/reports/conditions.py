"""What is wrong with the cluster as the node that is asked sees it: for the admin API and metrics.

Invariant: one list of findings serves every place that shows them; it is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from lockstep.metadata.directory import NodeState
from lockstep.node.services import NodeServices
from lockstep.server.metrics.metric_table import Sample
from lockstep.topology.health import Finding, View, findings, level_of
from lockstep.values.conditions import Condition, kind_of


def found_by(node: NodeServices) -> tuple[Finding, ...]:
    """Everything that is wrong, the worst first."""
    own, alive = node.context.own_id(), node.membership.liveness.alive
    present = [info.id for info in node.log.cluster.directory.nodes if info.state is not NodeState.LEFT]
    reported: dict[int, tuple[Condition, ...]] = {own: node.context.conditions.current()}
    for other in present:
        known = node.membership.gossip.known(other)
        if other != own and known is not None and alive(other):
            reported[other] = known.state.conditions
    living = frozenset(other for other in present if alive(other))
    return findings(node.log.cluster, View(own, living, reported, _not_serving(node, living)))


def _not_serving(node: NodeServices, living: AbstractSet[int]) -> frozenset[int]:
    """Those that say so; who was not heard of yet says nothing."""
    known = (
        (other, node.membership.gossip.known(other))
        for other in sorted(living)
        if other != node.context.own_id()
    )
    others = {other for other, said in known if said is not None and not said.state.ready}
    return frozenset(others if node.life.ready else {*others, node.context.own_id()})


def document(finding: Finding, own: int) -> dict[str, Any]:
    """One entry of `conditions` in a `status/1` document; `node` is null for the whole cluster."""
    condition, kind = finding.condition, finding.kind
    return {
        "code": condition.code,
        "level": finding.level.word,
        "node": finding.node or None,
        "subject": condition.subject,
        "since_us": condition.since_us or None,
        "detail": condition.detail,
        "summary": finding.sentence(own),
        "at_risk": kind.at_risk,
        "hint": finding.hint,
        "page": f"docs/operate/{kind.page}.md",
    }


def condition_samples(node: NodeServices) -> Iterator[Sample]:
    """The node's own conditions, for every node is scraped, and the level of the cluster as it sees it."""
    yield Sample("lockstep_cluster_level", level_of(found_by(node)))
    yield Sample("lockstep_topology_degraded_ranges", len(node.log.cluster.degraded))
    for condition in node.context.conditions.current():
        yield Sample(
            "lockstep_node_condition",
            kind_of(condition).level,
            (("code", condition.code), ("subject", condition.subject)),
        )
