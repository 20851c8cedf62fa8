"""Virtual tables about what only one node knows answer the same on every node."""

from __future__ import annotations

from pathlib import Path

from lockstep.server.main import serve_admin
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from tests.server.parts import CQL_PORT, Nodes, nodes
from tests.server.test_stopped_node import until
from tests.server.wire_client import WireClient


def rows(cluster: Nodes, statement: str) -> list[str]:
    """What each living node answers."""
    found = []
    for member in cluster.members:
        with WireClient(member.address, CQL_PORT, 5) as client:
            client.startup()
            found.append(str(client.query(statement)))
    return found


def test_every_node_says_whom_an_operation_waits_for(tmp_path: Path) -> None:
    with nodes(tmp_path, 4) as cluster:
        doors = [cluster.call(serve_admin(member.node.services, member.server)) for member in cluster.members]
        until(lambda: len(cluster.members[0].node.log.cluster.voters) == 3)
        last = cluster.members[3]
        cluster.call(_end(last.node))
        leading = cluster.members[0].node
        cluster.call(leading.log.submit(PrepareOperation(Rebuild(NodeId(last.node.context.own_id())))))
        cluster.members.remove(last)
        asked = "SELECT kind, operation_id, node_id FROM system_views.barriers"
        until(lambda: any(member.node.work.topology.blocking for member in cluster.members))
        until(lambda: len(set(rows(cluster, asked))) == 1)
        one, *_ = rows(cluster, asked)
        assert "operation" in one, one
        told = set(rows(cluster, "SELECT id, kind, state, bytes FROM system_views.topology_requests"))
        assert len(told) == 1 and "rebuild" in told.pop()
        cluster.members.append(last)
        for door in doors:
            cluster.loop.call_soon_threadsafe(door.close)


async def _end(node: object) -> None:
    await node.stop()  # type: ignore[attr-defined]
