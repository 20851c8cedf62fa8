"""Clients of a simulated cluster: writes with unique values and timestamps, reads of all shapes.

Invariant: one generator gives all timestamps, and only two puts of two clients to the same rows may share
one, so which write of a register wins is known; a value begins with its timestamp, so a read says which
write it saw. What a client asks depends on what others ask, never on what it saw.
"""

from __future__ import annotations

import asyncio

import msgspec

from lockstep.runtime.ports import Runtime
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE, Answer, DoorClient
from lockstep.sim.load.cql_client import CqlSession
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.sim.runtime.streams import NS, Stream
from lockstep.values.ids import Consistency

#: A client waits this much longer than it tells the server to.
_PATIENCE_MS = 500
_CONNECT_MS = 300
_FIRST_TIMESTAMP_US = 1_000_000
#: Of the writes, how many go to partitions that nobody reads, where there are such.
_UNREAD_SHARE = 0.6

Session = DoorClient | CqlSession


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn once for a run. `think_ms` is the mean pause between two requests of a client."""

    clients: int = 3
    partitions: int = 5
    rows: int = 4
    think_ms: float = 30.0
    timeout_ms: int = 1000
    write_share: float = 0.5
    delete_share: float = 0.2
    weak_share: float = 0.1
    page_rows: int = 3
    sticky: float = 0.9
    #: Share of connections that speak CQL; the others use the simulator's door.
    cql_share: float = 0.5
    #: Share of puts that repeat another client's last one: same rows, same timestamp, another value.
    twin_share: float = 0.1
    #: Share of reads that ask for the row that was written last, perhaps while it is being written.
    echo_share: float = 0.2
    #: Share of requests at levels below a quorum, or at ALL and EACH_QUORUM, is `weak_share`; the others are
    #: at these.
    levels: tuple[Consistency, ...] = (Consistency.QUORUM, Consistency.QUORUM, Consistency.LOCAL_QUORUM)
    rare_levels: tuple[Consistency, ...] = (Consistency.ONE, Consistency.ALL)
    #: How many requests a client sends at once.
    volley: int = 1
    #: Partitions that are written and not read before the end, so that no read repairs them; nor does a scan.
    unread: int = 0
    #: Of the puts, how many write all rows of a partition.
    whole_share: float = 0.2
    #: Of the reads, how many are of a table, of a row, and so of a whole partition.
    read_shares: tuple[float, float, float] = (0.1, 0.5, 0.4)


def draw_load(draw: Stream) -> Load:
    return Load(
        clients=draw.choice((2, 3, 4)),
        partitions=draw.choice((2, 5, 12)),
        rows=draw.choice((2, 4)),
        think_ms=draw.choice((10.0, 30.0, 60.0)),
        timeout_ms=draw.choice((300, 1000, 2000)),
        write_share=draw.choice((0.4, 0.6)),
        delete_share=draw.choice((0.0, 0.15, 0.3)),
        weak_share=draw.choice((0.0, 0.1, 0.3)),
        page_rows=draw.choice((2, 100)),
        sticky=draw.choice((0.3, 0.95)),
        cql_share=draw.choice((0.0, 0.5, 1.0)),
        twin_share=draw.choice((0.0, 0.1, 0.3)),
        echo_share=draw.choice((0.0, 0.2, 0.5)),
    )


def of_whole_partitions(load: Load, share: float) -> Load:
    """The same, of clients that write all rows of few partitions, and mostly read: `share` of it all rows."""
    table = min(load.read_shares[0], 1 - share)
    return msgspec.structs.replace(
        load,
        partitions=4,
        rows=4,
        write_share=0.2,
        delete_share=0.0,
        twin_share=0.0,
        whole_share=1.0,
        page_rows=100,
        read_shares=(table, 1 - share - table, share),
    )


class Workload:
    """`stop` ends the clients after their present requests."""

    def __init__(self, cluster: SimCluster, load: Load, tables: list[str]) -> None:
        self.cluster = cluster
        self.load = load
        self.tables = tables
        self.stopped = False
        self._timestamp = _FIRST_TIMESTAMP_US
        #: The last put, and who asked for it; nobody once it has a twin.
        self.last: Change | None = None
        self.last_by = ""
        self._names = [f"c{number}" for number in range(1, load.clients + 1)]

    def start(self) -> None:
        world = self.cluster.world
        dcs = self.cluster.dcs()
        for number, name in enumerate(self._names, start=1):
            process = world.process(name, f"127.0.1.{number}")
            client = Client(self, name, world.stream(f"client/{name}"), dcs[(number - 1) % len(dcs)])
            process.start(client.run)

    def stop(self) -> None:
        self.stopped = True

    @property
    def idle(self) -> bool:
        return not any(self.cluster.world.processes[name].alive for name in self._names)

    def next_timestamp(self) -> int:
        self._timestamp += 1
        return self._timestamp

    def known_tables(self) -> list[str]:
        """Tables that some node knows; others may not know them yet."""
        schema = self.cluster.newest.schema
        return [table for table in self.tables if schema.table(KEYSPACE, table) is not None]

    def keys(self) -> list[bytes]:
        return [f"p{number}".encode() for number in range(self.load.partitions)]

    def unread_keys(self) -> list[bytes]:
        return [f"u{number}".encode() for number in range(self.load.unread)]

    def final_reads(self, level: Consistency = Consistency.QUORUM) -> list[Look]:
        """Quorum reads of every partition of every table, whole."""
        keys = (*self.keys(), *self.unread_keys())
        return [Look(table, key, None, level, 5000) for table in self.known_tables() for key in keys]


class Client:
    """Asks nodes of one data centre."""

    def __init__(self, workload: Workload, name: str, draw: Stream, dc: str) -> None:
        self._workload = workload
        self._load = workload.load
        self._cluster = workload.cluster
        self._name = name
        self._draw = draw
        self._door: Session | None = None
        self._dc = dc
        #: The node that is asked.
        self._node = ""
        self._scope = dc if workload.cluster.shape.dcs > 1 else ""

    async def run(self, runtime: Runtime) -> None:
        while not self._workload.stopped:
            await asyncio.sleep(self._draw.expovariate(1000 / self._load.think_ms))
            door = await self._connected(runtime)
            if door is not None:
                asking = [self.perform(door, self._request()) for _ in range(self._load.volley - 1)]
                others = [runtime.tasks.spawn(each, "volley") for each in asking]
                await self.perform(door, self._request())
                await asyncio.gather(*others)
        if self._door is not None:
            self._door.close()

    async def _connected(self, runtime: Runtime) -> Session | None:
        door = self._door
        if door is not None and not door.closed and self._draw.random() < self._load.sticky:
            return door
        if door is not None:
            door.close()
        self._door = None
        names = [name for name in self._cluster.in_service() if self._cluster.dc_of(name) == self._dc]
        if not names:
            return None
        self._node = self._draw.choice(names)
        host = self._cluster.processes[self._node].host
        try:
            kind = CqlSession if self._draw.random() < self._load.cql_share else DoorClient
            self._door = await kind.connect(runtime, host, _CONNECT_MS)
        except (OSError, TimeoutError):
            return None
        return self._door

    async def perform(self, door: Session, request: Change | Look) -> Event:
        """Send, wait, record."""
        world, history = self._cluster.world, self._cluster.history
        event = history.began(self._name, request, world.now_ns, self._scope, self._node)
        try:
            async with asyncio.timeout((request.timeout_ms + _PATIENCE_MS) / 1000):
                answer = await door.ask(request)
        except (TimeoutError, ConnectionError) as error:
            history.ended(event, world.now_ns, Outcome.UNKNOWN, error=type(error).__name__)
            door.close()
        else:
            history.ended(event, world.now_ns, _outcome(answer), answer.rows, answer.code)
        self._tell(event)
        return event

    def _tell(self, event: Event) -> None:
        if self._cluster.story is not None:
            rows = " ".join(f"{k.decode()}[{c}]={v.decode()}" for k, c, v in event.rows)
            took_ms = (event.end_ns - event.start_ns) / NS * 1000
            text = f"{event.request.text()} -> {event.outcome} {event.error}{rows} ({took_ms:.0f} ms)"
            self._cluster.tell(self._name, text)

    # ---- what to ask

    def _request(self) -> Change | Look:
        draw, load = self._draw, self._load
        table = draw.choice(self._workload.known_tables())
        key = draw.choice(self._workload.keys())
        level = self._level()
        last = self._workload.last
        if draw.random() < load.write_share:
            if load.unread and draw.random() < _UNREAD_SHARE:
                return self._change(table, draw.choice(self._workload.unread_keys()), level)
            return self._change(table, key, level)
        if last is not None and draw.random() < load.echo_share:
            is_whole = load.whole_share == 1.0 and draw.random() < max(0.5, load.read_shares[2])
            row = None if is_whole else last.puts[0][0]
            return Look(last.table, last.key, row, level, load.timeout_ms, load.page_rows)
        shape = draw.random()
        of_tables, of_rows, _ = load.read_shares
        if shape < of_tables and not load.unread:
            return Look(table, None, None, level, load.timeout_ms, load.page_rows)
        clustering = draw.randrange(load.rows) if shape < of_tables + of_rows else None
        return Look(table, key, clustering, level, load.timeout_ms, load.page_rows)

    def _level(self) -> Consistency:
        if self._draw.random() < self._load.weak_share:
            return self._draw.choice(self._load.rare_levels)
        return self._draw.choice(self._load.levels)

    def _change(self, table: str, key: bytes, level: Consistency) -> Change:
        draw, load = self._draw, self._load
        if draw.random() < load.twin_share and self._workload.last_by not in ("", self._name):
            return self._twin(level)
        timestamp = self._workload.next_timestamp()
        timeout_ms = load.timeout_ms
        clustering = draw.randrange(load.rows)
        if draw.random() < load.delete_share:
            shape = draw.random()
            if shape < 0.5:
                return Change(table, key, timestamp, level, timeout_ms, delete_row=clustering)
            if shape < 0.8:
                rows = (clustering, clustering + 1 + draw.randrange(load.rows))
                return Change(table, key, timestamp, level, timeout_ms, delete_rows=rows)
            return Change(table, key, timestamp, level, timeout_ms, delete_partition=True)
        chosen = [clustering]
        if draw.random() < load.whole_share:
            chosen = list(range(load.rows))
        puts = tuple((at, self._value(timestamp)) for at in chosen)
        change = Change(table, key, timestamp, level, timeout_ms, puts)
        if key not in self._workload.unread_keys():
            self._workload.last, self._workload.last_by = change, self._name
        return change

    def _twin(self, level: Consistency) -> Change:
        """Another client's last put again, with a value of this client's own."""
        last = self._workload.last
        assert last is not None
        self._workload.last_by = ""
        self._cluster.world.count("load.twins")
        puts = tuple((at, self._value(last.timestamp_us)) for at, _ in last.puts)
        return msgspec.structs.replace(last, consistency=level, puts=puts)

    def _value(self, timestamp: int) -> bytes:
        return f"{timestamp}/{self._name}".encode()


def _outcome(answer: Answer) -> Outcome:
    if not answer.code:
        return Outcome.OK
    return Outcome.FAILED if answer.known else Outcome.UNKNOWN
