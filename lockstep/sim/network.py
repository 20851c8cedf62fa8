"""The network between simulated hosts: directed links, connections, listening ports, and their faults.

Invariant: a connection is a TCP connection. Lost packets come late, never out of order; a blocked or
dead path is silent; only a kernel that is there and reachable answers with a reset. All draws about a
link come from that link's own stream.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lockstep.sim.clock import NS
from lockstep.sim.loop import SimLoop
from lockstep.sim.transport import Segment, SimTransport
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    from lockstep.sim.process import Process
    from lockstep.sim.world import World

Factory = Callable[[], asyncio.Protocol]

#: A kernel sends a first packet this often before connect fails; the waits double from one second.
_SYN_TRIES_MAX = 7
_SYN_RETRY_S = 1.0
_EPHEMERAL_PORT_FIRST = 40_000


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One direction between two hosts. Times in milliseconds, the rest probabilities."""

    #: `uniform` in [low, high]; `exponential` and `heavy` have a tail beyond high.
    shape: Literal["uniform", "exponential", "heavy"] = "uniform"
    low_ms: float = 0.2
    high_ms: float = 2.0
    #: A segment is lost and comes a retransmission later.
    loss: float = 0.0
    retransmit_ms: float = 200.0
    #: A write arrives in two pieces.
    fragment: float = 0.05
    #: A write joins one of the same instant, as a kernel's buffer does.
    coalesce: float = 0.8
    #: One bit of a segment flips, unnoticed by TCP.
    corrupt: float = 0.0
    #: The first packet of a connection is lost.
    syn_loss: float = 0.0
    #: The connection is established and then silent for ever.
    dead_on_accept: float = 0.0


class Link:
    """Bytes from one host to another: their delays and what blocks them."""

    def __init__(self, world: World, source: str, target: str, settings: LinkSettings) -> None:
        self.source = source
        self.target = target
        self.name = f"{source}>{target}"
        self.draw = world.stream(f"link/{self.name}")
        self.chance = self.draw.random
        self.blocked = False
        self.clogged_until_ns = 0
        self._world = world
        self.configure(settings)

    def configure(self, settings: LinkSettings) -> None:
        self.settings = settings
        self._low_ns = int(settings.low_ms * 1e6)
        self._span_ns = int((settings.high_ms - settings.low_ms) * 1e6)

    def arrival_ns(self, sent_ns: int) -> int:
        """When a packet sent then arrives, as if it were alone."""
        settings = self.settings
        share = self.chance()
        if settings.shape == "exponential":
            share = -math.log1p(-share)
        elif settings.shape == "heavy":
            share = min((1.0 - share) ** -0.7 - 1.0, 200.0)
        arrival = sent_ns + self._low_ns + int(self._span_ns * share)
        if settings.loss and self.chance() < settings.loss:
            self._world.count("net.retransmitted")
            arrival += self.retransmit_ns()
        if self.clogged_until_ns > arrival:
            self._world.count("net.clogged")
            arrival = self.clogged_until_ns + int(self.chance() * 10_000_000)
        return arrival

    def retransmit_ns(self) -> int:
        return int(self.settings.retransmit_ms * 1e6 * (1.0 + self.chance()))


class SimServer(asyncio.AbstractServer):
    """A listening port."""

    def __init__(self, fabric: Fabric, loop: SimLoop, host: str, port: int, factory: Factory) -> None:
        self._fabric = fabric
        self.loop = loop
        self.host = host
        self.port = port
        self.factory = factory
        self.context = contextvars.copy_context()

    def close(self) -> None:
        self._fabric.stop_listening(self)

    def is_serving(self) -> bool:
        return self._fabric.listener(self.host, self.port) is self

    def get_loop(self) -> SimLoop:
        return self.loop

    async def wait_closed(self) -> None:
        return

    async def start_serving(self) -> None:
        return

    async def serve_forever(self) -> None:
        await self.loop.create_future()


