"""Read sessions at this node: contents of its store that clients read whole tables from, each fixed on disk
at one instant and kept for as long as somebody reads.

Invariant: a session holds every write of its table that was acknowledged before it was opened, for the ranges
that reads asked this node for at that epoch, before and after its content was fixed. It lives in a directory
of its own beside the store, never in it, so nothing that becomes of ranges and tables touches it, and it is
gone with its lease, when it is ended, and at the node's next start. It pins no plan and no epoch.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from importlib.util import find_spec

import msgspec

from lockstep.node.context import NodeContext
from lockstep.placement.placements import PlacedRange
from lockstep.runtime.ports import Doors
from lockstep.scans.messages import (
    SECRET_BYTES,
    SessionFacts,
    SessionNode,
    SessionOpened,
    SessionOrder,
    SessionRange,
)
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.session_files import (
    COLUMNS_DIRECTORY,
    DIRECTORY,
    FACTS_SUFFIX,
    LEASE,
    LEASE_SUFFIX,
    DoorOrder,
    Expired,
)
from lockstep.schema.model import Table
from lockstep.storage.engine import StorageEngine
from lockstep.storage.group_commit import Space
from lockstep.storage.store_position import Lacking
from lockstep.topology.roles import readers
from lockstep.values.codec import encode
from lockstep.values.errors import DiskRefused, InvalidRequest, Overloaded
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import (
    READ_SESSION_ATTEMPTS_MAX,
    READ_SESSION_IDLE_MS,
    READ_SESSION_LEASE_MS,
    READ_SESSION_LEASE_MS_MAX,
    READ_SESSION_SWEEP_MS,
    READ_SESSIONS_MAX,
)
from lockstep.values.tokens import FULL_RING, Range

_ID_CHARACTERS_MAX = 64
#: A range, and who shows rows of it.
_Placed = tuple[PlacedRange, Sequence[NodeId]]
_NEEDED = ("pyarrow", "numpy")


class ReadSession(msgspec.Struct):
    """`opened` is None while its content is being fixed; `until_s` is when its lease ends, by what was last
    seen of it."""

    id: str
    secret: bytes
    table: str
    lease_ms: int
    until_s: float
    opened: SessionOpened | None = None


class ReadSessions:
    def __init__(self, context: NodeContext, engine: StorageEngine, lacking: Lacking) -> None:
        self._context = context
        self._runtime = context.runtime
        self._engine = engine
        self._lacking = lacking
        self._sessions: dict[str, ReadSession] = {}
        self._sweeping: asyncio.Task[None] | None = None
        #: Doors are opened for a session that is known, and closed while none is.
        self._at_doors = asyncio.Lock()
        self.opened_total = self.expired_total = 0
        #: Of the store, once it is needed.
        self._incarnation = ""

    def clean(self) -> None:
        """Remove what an earlier incarnation left."""
        disk = self._runtime.disk
        for path in [f"{DIRECTORY}/{name}" for name in disk.names(DIRECTORY)]:
            if disk.exists(path):
                disk.remove(path)
            else:
                self._engine.fixing.remove(path)
        self.drop_columns()

    def drop_columns(self) -> None:
        """Give back the room of decoded columns; whoever reads next decodes them again."""
        disk = self._runtime.disk
        dropped = 0
        for name in disk.names(COLUMNS_DIRECTORY) if self._runtime.doors is not None else ():
            path = f"{COLUMNS_DIRECTORY}/{name}"
            if disk.exists(path):
                disk.remove(path)
                dropped += 1
        if dropped:
            self._context.log("scans.columns_dropped", files=dropped)

    def watch_room(self, space: Space) -> None:
        """Where writes are refused for want of room nothing is kept."""
        if space.look():
            self.drop_columns()

    @property
    def count(self) -> int:
        return len(self._sessions)

    @property
    def current(self) -> tuple[ReadSession, ...]:
        """Those that are open, or about to be."""
        for session in self._sessions.values():
            session.until_s = self._lease_end_s(session)
        return tuple(self._sessions.values())

    @property
    def column_files_bytes(self) -> int:
        """Room that decoded columns take."""
        disk, found = self._runtime.disk, 0
        if self._runtime.doors is None:
            return 0
        for name in disk.names(COLUMNS_DIRECTORY):
            path = f"{COLUMNS_DIRECTORY}/{name}"
            # A reader may have made room meanwhile.
            found += disk.size(path) if disk.exists(path) else 0
        return found

    # -- what clients want ----------------------------------------------------------------------------

    async def run(self, table: Table, order: SessionOrder) -> SessionOpened | None:
        """What there is of the session after it; None once it was ended. InvalidRequest, Expired,
        Overloaded."""
        if not order.id.isalnum() or len(order.id) > _ID_CHARACTERS_MAX or len(order.secret) != SECRET_BYTES:
            raise InvalidRequest("a read session has an id of letters and digits, and a secret of 16 bytes")
        known = self._sessions.get(order.id)
        if known is not None and not hmac.compare_digest(known.secret, order.secret):
            raise InvalidRequest(f"this is not the secret of read session {order.id}")
        if order.do == "close":
            await self.end(order.id)
            return None
        if known is not None and known.opened is not None:
            if known.table != f"{table.keyspace}.{table.name}":
                raise InvalidRequest(f"read session {order.id} is of another table")
            return known.opened
        if order.do == "find":
            raise Expired(order.id)
        if known is not None:
            raise Overloaded(f"read session {order.id} is being opened")
        return await self._open(table, order)

    async def _open(self, table: Table, order: SessionOrder) -> SessionOpened:
        doors = self._runtime.doors
        lacked = [name for name in _NEEDED if find_spec(name) is None]
        if doors is None or lacked:
            raise InvalidRequest(
                f"this node serves no read sessions: it lacks {', '.join(lacked) or 'doors'}"
            )
        if table.is_counter:
            raise InvalidRequest("a read session shows no counters")
        await self._make_room()
        lease_ms = min(order.lease_ms or READ_SESSION_LEASE_MS, READ_SESSION_LEASE_MS_MAX)
        until_s = self._runtime.clock.monotonic_s() + lease_ms / 1000
        name = f"{table.keyspace}.{table.name}"
        session = ReadSession(order.id, order.secret, name, lease_ms, until_s)
        self._sessions[order.id] = session
        try:
            session.opened = await self._fix(doors, table, session)
        except BaseException:
            del self._sessions[order.id]
            raise
        self.opened_total += 1
        self._context.log("scans.session_opened", session=order.id, table=name, lease_ms=lease_ms)
        if self._sweeping is None:
            self._sweeping = self._runtime.tasks.spawn(self._sweep(), "scans.sweep")
        return session.opened

    async def _make_room(self) -> None:
        """Overloaded when there are as many sessions as may be, and all are read."""
        if len(self._sessions) < READ_SESSIONS_MAX:
            return
        idle_since_s = self._runtime.clock.monotonic_s() - READ_SESSION_IDLE_MS / 1000
        opened = [one for one in self.current if one.opened is not None]
        oldest = min(opened, key=_renewed_s, default=None)
        if oldest is None or _renewed_s(oldest) > idle_since_s:
            raise Overloaded(f"this node has {READ_SESSIONS_MAX} read sessions, and all of them are read")
        await self.end(oldest.id)

    async def _fix(self, doors: Doors, table: Table, session: ReadSession) -> SessionOpened:
        path = f"{DIRECTORY}/{session.id}"
        for _ in range(READ_SESSION_ATTEMPTS_MAX):
            before = self._placed(table)
            owned = [placed.range for placed, shown in before if self._context.own_id() in shown]
            for range_ in owned:
                self._lacking.require(table.id, range_)
            until_s = self._runtime.clock.monotonic_s() + session.lease_ms / 1000
            # The store wants the directory to be there.
            self._runtime.disk.append(f"{path}{LEASE_SUFFIX}", LEASE.pack(until_s))
            try:
                if await self._engine.fixing.fixed(table.id, FULL_RING, path) is None:
                    raise InvalidRequest("this node's store keeps nothing on disk that could be read from")
                if self._placed(table) == before:
                    return await self._opened(doors, table, session, before, owned)
            except BaseException:
                await self._remove(session.id)
                raise
            await self._remove(session.id)
        raise Overloaded("who owns what of the table changes right now")

    def _placed(self, table: Table) -> tuple[_Placed, ...]:
        """InvalidRequest when the table is gone, or is another one by now."""
        cluster = self._context.cluster()
        found = cluster.schema.table(table.keyspace, table.name)
        if found is None or found.id != table.id:
            raise InvalidRequest(
                f"{table.keyspace}.{table.name} is no table, or no longer the one that was meant"
            )
        ring = cluster.placements.ring(cluster.schema.group_of(found))
        if not ring.replication.has_witnesses:
            return tuple((placed, placed.group.reads) for placed in ring.ranges)
        return tuple((placed, readers(cluster, ring, placed)) for placed in ring.ranges)

    async def _opened(
        self,
        doors: Doors,
        table: Table,
        session: ReadSession,
        placed: tuple[_Placed, ...],
        owned: list[Range],
    ) -> SessionOpened:
        """Once its content is fixed: have it served."""
        cluster, disk, configuration = (
            self._context.cluster(),
            self._runtime.disk,
            self._context.configuration,
        )
        shown = ScanTable(table, cluster.schema.by_name[table.keyspace].types)
        ranges = tuple((one.left, one.right) for one in owned)
        repaired = tuple(cluster.repairs.by_table.get(table.id, ()))
        facts = SessionFacts(session.secret, session.lease_ms, shown, ranges, repaired)
        disk.append(f"{DIRECTORY}/{session.id}{FACTS_SUFFIX}", encode(facts))
        network, settings = configuration.network, configuration.read_sessions
        home = configuration.node.data_directory
        self._incarnation = self._incarnation or self._runtime.random.bytes(8).hex()
        order = DoorOrder(
            f"{home}/{DIRECTORY}",
            f"{home}/{COLUMNS_DIRECTORY}",
            self._incarnation,
            settings.column_files_mib * 1024 * 1024,
            # Nor do they bring a node near to refusing writes.
            2 * configuration.storage.reserve_bytes,
        )
        async with self._at_doors:
            port = await doors.open(network.address, settings.port, encode(order), configuration.tls.files)
        return SessionOpened(
            session.id,
            self._context.own_id(),
            cluster.epoch,
            port,
            self._runtime.clock.wall_us(),
            shown,
            tuple(_told(one, shown) for one, shown in placed),
            tuple(
                SessionNode(int(info.id), info.address, info.cql_port, info.dc)
                for info in cluster.directory.nodes
            ),
        )

    # -- their end ------------------------------------------------------------------------------------

    async def end(self, session_id: str) -> bool:
        """Whoever reads it hears that it is no more. False when there is none."""
        session = self._sessions.get(session_id)
        if session is None or session.opened is None:
            return False
        del self._sessions[session_id]
        await self._remove(session_id)
        self._context.log("scans.session_ended", session=session_id, table=session.table)
        return True

    async def _remove(self, session_id: str) -> None:
        """Facts first: without them nobody begins to read it."""
        disk, path = self._runtime.disk, f"{DIRECTORY}/{session_id}"
        for suffix in (FACTS_SUFFIX, LEASE_SUFFIX):
            if disk.exists(f"{path}{suffix}"):
                disk.remove(f"{path}{suffix}")
        await self._runtime.tasks.run_blocking(lambda: self._engine.fixing.remove(path))

    async def _sweep(self) -> None:
        """End those whose lease has run out, until there is none."""
        while True:
            await asyncio.sleep(READ_SESSION_SWEEP_MS / 1000)
            now_s = self._runtime.clock.monotonic_s()
            for session in self.current:
                if session.opened is not None and session.until_s < now_s:
                    await self._expire(session)
            async with self._at_doors:
                if not self._sessions:
                    assert self._runtime.doors is not None, "there were sessions"
                    await self._runtime.doors.close()
                    self._sweeping = None
                    return

    async def _expire(self, session: ReadSession) -> None:
        try:
            if await self.end(session.id):
                self.expired_total += 1
        except DiskRefused as error:
            # What is left of it goes at the next start; nobody reads it.
            self._context.log("scans.session_kept", session=session.id, error=error.message)

    def _lease_end_s(self, session: ReadSession) -> float:
        """As readers have renewed it."""
        path = f"{DIRECTORY}/{session.id}{LEASE_SUFFIX}"
        if session.opened is None or not self._runtime.disk.exists(path):
            return session.until_s
        found = self._runtime.disk.read(path)
        (until_s,) = LEASE.unpack(found) if len(found) == LEASE.size else (session.until_s,)
        return max(session.until_s, float(until_s))


def _told(placed: PlacedRange, shown: Sequence[NodeId]) -> SessionRange:
    group, range_ = placed.group, placed.range
    witnesses = tuple(int(node) for node in group.reads if node not in shown)
    return SessionRange(range_.left, range_.right, tuple(map(int, shown)), group.epoch, witnesses)


def _renewed_s(session: ReadSession) -> float:
    return session.until_s - session.lease_ms / 1000
