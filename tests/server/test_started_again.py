"""A node that is stopped and started again in one process: nothing of its first life is left."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from pathlib import Path
from typing import Any

from cassandra.cluster import NoHostAvailable, Session
from cassandra.policies import ConstantReconnectionPolicy

from lockstep.node.configuration import parse
from lockstep.node.node import Node
from lockstep.runtime.real import CHECK_HANDLER, CHECK_PACKAGES, HelperProcesses, real_runtime
from lockstep.server.cql.cql_server import CqlServer, serve
from lockstep.server.main import _open_store
from tests.server.parts import Member, Nodes, addresses
from tests.server.test_admin import until
from tests.server.test_drivers import SIMPLE, connect


class TwoLives:
    """One node over RocksDB, and its CQL door while it has one."""

    def __init__(self, cluster: Nodes, directory: Path, address: str) -> None:
        self._cluster = cluster
        self._checkers = HelperProcesses(CHECK_HANDLER, *CHECK_PACKAGES)
        configuration = parse(
            f'[node]\ndata_directory = "{directory}"\n[cluster]\nfounders = ["{address}:17000"]\n'
            f'[network]\naddress = "{address}"\ninternode_port = 17000\ncql_port = 19042\n'
            "[raft]\ntick_ms = 20\n",
            {},
        )
        self.runtime = real_runtime(str(directory))
        path = str(directory / "store")
        self.node = Node(
            self.runtime,
            configuration,
            lambda runtime: _open_store(path, runtime, self._checkers),
            lambda *_, **__: None,
        )
        self.server: CqlServer | None = None

    async def start(self) -> None:
        await self.node.start()
        self.server = await serve(self.node.services, self.runtime)

    async def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server.clients.abort()
            self.server = None
        await self.node.stop()

    async def end(self) -> None:
        await self.stop()
        await self._checkers.stop()

    def parts(self) -> list[weakref.ref[Any]]:
        """Of this life: the doors, and whatever others listen to or hold open."""
        node = self.node
        assert self.server is not None
        log, data, work, members = node.log, node.data, node.work, node.membership
        made = (
            *(self.server, self.server.executor, self.server.events),
            *(log.state, log.state.store, log.member, log.submitter, log.liveness, log.driver),
            *(node.context.internode, node.context.catch_up, node.context.conditions),
            *(members.gossip, members.management, members.membership, members.groups),
            *(data.engine, data.replica, data.coordinator, data.streams, data.hints, data.view_builds),
            *(work.topology, work.service, work.stages, work.repairs, work.backups),
        )
        return [weakref.ref(one) for one in made]

    async def tasks(self) -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def answers(session: Session) -> bool:
    """Whether the driver has found the node again."""
    try:
        session.execute("SELECT key FROM system.local")
    except NoHostAvailable:
        return False
    return True


def open_files(directory: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # It was the listing's own.
        if target.startswith(str(directory)):
            found.append(target)
    return sorted(found)


def test_a_node_starts_again_in_its_process_with_its_data_and_nothing_of_its_first_life(
    tmp_path: Path,
) -> None:
    cluster, address = Nodes(tmp_path), next(addresses())
    cluster._thread.start()
    cluster.members = [Member(address)]
    lives = TwoLives(cluster, tmp_path / "n1", address)
    before = cluster.call(lives.tasks())
    cluster.call(lives.start())
    driver = connect(cluster, reconnection_policy=ConstantReconnectionPolicy(0.1, None))
    try:
        session: Session = driver.connect()
        session.execute(f"CREATE KEYSPACE k {SIMPLE % 1}")
        session.execute("CREATE TABLE k.t (p int PRIMARY KEY, v int)")
        insert = session.prepare("INSERT INTO k.t (p, v) VALUES (?, ?)")
        for at in range(50):
            session.execute(insert, (at, at * at))
        first, epoch = lives.parts(), lives.node.log.state.epoch
        tasks_of_one, files_of_one = cluster.call(lives.tasks()), open_files(tmp_path)
        assert tasks_of_one and files_of_one

        cluster.call(lives.stop())
        assert cluster.call(lives.tasks()) == before
        assert open_files(tmp_path) == []

        cluster.call(lives.start())
        gc.collect()
        assert [ref() for ref in first if ref() is not None] == []
        assert lives.node.ready and lives.node.log.state.epoch == epoch
        assert cluster.call(lives.tasks()) <= tasks_of_one
        until(lambda: answers(session))
        rows = session.execute("SELECT p, v FROM k.t")
        assert sorted(rows) == [(at, at * at) for at in range(50)]
        session.execute(insert, (50, 2500))
        session.execute("CREATE TABLE k.u (p int PRIMARY KEY)")
        assert lives.node.log.state.epoch == epoch + 1
        assert len(lives.node.log.cluster.directory.nodes) == 1, "it is the node that it was"
    finally:
        driver.shutdown()
        cluster.call(lives.end())
        cluster.close()
    assert open_files(tmp_path) == [] and not cluster.escaped
