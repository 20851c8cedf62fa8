"""The network between simulated hosts: connections, what happens to their bytes, and faults.

Invariant: a connection is a TCP connection. Lost packets come late, never out of order; a blocked or
dead path is silent; only a kernel that is there and reachable answers with a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.runtime.ports import FileReader, Tls
from lockstep.sim.runtime.dialing import Dialing, Factory, SimServer
from lockstep.sim.runtime.loop import SimLoop, Stage
from lockstep.sim.runtime.streams import NS, Stream
from lockstep.sim.runtime.transport import Link, LinkSettings, Segment, SimTransport
from lockstep.values.limits import RAW_SILENT_MS


class Fabric:
    """All hosts' networking. Hosts are IP-like strings."""

    def __init__(self, world: Stage, settings: LinkSettings) -> None:
        self._world = world
        self._settings = settings
        self._links: dict[tuple[str, str], Link] = {}
        self.dialing = Dialing(world, self)
        self.connections: dict[int, tuple[SimTransport, SimTransport]] = {}
        self._faults = world.stream("fault/network")
        self.count = world.count

    def link(self, source: str, target: str) -> Link:
        key = (source, target)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(self._world, source, target, self._settings)
        return link

    def kernel_is_up(self, host: str) -> bool:
        return self._world.hosts().get(host, False)

    # ---- bytes

    def send(self, end: SimTransport, data: bytes) -> None:
        """Written by `end`'s application."""
        now_ns = self._world.now_ns
        link = end.link
        self._world.note("send", link.name, end.number, len(data))
        settings = link.settings
        tail = end.tail
        if tail is not None and tail.sent_ns == now_ns and link.chance() < settings.coalesce:
            assert tail.chunks is not None
            tail.chunks.append(data)
            return
        if settings.fragment and len(data) > 1 and link.chance() < settings.fragment:
            cut = 1 + int(link.chance() * (len(data) - 1))
            self.count("net.fragmented")
            self._transmit(end, Segment(now_ns, data[:cut]))
            data = data[cut:]
        end.tail = segment = Segment(now_ns, data)
        self._transmit(end, segment)

    def send_end(self, end: SimTransport) -> None:
        """The end of `end`'s stream follows what it wrote."""
        end.tail = None
        self._transmit(end, Segment(self._world.now_ns, None))

    def _transmit(self, end: SimTransport, segment: Segment, extra_ns: int = 0) -> None:
        if end.black:
            self.count("net.blackholed")
            return
        if end.held or end.link.blocked:
            end.held.append(segment)
            self.count("net.held")
            return
        arrival = max(end.link.arrival_ns(self._world.now_ns) + extra_ns, end.last_arrival_ns + 1)
        end.last_arrival_ns = arrival
        self._world.at(arrival, self._arrive, end, segment, label="")

    def _arrive(self, end: SimTransport, segment: Segment) -> None:
        peer = end.peer
        if end.black:
            self.count("net.blackholed")
        elif not peer.closed:
            if segment is end.tail:
                end.tail = None
            corrupt = end.link.settings.corrupt
            if corrupt and segment.chunks and end.link.chance() < corrupt:
                self._corrupt(end.link, segment)
            peer.arrived(segment)
        else:
            self._arrive_at_closed(end, segment)

    def _arrive_at_closed(self, end: SimTransport, segment: Segment) -> None:
        """Nobody is at the other end any more: its kernel answers, if there is one."""
        if segment.chunks is not None:
            self.count("net.bytes_lost", segment.size())
        if end.closed:
            return
        if not self.kernel_is_up(end.peer.loop.host):
            end.unanswered = True
        elif segment.chunks is not None:
            self.count("net.half_open_reset")
            self.send_reset(end.peer)

    def _corrupt(self, link: Link, segment: Segment) -> None:
        data = bytearray(b"".join(segment.chunks or ()))
        data[int(link.chance() * len(data))] ^= 1 << int(link.chance() * 8)
        segment.chunks = [bytes(data)]
        self.count("net.corrupted")

    def acknowledge(self, sender: SimTransport, size: int) -> None:
        """The application at the other end took `size` of `sender`'s bytes."""
        if sender.peer.link.blocked or sender.black:
            sender.acks_held += size
        else:
            sender.acknowledged(size)

    def send_reset(self, end: SimTransport) -> None:
        """`end`'s kernel breaks the connection; its peer learns it if the path lets it."""
        end.held.clear()
        peer = end.peer
        if peer.closed:
            return
        if end.black or end.link.blocked:
            self.count("net.reset_lost")
            return
        arrival = max(end.link.arrival_ns(self._world.now_ns), end.last_arrival_ns + 1)
        end.last_arrival_ns = arrival
        self._world.at(arrival, self._reset_arrives, end, label="")

    def _reset_arrives(self, end: SimTransport) -> None:
        if not end.peer.closed:
            self.count("net.reset")
            end.peer.reset()

    def end_closed(self, end: SimTransport) -> None:
        if end.peer.closed:
            self.connections.pop(end.number, None)

    # ---- life of processes

    def process_ended(self, loop: SimLoop, kind: str, faults: Stream) -> None:
        """What the kernel does for a dead process: resets or ends after a kill, silence after a power cut."""
        self.dialing.forget(loop)
        ends = [end for both in self.connections.values() for end in both if end.loop is loop]
        for end in ends:
            if end.closed:
                continue
            end.silence()
            if kind == "power":
                end.held.clear()
            elif kind == "kill" and faults.random() < 0.7:
                self.send_reset(end)
            else:
                self.send_end(end)
            self.end_closed(end)

    def host_is_back(self, host: str) -> None:
        """Peers that still retransmit to the dead incarnation are answered with resets."""
        for client, server in list(self.connections.values()):
            for dead, alive in ((client, server), (server, client)):
                if dead.loop.host == host and dead.loop.dead and alive.unanswered and not alive.closed:
                    delay_ns = alive.link.retransmit_ns()
                    self.count("net.half_open_reset")
                    self._world.at(self._world.now_ns + delay_ns, self.send_reset, dead, label="")

    def close(self) -> None:
        self.connections.clear()
        self.dialing.close()

    # ---- faults

    def configure(self, source: str | None = None, target: str | None = None, **changes: Any) -> None:
        """Change settings of the matching links; None matches every host, also ones not seen yet."""
        if source is None and target is None:
            self._settings = msgspec.structs.replace(self._settings, **changes)
        if source is not None and target is not None:
            self.link(source, target)
        for (from_host, to_host), link in self._links.items():
            if source in (None, from_host) and target in (None, to_host):
                link.configure(msgspec.structs.replace(link.settings, **changes))

    def block(self, source: str, target: str) -> None:
        """Nothing passes in this direction until `unblock`."""
        self.link(source, target).blocked = True
        self._world.note("block", source, target)
        self.count("net.block")

    def unblock(self, source: str, target: str) -> None:
        """What waited is retransmitted."""
        link = self.link(source, target)
        if not link.blocked:
            return
        link.blocked = False
        self._world.note("unblock", source, target)
        for ends in list(self.connections.values()):
            for end in ends:
                if end.link is link:
                    self._release(end, link)
                elif end.peer.link is link and end.acks_held and not end.black:
                    size, end.acks_held = end.acks_held, 0
                    end.acknowledged(size)

    def _release(self, end: SimTransport, link: Link) -> None:
        held, end.held = end.held, []
        extra_ns = link.retransmit_ns() if held else 0
        for segment in held:
            self._transmit(end, segment, extra_ns)

    def partition(self, left: Sequence[str], right: Sequence[str], *, symmetric: bool = True) -> None:
        """Cut every path from `left` to `right`, and back when symmetric."""
        for source in left:
            for target in right:
                self.block(source, target)
                if symmetric:
                    self.block(target, source)

    def isolate(self, host: str) -> None:
        """Cut `host` from every other process's host."""
        others = [other for other in self.hosts() if other != host]
        self.partition([host], others)

    def hosts(self) -> list[str]:
        return sorted(self._world.hosts())

    def heal(self) -> None:
        """Unblock and unclog every link."""
        for link in self._links.values():
            link.clogged_until_ns = 0
            if link.blocked:
                self.unblock(link.source, link.target)

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Packets of the next `seconds` arrive only after them."""
        self.link(source, target).clogged_until_ns = self._world.now_ns + int(seconds * NS)
        self._world.note("clog", source, target)

    def flap(self, source: str, target: str, period_s: float, times: int) -> None:
        """Block and unblock both directions, half a period each, `times` times."""
        if times <= 0:
            return
        self.partition([source], [target])

        def rise() -> None:
            self.unblock(source, target)
            self.unblock(target, source)
            self._world.after(period_s / 2, self.flap, source, target, period_s, times - 1, label="flap")

        self._world.after(period_s / 2, rise, label="flap")

    def break_connections(self, probability: float = 1.0, between: Sequence[str] | None = None) -> int:
        """Reset chosen connections at once; bytes on their way are lost. Returns how many."""
        broken = 0
        for ends in self._chosen(probability, between):
            self._world.note("break", ends[0].number)
            for end in ends:
                end.held.clear()
                if not end.closed:
                    end.reset()
            broken += 1
        self.count("net.broken", broken)
        return broken

    def blackhole_connections(self, probability: float = 1.0, between: Sequence[str] | None = None) -> int:
        """Make chosen connections silent for ever, without telling either end. Returns how many."""
        lost = 0
        for ends in self._chosen(probability, between):
            self._world.note("blackhole", ends[0].number)
            for end in ends:
                end.black = True
                end.held.clear()
            lost += 1
        self.count("net.connections_blackholed", lost)
        return lost

    def _chosen(
        self, probability: float, between: Sequence[str] | None
    ) -> list[tuple[SimTransport, SimTransport]]:
        chosen = []
        for client, server in self.connections.values():
            if between is not None and not (client.loop.host in between and server.loop.host in between):
                continue
            if probability >= 1.0 or self._faults.random() < probability:
                chosen.append((client, server))
        return chosen


class NetworkPort:
    """Network port of one incarnation."""

    def __init__(self, fabric: Fabric, loop: SimLoop) -> None:
        self._dialing = fabric.dialing
        self._loop = loop

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Factory,
        tls: Tls | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> SimServer:
        """`tls` has no meaning here, nor in `connect`: nobody listens in."""
        return self._dialing.listen(self._loop, host, port, protocol)

    async def connect(
        self, host: str, port: int, protocol: Factory, tls: Tls | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self._dialing.connect(self._loop, host, port, protocol)

    async def send_file(
        self, transport: asyncio.Transport, head: bytes, file: FileReader, offset: int, size: int
    ) -> None:
        assert isinstance(transport, SimTransport), "a simulated connection"
        content = bytearray(size)
        if file.read_into(offset, memoryview(content)) < size:
            raise OSError("the file is shorter than what was promised of it")
        transport.write(head + content)
        async with asyncio.timeout(RAW_SILENT_MS / 1000):
            await transport.drained()

    async def receive(
        self, transport: asyncio.Transport, first: memoryview, size: int, take: Callable[[memoryview], None]
    ) -> bytes:
        assert isinstance(transport, SimTransport), "a simulated connection"
        async with asyncio.timeout(RAW_SILENT_MS / 1000) as limit:
            data, behind = first[:size], bytes(first[size:])
            while True:
                take(data)
                size -= len(data)
                if not size:
                    return behind
                limit.reschedule(self._loop.time() + RAW_SILENT_MS / 1000)
                data = memoryview(await transport.pulled(size))
