"""How far a running operation is: its stages, the barrier, and each node's part of the work.

Invariant: the stages are the metadata's; who has seen them and how much was moved is what this node heard, so
it is whole only at the metadata leader.
"""

from __future__ import annotations

from typing import Any

from lockstep.metadata.operations import Operation
from lockstep.node.log.messages import WorkStatus
from lockstep.node.services import NodeServices
from lockstep.topology.explain import path, presence, workers
from lockstep.values.ids import NodeId

Document = dict[str, Any]

#: Numbers of a report of work, by their names in documents.
_NUMBERS = {
    "bytes": ("moved_bytes", 0),
    "fragments": ("moved_fragments", 0),
    "total_bytes": ("total_bytes", 0),
    "rate_bytes_s": ("rate_bytes_s", 0),
    "left_s": ("left_s", -1),
    "files_done": ("files_done", 0),
    "files_total": ("files_total", 0),
    "ranges_done": ("ranges_done", 0),
    "ranges_total": ("ranges_total", 0),
    "tables_done": ("tables_done", 0),
    "tables_total": ("tables_total", 0),
}


def progress(node: NodeServices, operation: Operation) -> Document:
    """`path`, `barrier`, `work` and the sum of the work in `progress`."""
    cluster = node.log.cluster
    dead = tuple(n.id for n in cluster.directory.nodes if not node.membership.liveness.alive(n.id))
    known = {n: node.work.topology.acknowledged(n) for n in cluster.directory.present_ids}
    known[NodeId(node.context.own_id())] = cluster.epoch
    seen = presence(operation, cluster, known, dead)
    work = []
    for worker, kind, key in workers(operation, cluster, dead):
        said = node.work.topology.said.get(key)
        work.append(
            {
                "node": int(worker),
                "kind": kind.value,
                "state": said.state if said is not None else "waiting",
                "text": said.text if said is not None else "",
                **numbers(said),
            }
        )
    return {
        "path": [
            {"stage": at.stage.value, "state": at.state, "epoch": at.epoch or None} for at in path(operation)
        ],
        "barrier": {
            "epoch": seen.epoch,
            "seen": [int(one) for one in seen.seen],
            "unseen": [{"node": int(one), "epoch": known.get(one, 0)} for one in seen.unseen],
        },
        "work": work,
    }


def numbers(said: WorkStatus | None) -> Document:
    """What a report counts; nothing of what nobody reported."""
    if said is None:
        return {}
    found = {name: getattr(said, field, missing) for name, (field, missing) in _NUMBERS.items()}
    return {name: value for name, value in found.items() if value != _NUMBERS[name][1]}
