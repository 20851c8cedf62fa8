"""Read sessions at a node: who may have one, how many there are, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.node.work import read_sessions
from lockstep.node.work.read_sessions import ReadSessions
from lockstep.placement.placements import PlacedRange, ReplicaGroup
from lockstep.scans.messages import FACTS, SessionOrder
from lockstep.scans.session_files import (
    COLUMNS_DIRECTORY,
    DIRECTORY,
    DOOR_ORDER,
    FACTS_SUFFIX,
    LEASE,
    LEASE_SUFFIX,
    DoorOrder,
    Expired,
)
from lockstep.schema.model import Column, ColumnKind, Table
from lockstep.schema.replication_options import parse_replication
from lockstep.values.errors import InvalidRequest, Overloaded
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import READ_SESSION_IDLE_MS, READ_SESSIONS_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.storage.support import LossyDisk

OWN, OTHER = NodeId(1), NodeId(2)
TABLE = Table(7, "u", "k", "t", (Column(1, "p", "int", ColumnKind.PARTITION_KEY, 0),))
SECRET = bytes(16)


class _Node:
    """What a node's sessions need of it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.disk = LossyDisk()
        self.contents: list[str] = []
        self.doors_open = False
        self.lacking: list[Range] = []
        self.placed = (_placed(TOKEN_MIN, 0, OWN, 3), _placed(0, TOKEN_MAX, OTHER, 3))
        self.while_fixing = lambda: None
        schema = SimpleNamespace(
            table=lambda *_: TABLE,
            group_of=lambda _: 1,
            by_name={"k": SimpleNamespace(types=())},
        )
        self.replication: Any = SimpleNamespace(has_witnesses=False)
        ring = lambda _: SimpleNamespace(ranges=self.placed, replication=self.replication)  # noqa: E731
        cluster = SimpleNamespace(
            schema=schema,
            placements=SimpleNamespace(ring=ring),
            epoch=9,
            directory=SimpleNamespace(nodes=(), dc_by_id={OWN: "dc1", OTHER: "dc1"}),
            repairs=SimpleNamespace(by_table={}),
        )
        configuration = SimpleNamespace(
            node=SimpleNamespace(data_directory="data"),
            network=SimpleNamespace(address="127.0.0.1"),
            read_sessions=SimpleNamespace(port=0, column_files_mib=3),
            storage=SimpleNamespace(reserve_bytes=1 << 20),
            tls=SimpleNamespace(files=None),
        )
        tasks = SimpleNamespace(spawn=self._spawn, run_blocking=_at_once)
        clock = SimpleNamespace(monotonic_s=lambda: self.now_s, wall_us=lambda: 5_000_000)
        random = SimpleNamespace(bytes=lambda count: b"\x07" * count)
        runtime: Any = SimpleNamespace(clock=clock, disk=self.disk, tasks=tasks, doors=self, random=random)
        context: Any = SimpleNamespace(
            runtime=runtime,
            configuration=configuration,
            cluster=lambda: cluster,
            own_id=lambda: OWN,
            log=lambda *_, **__: None,
        )
        engine: Any = SimpleNamespace(fixing=self)
        lacking: Any = SimpleNamespace(require=lambda _, tokens: self.lacking.append(tokens))
        self.sessions = ReadSessions(context, engine, lacking)
        self.tasks: list[asyncio.Task[Any]] = []

    def _spawn(self, work: Coroutine[Any, Any, Any], _name: str) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def fixed(self, _table_id: int, _tokens: Range, path: str) -> object:
        self.contents.append(path)
        self.while_fixing()
        return self

    def remove(self, path: str) -> None:
        self.contents.remove(path)

    async def open(self, _host: str, _port: int, order: bytes, _tls: object) -> int:
        self.doors_open = True
        self.order = DOOR_ORDER.decode(order)
        return 4321

    async def close(self) -> None:
        self.doors_open = False


async def _at_once(work: Any) -> Any:
    return work()


def _placed(left: int, right: int, node: NodeId, epoch: int) -> PlacedRange:
    return PlacedRange(Range(left, right), ReplicaGroup((node,), (node,), epoch))


def _order(do: Any, name: str = "one", secret: bytes = SECRET, lease_ms: int = 0) -> SessionOrder:
    return SessionOrder(do, name, secret, lease_ms)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> _Node:
    monkeypatch.setattr(read_sessions, "READ_SESSION_SWEEP_MS", 0)
    return _Node()


def test_a_session_has_the_ranges_that_reads_ask_this_node_for(node: _Node) -> None:
    async def life() -> None:
        opened = await node.sessions.run(TABLE, _order("open"))
        assert opened is not None
        assert (opened.port, opened.epoch, opened.node) == (4321, 9, OWN)
        assert [part.reads for part in opened.ranges] == [(OWN,), (OTHER,)]
        facts = FACTS.decode(node.disk.read(f"{DIRECTORY}/one{FACTS_SUFFIX}"))
        assert facts.owned == ((TOKEN_MIN, 0),)
        assert facts.table.table == TABLE
        assert node.lacking == [Range(TOKEN_MIN, 0)]
        assert await node.sessions.run(TABLE, _order("open")) == opened
        assert await node.sessions.run(TABLE, _order("find")) == opened
        assert await node.sessions.run(TABLE, _order("close")) is None
        assert (node.contents, node.disk.names(DIRECTORY)) == ([], [])
        with pytest.raises(Expired, match="snapshot expired"):
            await node.sessions.run(TABLE, _order("find"))
        await asyncio.gather(*node.tasks)
        assert not node.doors_open, "without sessions there are no processes"

    asyncio.run(life())


