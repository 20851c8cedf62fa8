"""What queued requests cost the topology coordinator: the time of one step, with up to 1,000 of them.

The cluster is 1,010 nodes with one token each in three data centres, replication 3 in each; one decommission
runs and holds its ranges, and every queued request is another decommission. `first` is a step right after
nodes or operations changed, which plans up to eight requests anew; `step` is any later one.
Usage: python bench/request_queue.py
"""

from __future__ import annotations

import statistics
import time

import msgspec
from measuring import save, table

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import DIRECTORY, Directory
from lockstep.metadata.requests import REQUESTS, Request
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import Founder, Initialize
from lockstep.schema.changes import CreateKeyspace
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.step import Reports, step
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.limits import REQUESTS_LIVE_MAX

NODES = 1010
COUNTS = (0, 10, 100, 1000)
ROUNDS = 50
#: A step with a thousand queued requests may take this much longer than one with none.
SLOWER_MAX_MS = 1.0


def cluster_of(nodes: int) -> ClusterMetadata:
    """One decommission is running; node `nodes` votes."""
    founders = tuple(
        Founder(
            f"host-{at}", f"10.0.{at // 250}.{at % 250}", 7000, 9042, 7080, f"dc{at % 3 + 1}", "r1",
            (at * 10**15 - 5 * 10**17,),
        )
        for at in range(nodes)
    )  # fmt: skip
    options = (("class", "NetworkTopologyStrategy"), ("dc1", "3"), ("dc2", "3"), ("dc3", "3"))
    cluster = Initialize("bench", "bench", founders, (NodeId(nodes),)).apply(empty_cluster(), 1)
    cluster = msgspec.structs.replace(cluster, epoch=1)
    cluster = ChangeSchema(CreateKeyspace("ks", options)).apply(cluster, 2)
    cluster = msgspec.structs.replace(cluster, epoch=2)
    return PrepareOperation(Decommission(NodeId(500))).apply(cluster, 3)


def with_requests(cluster: ClusterMetadata, count: int) -> ClusterMetadata:
    """The nodes whose ranges the running operation holds come first: they all wait."""
    requests = cluster.requests
    near = sorted(range(1, NODES), key=lambda node: abs(node - 500))
    for node in [node for node in near if node != 500][:count]:
        requests = requests.with_new(Request(requests.next_id, Decommission(NodeId(node)), requested_epoch=3))
    return cluster.changed(REQUESTS.set(requests))


def measured(cluster: ClusterMetadata) -> tuple[float, float]:
    """(first, median of the later ones) in milliseconds."""
    nodes = cluster.directory
    # A directory of its own remembers nothing of the cases before.
    cluster = cluster.changed(DIRECTORY.set(Directory(nodes.nodes, nodes.next_node_id)))
    seen = {node.id: 2 for node in cluster.directory.nodes}
    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        step(cluster, Reports(acknowledged=seen))
        times.append((time.perf_counter() - began) * 1000)
    return times[0], statistics.median(times[1:])


def main() -> int:
    assert max(COUNTS) <= REQUESTS_LIVE_MAX
    cluster = cluster_of(NODES)
    found = {count: measured(with_requests(cluster, count)) for count in COUNTS}
    rows: list[tuple[object, ...]] = [("queued", "first ms", "step ms")]
    rows += [(count, round(first, 2), round(later, 3)) for count, (first, later) in found.items()]
    print(table("One step of the coordinator", rows))
    slower_ms = found[1000][1] - found[0][1]
    passed = slower_ms <= SLOWER_MAX_MS
    print(f"1,000 queued requests add {slower_ms:.3f} ms to a step, at most {SLOWER_MAX_MS} are allowed")
    save("request_queue", {"nodes": NODES, "step_ms": {str(c): t for c, (_, t) in found.items()}})
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
