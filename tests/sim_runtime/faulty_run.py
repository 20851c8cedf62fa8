"""One run that uses every port and many faults; prints its digest. test_determinism runs it elsewhere."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.transport import LinkSettings
from lockstep.sim.runtime.world import World, WorldSettings

NODES = ("a", "b", "c")
HOSTS = {name: f"10.1.0.{index + 1}" for index, name in enumerate(NODES)}


class _Peer(asyncio.Protocol):
    def __init__(self, node: _Node) -> None:
        self.node = node

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.node.take(data)


class _Node:
    """Gossips a counter, journals what it hears, fans out over tasks kept in a set."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime, self.name, self.heard = runtime, name, 0

    def take(self, data: bytes) -> None:
        self.heard += len(data)
        self.runtime.disk.append("journal", data)

    async def run(self) -> None:
        runtime = self.runtime
        await runtime.network.listen(HOSTS[self.name], 7000, lambda: _Peer(self))
        runtime.tasks.spawn(self._journal(), "journal")
        while True:
            sends = {
                runtime.tasks.spawn(self._tell(peer), f"tell-{peer}") for peer in NODES if peer != self.name
            }
            done, _ = await asyncio.wait(sends)
            # In the order of the set: equal in all processes because tasks hash by a counter.
            runtime.probes.observe("round", order=[task.get_name() for task in done], heard=self.heard)
            await runtime.probes.linger("round")
            await asyncio.sleep(runtime.random.real() * 0.05)

    async def _tell(self, peer: str) -> None:
        try:
            async with asyncio.timeout(0.3):
                transport, _ = await self.runtime.network.connect(HOSTS[peer], 7000, lambda: _Peer(self))
                transport.write(self.runtime.random.bytes(20))
                await asyncio.sleep(0.01)
                transport.close()
        except (OSError, TimeoutError):
            self.runtime.probes.observe("unreachable", peer=peer, id=self.runtime.random.uuid())

    async def _journal(self) -> None:
        disk = self.runtime.disk
        while True:
            await asyncio.sleep(0.02)
            disk.append("journal", b"tick")
            await disk.sync("journal")
            await disk.sync_names("")
            self.runtime.probes.observe("wall", us=self.runtime.clock.wall_us())
            await self.runtime.tasks.run_blocking(lambda: sum(range(10)))


def _main(name: str) -> Any:
    async def main(runtime: Runtime) -> None:
        await _Node(runtime, name).run()

    return main


def run(seed: int) -> str:
    links = LinkSettings(shape="heavy", loss=0.02, syn_loss=0.05, fragment=0.3, dead_on_accept=0.02)
    with World(seed, WorldSettings(links=links)) as world:
        for name in NODES:
            world.process(name, HOSTS[name]).start(_main(name))
        world.probes.add(CrashRule(label="disk.sync.inflight", kind="power", hit=9, restart_after_s=0.4))
        world.probes.add(DelayRule(label="round", probability=0.2, high_s=0.1))
        network = world.network
        network_faults = world.stream("nemesis")
        world.after(0.5, network.isolate, HOSTS["a"], label="isolate")
        world.after(1.0, network.heal, label="heal")
        world.after(1.2, network.break_connections, 0.5, label="break")
        world.after(1.4, network.blackhole_connections, 0.5, label="blackhole")
        world.after(1.5, world.process("b").pause_for, 0.2, label="pause")
        world.after(1.6, world.process("c").slow_down, 50 + network_faults.randrange(50), label="slow")
        world.after(1.8, world.process("b").crash_after, 7, "kill", 0.1, label="crash")
        world.after(1.9, world.process("a").drift_clock, 1.01, label="drift")
        world.run(3.0)
        world.check()
        return f"{world.digest()} {world.steps} {sorted(world.effects.items())}"


if __name__ == "__main__":
    print(run(int(sys.argv[1])))
