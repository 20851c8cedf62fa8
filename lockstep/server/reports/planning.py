"""What an entry of the metadata log would do, without appending it.

Invariant: the very transformation is judged against this node's newest value, as the leader would; a refusal
is raised, and nothing is sent to anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.metadata.log.registry import Prepared
from lockstep.node.services import NodeServices
from lockstep.server.reports.documents import metadata_diff

Document = dict[str, Any]


def planned(node: NodeServices, transformation: Any, steps: Sequence[str], way_back: str) -> Document:
    """The `cms-plan/1` document: steps, the difference in the metadata, who must be up, and the way back."""
    cluster = node.log.cluster
    ready = transformation.prepared(cluster) if isinstance(transformation, Prepared) else transformation
    after = ready.apply(cluster, cluster.epoch + 1)
    return {
        "schema": "cms-plan/1",
        "epoch": cluster.epoch,
        "steps": list(steps),
        "waits_for": waits_for(node),
        "changes": metadata_diff(cluster, after).changes,
        "way_back": way_back,
    }


def waits_for(node: NodeServices) -> str:
    """What every change of the metadata needs."""
    voters = node.log.cluster.service.voters
    down = [voter for voter in voters if not node.membership.liveness.alive(voter)]
    text = f"{len(voters) // 2 + 1} of the voters {', '.join(map(str, voters))}"
    return f"{text}; {', '.join(map(str, down))} seem down" if down else text
