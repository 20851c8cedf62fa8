"""How simulated connections come to be: listening ports, first packets, their loss, their answers.

Invariant: a connect is refused only by a kernel that is up and reachable; without one it hangs, and fails
after the kernel's own retries.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from lockstep.sim.runtime.loop import SimLoop, Stage
from lockstep.sim.runtime.transport import Link, SimTransport, Wires
from lockstep.values.errors import ConfigurationError

Factory = Callable[[], asyncio.Protocol]

#: A kernel sends a first packet this often before connect fails; the waits double from one second.
_SYN_TRIES_MAX = 7
_SYN_RETRY_S = 1.0
_EPHEMERAL_PORT_FIRST = 40_000


class SimServer(asyncio.AbstractServer):
    """A listening port."""

    def __init__(self, dialing: Dialing, loop: SimLoop, host: str, port: int, factory: Factory) -> None:
        self._dialing = dialing
        self.loop = loop
        self.host = host
        self.port = port
        self.factory = factory
        self.context = contextvars.copy_context()

    def close(self) -> None:
        self._dialing.stop_listening(self)

    def is_serving(self) -> bool:
        return self._dialing.listener(self.host, self.port) is self

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


class Dialing:
    """The Fabric's listening ports and the connects that are under way."""

    def __init__(self, world: Stage, wires: Wires) -> None:
        self._world = world
        self._wires = wires
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._connection_count = 0

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
        link = self._wires.link(attempt.loop.host, attempt.host)
        if link.blocked:
            self._syn_lost(attempt, "net.syn_blocked")
        elif link.settings.syn_loss and link.chance() < link.settings.syn_loss:
            self._syn_lost(attempt, "net.syn_lost")
        else:
            self._world.at(link.arrival_ns(self._world.now_ns), self._syn_arrives, attempt, label="")

    def _syn_lost(self, attempt: _Attempt, effect: str) -> None:
        self._wires.count(effect)
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
        back = self._wires.link(attempt.host, attempt.loop.host)
        if server is None and not self._wires.kernel_is_up(attempt.host):
            self._syn_lost(attempt, "net.syn_to_dead_host")
        elif back.blocked:
            self._syn_lost(attempt, "net.syn_blocked")
        elif server is None:
            self._wires.count("net.refused")
            error = ConnectionRefusedError(111, "Connection refused")
            self._world.at(back.arrival_ns(self._world.now_ns), self._answer, attempt, error, label="")
        else:
            self._accept(attempt, server, back)

    def _accept(self, attempt: _Attempt, server: SimServer, back: Link) -> None:
        self._connection_count += 1
        number = self._connection_count
        local = (attempt.loop.host, _EPHEMERAL_PORT_FIRST + number % 25_000)
        remote = (attempt.host, attempt.port)
        client = SimTransport(self._wires, attempt.loop, number, local, remote, attempt.context)
        there = SimTransport(self._wires, server.loop, number, remote, local, server.context.copy())
        client.peer, there.peer = there, client
        client.link, there.link = self._wires.link(attempt.loop.host, attempt.host), back
        self._wires.connections[number] = (client, there)
        if client.link.settings.dead_on_accept and back.chance() < client.link.settings.dead_on_accept:
            client.black = there.black = True
            self._wires.count("net.dead_on_accept")
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

    def forget(self, loop: SimLoop) -> None:
        """A process died: its ports are free."""
        for key in [key for key, server in self._listeners.items() if server.loop is loop]:
            del self._listeners[key]

    def close(self) -> None:
        self._listeners.clear()
