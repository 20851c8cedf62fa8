"""A node that cannot apply an entry: how operators see it, at that node and at the others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.metadata.transformations import SetExtension
from lockstep.server.main import serve_admin
from tests.server.parts import ADMIN_PORT, nodes


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


SETTLED = {"voters": [1, 2, 3], "outgoing": [], "joint": False, "learners": []}


def test_a_node_that_cannot_apply_an_entry_says_so_everywhere(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as cluster:
        doors = [cluster.call(serve_admin(member.node.services, member.server)) for member in cluster.members]
        admins = [cluster.admin(member) for member in cluster.members]
        until(lambda: admins[0].get("/v1/cms")["raft"] == SETTLED)
        leader = admins[0].get("/v1/cms")["leader"]
        at = next(index for index, one in enumerate(cluster.members) if one.node.context.own_id() != leader)
        stopped, healthy = cluster.members[at], (at + 1) % 3
        # As an older version, which does not know this kind of entry.
        registry = stopped.node.log.registry
        del registry._decoders[registry.kind_of(SetExtension("", b""))]
        cluster.call(cluster.members[healthy].node.log.submit(SetExtension("new", b"thing")))
        until(lambda: stopped.node.log.state.broken is not None)

        status = admins[at].get("/v1/status")
        assert status["verdict"].startswith("unavailable: this node serves no more")
        assert "is not known to this version" in status["broken"]
        described = admins[healthy].get("/v1/cms")
        assert described["groups"]["metastorage"] == "Degraded"

        def run(*arguments: str) -> tuple[int, dict[str, Any]]:
            host = f"{cluster.members[healthy].address}:{ADMIN_PORT}"
            result = CliRunner().invoke(root, [*arguments, "--host", host, "-o", "json"])
            return result.exit_code, json.loads(result.stdout)

        code, found = run("metadata", "verify")
        row = next(one for one in found["nodes"] if one["node"] == stopped.node.context.own_id())
        assert (code, row["result"], found["agree"], found["complete"]) == (6, "stopped", True, False)
        assert "is not known to this version" in row["why"]
        assert found["to"] == row["newest"] < admins[healthy].get("/v1/metadata")["epoch"]
        code, why = run("why", str(stopped.node.context.own_id()))
        assert code == 0 and why["reasons"], why
        body = CliRunner().invoke(root, ["status", "--host", f"{stopped.address}:{ADMIN_PORT}"]).output
        assert "metadata stopped here: " in body
        for door in doors:
            cluster.loop.call_soon_threadsafe(door.close)
