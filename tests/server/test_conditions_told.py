"""Conditions that need a test of their own: seen by `lockstep status` on any node, with its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from lockstep.cli.main import root
from lockstep.node.membership.service_driver import Blocked
from lockstep.node.node import Node
from lockstep.node.work import condition_watches
from lockstep.server.main import AdminDoor, serve_admin
from lockstep.storage.rows import keys
from lockstep.storage.store_position import Lack
from lockstep.values.errors import FrameCorrupt
from tests.server.parts import ADMIN_PORT, CQL_PORT, Nodes, nodes
from tests.server.test_admin import TOKEN, until
from tests.server.wire_client import WireClient


def status(address: str, *options: str) -> Result:
    return CliRunner().invoke(root, ["status", *options, "--host", f"{address}:{ADMIN_PORT}"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    home = tmp_path_factory.mktemp("conditions")
    (home / "admin.token").write_text(TOKEN)
    with nodes(home, 3) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_TOKEN_FILE", str(home / "admin.token"))
        doors: list[AdminDoor] = []
        for member in made.members:
            doors.append(made.call(serve_admin(member.node.services, member.server, TOKEN)))
        with WireClient(made.members[0].address, CQL_PORT, 5) as client:
            client.startup()
            client.query(
                "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            client.query("CREATE TABLE shop.item (id int PRIMARY KEY, name text)")
        # Before that, the leader may wait for one of them itself.
        until(lambda: "metastorage available (3 voters up)" in status(made.members[0].address).output)
        yield made
        for door in doors:
            made.loop.call_soon_threadsafe(door.close)


def voters_that_wait(node: Node, patch: pytest.MonkeyPatch) -> None:
    async def look() -> int:
        return 1000

    # Who does not lead waits for nobody.
    patch.setattr(node.work.service, "_look", look)
    patch.setattr(condition_watches, "STUCK_S", 0.0)
    patch.setattr(node.work.service, "blocked", Blocked(3, "it does not answer", 1))


def a_broken_management_member(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node.membership.management.group, "broken", FrameCorrupt("entry 7 has another digest"))


def a_lost_range(node: Node, patch: pytest.MonkeyPatch) -> None:
    table = node.log.cluster.schema.by_name["shop"].tables[0]
    first, above = keys.table_bounds(table.id)
    patch.setattr(node.data.lacking, "current", (Lack(first, above, sole=True),))


@pytest.mark.parametrize(
    ("cause", "code", "exit_code", "sentence"),
    [
        (voters_that_wait, "VOTERS_STUCK", 10, "metadata group wait: node 3: it does not answer"),
        (a_broken_management_member, "MANAGEMENT_STOPPED", 10, "management group no more: entry 7"),
        (a_lost_range, "RANGE_LOST", 11, "lost shop.item, of which no other replica exists"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_condition_shows_on_every_node_and_in_the_exit_code(
    cluster: Nodes,
    cause: Callable[[Node, pytest.MonkeyPatch], None],
    code: str,
    exit_code: int,
    sentence: str,
) -> None:
    """Of the node that has it, and of another one."""
    member = next(one for one in cluster.members if not one.node.log.is_leader)
    other = next(index for index, one in enumerate(cluster.members) if one is not member)
    asked = (member.address, cluster.members[other].address)

    until(lambda: all(status(address, "--exit-code").exit_code == 0 for address in asked))
    with pytest.MonkeyPatch.context() as patch:
        cause(member.node, patch)
        for address in asked:
            until(lambda at=address: code in status(at).output)  # type: ignore[misc]
            found = status(address, "--exit-code")
            assert found.exit_code == exit_code and sentence in " ".join(found.output.split()), found.output
            assert status(address).exit_code == 0
    until(lambda: all(status(address, "--exit-code").exit_code == 0 for address in asked))
