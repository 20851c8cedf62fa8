"""What probes are told: the process lives, and whether clients should come here."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from lockstep.server.main import serve_admin
from lockstep.server.reports.documents import status as status_of
from tests.server.parts import ADMIN_PORT, nodes
from tests.server.test_stopped_node import until


def probe(address: str, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(address, ADMIN_PORT, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_a_node_is_ready_until_it_is_drained_and_lives_all_the_time(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as cluster:
        doors = [cluster.call(serve_admin(member.node.services, member.server)) for member in cluster.members]
        first, second, _ = cluster.members
        for member in cluster.members:
            code, answer = probe(member.address, "/health/ready")
            assert (code, answer["ready"], answer["reasons"]) == (200, True, [])
        cluster.call(second.server.draining.drain(1000))
        code, answer = probe(second.address, "/health/ready")
        assert (code, answer["ready"], answer["reasons"]) == (503, False, ["it was drained"])
        assert probe(second.address, "/health/live")[0] == 200
        drained = f"node {second.node.context.own_id()} was drained"
        until(lambda: drained in str(status_of(first.node.services, [])["conditions"]))
        assert status_of(first.node.services, [])["level"] == "degraded"
        for door in doors:
            cluster.loop.call_soon_threadsafe(door.close)