class _Attempt:
    """A connect that is under way."""

    __slots__ = ("context", "factory", "future", "host", "loop", "port", "tries")

    def __init__(self, loop: SimLoop, host: str, port: int, factory: Factory) -> None:
        self.loop = loop
        self.host = host
        self.port = port
        self.factory = factory
        self.future: asyncio.Future[tuple[SimTransport, asyncio.Protocol]] = loop.create_future()
        self.context = contextvars.copy_context()
        self.tries = 0

    @property
    def over(self) -> bool:
        return self.loop.dead or self.future.done()

    def fail(self, error: OSError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Fabric:
    """All hosts' networking. Hosts are IP-like strings."""

    def __init__(self, world: World, settings: LinkSettings) -> None:
        self._world = world
        self._settings = settings
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], SimServer] = {}
        #: Open connections by number: client's end, server's end.
        self.connections: dict[int, tuple[SimTransport, SimTransport]] = {}
        self._connection_count = 0
        self._faults = world.stream("fault/network")
        self.count = world.count

    def link(self, source: str, target: str) -> Link:
        key = (source, target)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(self._world, source, target, self._settings)
        return link

    # ---- connecting

    def listen(self, loop: SimLoop, host: str, port: int, factory: Factory) -> SimServer:
        if host not in (loop.host, "0.0.0.0"):
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: not an address of this host",
                hint=f"use {loop.host} or 0.0.0.0",
            )
        key = (loop.host, port)
        if key in self._listeners:
            raise ConfigurationError(
                f"address {loop.host}:{port} is in use", hint="stop the other process or choose another port"
            )
        server = SimServer(self, loop, loop.host, port, factory)
        if not loop.dead:
            self._listeners[key] = server
        return server

    def listener(self, host: str, port: int) -> SimServer | None:
        return self._listeners.get((host, port))

    def stop_listening(self, server: SimServer) -> None:
        if self.listener(server.host, server.port) is server:
            del self._listeners[(server.host, server.port)]

    async def connect(
        self, loop: SimLoop, host: str, port: int, factory: Factory
    ) -> tuple[SimTransport, asyncio.Protocol]:
        attempt = _Attempt(loop, host, port, factory)
        self._send_syn(attempt)
        return await attempt.future

    def _send_syn(self, attempt: _Attempt) -> None:
        if attempt.over:
            return
        link = self.link(attempt.loop.host, attempt.host)
        if link.blocked:
            self._syn_lost(attempt, "net.syn_blocked")
        elif link.settings.syn_loss and link.chance() < link.settings.syn_loss:
            self._syn_lost(attempt, "net.syn_lost")
        else:
            self._world.at(link.arrival_ns(self._world.now_ns), self._syn_arrives, attempt, label="")

    def _syn_lost(self, attempt: _Attempt, effect: str) -> None:
        self.count(effect)
        attempt.tries += 1
        wait_s = _SYN_RETRY_S * 2 ** (attempt.tries - 1)
        if attempt.tries >= _SYN_TRIES_MAX:
            error = TimeoutError(110, "Connection timed out")
            self._world.after(wait_s, self._answer, attempt, error, label="")
        else:
            self._world.after(wait_s, self._send_syn, attempt, label="")

    def _answer(self, attempt: _Attempt, error: OSError) -> None:
        if not attempt.loop.dead:
            self._world.at(self._world.now_ns, attempt.fail, error, loop=attempt.loop, label="connect failed")

    def _syn_arrives(self, attempt: _Attempt) -> None:
        if attempt.over:
            return
        server = self._listeners.get((attempt.host, attempt.port))
        back = self.link(attempt.host, attempt.loop.host)
        if server is None and not self._kernel_is_up(attempt.host):
            self._syn_lost(attempt, "net.syn_to_dead_host")
        elif back.blocked:
            self._syn_lost(attempt, "net.syn_blocked")
        elif server is None:
            self.count("net.refused")
            error = ConnectionRefusedError(111, "Connection refused")
            self._world.at(back.arrival_ns(self._world.now_ns), self._answer, attempt, error, label="")
        else:
            self._accept(attempt, server, back)

    def _kernel_is_up(self, host: str) -> bool:
        there = [process for process in self._world.processes.values() if process.host == host]
        return bool(there) and all(process.powered for process in there)

    def _accept(self, attempt: _Attempt, server: SimServer, back: Link) -> None:
        self._connection_count += 1
        number = self._connection_count
        local = (attempt.loop.host, _EPHEMERAL_PORT_FIRST + number % 25_000)
        remote = (attempt.host, attempt.port)
        client = SimTransport(self, attempt.loop, number, local, remote, attempt.context)
        there = SimTransport(self, server.loop, number, remote, local, server.context.copy())
        client.peer, there.peer = there, client
        client.link, there.link = self.link(attempt.loop.host, attempt.host), back
        self.connections[number] = (client, there)
        if client.link.settings.dead_on_accept and back.chance() < client.link.settings.dead_on_accept:
            client.black = there.black = True
            self.count("net.dead_on_accept")
        now_ns = self._world.now_ns
        self._world.at(now_ns, self._accepted, there, server, loop=server.loop, label="accept")
        there.last_arrival_ns = back.arrival_ns(now_ns)
        self._world.at(
            there.last_arrival_ns, self._established, client, attempt, loop=attempt.loop, label="connected"
        )

    def _accepted(self, end: SimTransport, server: SimServer) -> None:
        if not end.closed:
            end.context.run(lambda: end.made(server.factory()))

    def _established(self, end: SimTransport, attempt: _Attempt) -> None:
        if attempt.future.done():
            end.abort()
            return
        if end.closed:
            attempt.fail(ConnectionResetError(104, "Connection reset by peer"))
            return
        protocol = attempt.factory()
        attempt.context.run(end.made, protocol)
        attempt.future.set_result((end, protocol))

    # ---- bytes

    def send(self, end: SimTransport, data: bytes) -> None:
        """Written by `end`'s application."""
        world = self._world
        now_ns = world.now_ns
        link = end.link
        world.trace.block.append((now_ns, "send", link.name, end.number, len(data)))
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
        if not self._kernel_is_up(end.peer.loop.host):
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

    def process_ended(self, process: Process, loop: SimLoop, kind: str) -> None:
        """What the kernel does for a dead process: resets or ends after a kill, silence after a power cut."""
        for key in [key for key, server in self._listeners.items() if server.loop is loop]:
            del self._listeners[key]
        for end in list(loop.ends):
            end.silence()
            if kind == "power":
                end.held.clear()
            elif kind == "kill" and process.faults.random() < 0.7:
                self.send_reset(end)
            else:
                self.send_end(end)
            self.end_closed(end)

    def host_is_back(self, process: Process) -> None:
        """Peers that still retransmit to the dead incarnation are answered with resets."""
        for client, server in list(self.connections.values()):
            for dead, alive in ((client, server), (server, client)):
                if (
                    dead.loop.host == process.host
                    and dead.loop.dead
                    and alive.unanswered
                    and not alive.closed
                ):
                    delay_ns = alive.link.retransmit_ns()
                    self.count("net.half_open_reset")
                    self._world.at(self._world.now_ns + delay_ns, self.send_reset, dead, label="")

    def close(self) -> None:
        self.connections.clear()
        self._listeners.clear()

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
        return sorted({process.host for process in self._world.processes.values()})

    def heal(self) -> None:
        """Unblock and unclog every link."""
        for link in self._links.values():
            link.clogged_until_ns = 0
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
        self._fabric = fabric
        self._loop = loop

    async def listen(self, host: str, port: int, protocol: Factory) -> SimServer:
        return self._fabric.listen(self._loop, host, port, protocol)

    async def connect(
        self, host: str, port: int, protocol: Factory
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self._fabric.connect(self._loop, host, port, protocol)
