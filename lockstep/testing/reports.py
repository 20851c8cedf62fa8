"""What a failed test says about its clusters.

Invariant: short when all is well with the nodes (a line a cluster); of a node that ended by itself, the end
of its log; and what nodes said of errors.
"""

from __future__ import annotations

from lockstep.testing.clusters import Cluster

#: Of a node that ended by itself: its error or traceback is at the end.
DEAD_LINES = 40
#: Of what a running node complained of.
ERROR_LINES = 10


def sections(cluster: Cluster) -> list[tuple[str, str]]:
    """(title, text) for the report of a test."""
    where = f"lockstep cluster {cluster.nodes[0].address} to {cluster.nodes[-1].address}"
    dead = {node.name: node for node in cluster.ended_by_themselves()}
    states = ", ".join(
        f"{node.name} {'ENDED BY ITSELF' if node.name in dead else node.state.value}"
        for node in cluster.nodes
    )
    text = f"{states}\nlogs: {cluster.local.paths.root}/*/node.log" if cluster.keep else states
    found = [(where, text)]
    for node in cluster.nodes:
        if node.name in dead:
            found.append((f"lockstep {node.name}: end of its log", "\n".join(node.log_tail(DEAD_LINES))))
            continue
        errors = [line for line in node.log_tail(1000) if " error " in line or line.startswith("error[")]
        if errors:
            found.append((f"lockstep {node.name}: errors in its log", "\n".join(errors[-ERROR_LINES:])))
    return found