def test_a_session_shows_no_rows_of_ranges_whose_witness_its_node_is(node: _Node) -> None:
    node.replication = parse_replication("k", (("class", "NetworkTopologyStrategy"), ("dc1", "2/1")), ())
    both = ((TOKEN_MIN, 0, (OWN, OTHER)), (0, TOKEN_MAX, (OTHER, OWN)))
    node.placed = tuple(
        PlacedRange(Range(left, right), ReplicaGroup(nodes, nodes, 3)) for left, right, nodes in both
    )

    async def life() -> None:
        opened = await node.sessions.run(TABLE, _order("open"))
        assert opened is not None
        assert [(one.reads, one.witnesses) for one in opened.ranges] == [((1,), (2,)), ((2,), (1,))]
        facts = FACTS.decode(node.disk.read(f"{DIRECTORY}/one{FACTS_SUFFIX}"))
        assert facts.owned == ((TOKEN_MIN, 0),)
        assert node.lacking == [Range(TOKEN_MIN, 0)]
        for task in node.tasks:
            task.cancel()

    asyncio.run(life())


def test_another_secret_gets_nothing(node: _Node) -> None:
    async def life() -> None:
        await node.sessions.run(TABLE, _order("open"))
        for do in ("open", "find", "close"):
            with pytest.raises(InvalidRequest, match="not the secret"):
                await node.sessions.run(TABLE, _order(do, secret=b"x" * 16))
        for name, secret in (("../x", SECRET), ("", SECRET), ("fine", b"short")):
            with pytest.raises(InvalidRequest, match="letters and digits"):
                await node.sessions.run(TABLE, _order("open", name, secret))
        assert node.sessions.count == 1
        for task in node.tasks:
            task.cancel()

    asyncio.run(life())


def test_placements_that_change_meanwhile_are_taken_anew(node: _Node) -> None:
    changes = 1

    def change() -> None:
        nonlocal changes
        if changes:
            changes -= 1
            node.placed = (_placed(TOKEN_MIN, TOKEN_MAX, OWN, 10 + changes),)

    async def life() -> None:
        nonlocal changes
        node.while_fixing = change
        opened = await node.sessions.run(TABLE, _order("open"))
        assert opened is not None
        assert [part.epoch for part in opened.ranges] == [10]
        assert len(node.contents) == 1, "the first content is gone"
        changes = 100
        with pytest.raises(Overloaded, match="changes right now"):
            await node.sessions.run(TABLE, _order("open", "two"))
        assert node.sessions.count == 1
        assert len(node.contents) == 1
        for task in node.tasks:
            task.cancel()

    asyncio.run(life())


def test_a_lease_ends_unless_readers_renew_it(node: _Node) -> None:
    async def life() -> None:
        await node.sessions.run(TABLE, _order("open", "read", lease_ms=5000))
        await node.sessions.run(TABLE, _order("open", "left", lease_ms=5000))
        node.disk.truncate(f"{DIRECTORY}/read{LEASE_SUFFIX}", 0)
        node.disk.append(f"{DIRECTORY}/read{LEASE_SUFFIX}", LEASE.pack(109.0))
        node.now_s = 106.0
        for _ in range(100):
            await asyncio.sleep(0)
        assert [one.id for one in node.sessions.current] == ["read"]
        assert node.sessions.expired_total == 1
        node.now_s = 110.0
        await asyncio.gather(*node.tasks)
        assert (node.sessions.count, node.contents, node.doors_open) == (0, [], False)

    asyncio.run(life())


def test_sessions_are_bounded_and_idle_ones_make_room(node: _Node) -> None:
    async def life() -> None:
        for number in range(READ_SESSIONS_MAX):
            await node.sessions.run(TABLE, _order("open", f"s{number}"))
            node.now_s += 0.01
        with pytest.raises(Overloaded, match="all of them are read"):
            await node.sessions.run(TABLE, _order("open", "late"))
        node.now_s += READ_SESSION_IDLE_MS / 1000
        await node.sessions.run(TABLE, _order("open", "late"))
        ids = [one.id for one in node.sessions.current]
        assert "late" in ids
        assert "s0" not in ids, "the one that was idle for longest"
        assert len(ids) == READ_SESSIONS_MAX
        for task in node.tasks:
            task.cancel()

    asyncio.run(life())


def test_a_start_removes_what_was_left(node: _Node) -> None:
    node.disk.append(f"{DIRECTORY}/old{FACTS_SUFFIX}", b"x")
    node.sessions.clean()
    assert node.disk.names(DIRECTORY) == []


def test_readers_are_told_how_much_they_may_keep(node: _Node) -> None:
    async def body() -> None:
        await node.sessions.run(TABLE, _order("open"))
        assert node.order == DoorOrder("data/read-sessions", "data/column-files", "07" * 8, 3 << 20, 2 << 20)

    asyncio.run(body())


def test_what_they_kept_goes_at_a_start_and_when_the_disk_is_full(node: _Node) -> None:
    kept = [f"{COLUMNS_DIRECTORY}/{number}.columns" for number in range(3)]
    space: Any = SimpleNamespace(look=lambda: node.now_s > 100)
    for drop in (node.sessions.clean, lambda: node.sessions.watch_room(space)):
        for path in kept:
            node.disk.append(path, b"some columns")
        assert node.sessions.column_files_bytes == 36
        node.sessions.watch_room(space)
        assert node.sessions.column_files_bytes == 36
        node.now_s += 1
        drop()
        assert node.sessions.column_files_bytes == 0
        node.now_s -= 1
