"""Simulated nodes that run statements.

Invariant: a statement begins well within a second of the nodes' clocks, so that what expires when is known.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from lockstep.node.configuration import Configuration, FunctionsSection
from lockstep.runtime.ports import Runtime
from lockstep.sim.cluster import Shape, SimCluster
from lockstep.sim.fuzz.binding import Said
from lockstep.sim.fuzz.client import Asking, Told
from lockstep.sim.fuzz.selecting import FUNCTIONS
from lockstep.sim.fuzz.tables import KEYSPACE
from lockstep.sim.runtime.world import World
from lockstep.values.errors import LockstepError

_START_S: Final = 60.0
_REQUEST_S: Final = 30.0
_REST_S: Final = 2.0
#: How long nodes need when one of them was away: hints arrive, the batch log is replayed.
_LONG_REST_S: Final = 15.0
#: A statement begins in the first part of a second.
_EARLY_US: Final = 500_000
_SECOND_US: Final = 1_000_000
#: Errors that leave open what happened; -1 is no answer at all.
UNKNOWN: Final = (0x1003, 0x1100, 0x1200, 0x1300, 0x1500, 0x1700, -1)
#: A node reported a defect of its own, and cannot be used any more.
BROKEN: Final = -2
#: Refused before anything was done.
NOT_DONE: Final = (0x1000, 0x1001)


class _Cluster(SimCluster):
    def configuration(self, name: str) -> Configuration:
        enabled = FunctionsSection(user_defined_functions_enabled=True)
        return msgspec.structs.replace(super().configuration(name), functions=enabled)


class Door:
    """`nodes` simulated nodes, all of them replicas of everything."""

    def __init__(self, seed: int, nodes: int = 1) -> None:
        self.world = World(seed)
        self.cluster = _Cluster(self.world, Shape(founders=nodes, spares=0, tokens=4))
        self.names = list(self.cluster.processes)
        self.client = self.world.process("client")
        self._asking = Asking(lambda name: self.cluster.processes[name].host)
        self._struck = ""
        self.client.start(_wait_for_ever)
        self.cluster.start()
        self.until(lambda: all(self.cluster.ready(name) for name in self.names), _START_S)
        for statement in (
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = "
            f"{{'class': 'SimpleStrategy', 'replication_factor': {nodes}}}",
            *FUNCTIONS,
        ):
            told = self.run(statement)
            assert not told.error, told.message

    def close(self) -> None:
        self.world.close()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # ---- time

    def now_s(self) -> int:
        """The nodes' second."""
        return self._wall_us() // _SECOND_US

    def settle(self) -> None:
        """Wait for the beginning of a second unless this one is young."""
        part_us = self._wall_us() % _SECOND_US
        if part_us > _EARLY_US:
            self.world.run_for((_SECOND_US - part_us) / _SECOND_US + 0.001)

    def rest(self) -> None:
        """Let the nodes finish what they do by themselves."""
        self.world.run_for(_REST_S if len(self.names) == 1 else _LONG_REST_S)

    def wait(self, seconds: int) -> None:
        """Move the clocks of all nodes."""
        for process in self.world.processes.values():
            process.jump_wall(seconds)

    # ---- faults

    def strike(self, what: str, node: int) -> None:
        """One node at most is struck, and never the first, which coordinates."""
        for name in self.names:
            self.cluster.processes[name].resume()
            if not self.cluster.processes[name].alive:
                self.cluster.start_node(name)
        self.world.network.heal()
        self.until(lambda: all(self.cluster.ready(name) for name in self.names), _START_S)
        self._struck = "" if what == "mend" else self.names[node - 1]
        victim = self.cluster.processes[self.names[node - 1]]
        if what == "kill":
            victim.crash()
        elif what == "pause":
            victim.pause()
        elif what == "cut":
            others = [self.cluster.processes[name].host for name in self.names if name != victim.name]
            self.world.network.partition([victim.host], others)

    def _wall_us(self) -> int:
        return self.client.clock.wall_us()

    # ---- statements

    def run(self, text: str, page_rows: int = 0, node: str = "") -> Told:
        return self.ask(Said(text), page_rows, node)

    def ask(self, said: Said, page_rows: int = 0, node: str = "") -> Told:
        able = [node] if node else [name for name in self.names if name != self._struck]
        task = self.client.submit(lambda runtime: self._asking.told(runtime, said, page_rows, able))
        try:
            self.until(task.done, _REQUEST_S)
        except LockstepError as error:
            return Told(BROKEN, str(error))
        if not task.done():
            task.cancel()
            self.world.run_for(1.0)
            return Told(-1, "no answer")
        told: Told = task.result()
        return told

    def until(self, done: Any, limit_s: float) -> None:
        self.world.run_for(limit_s, done)
        if self.world.errors:
            first = self.world.errors[0]
            raise LockstepError(f"the simulated cluster failed: {first}") from first.error


async def _wait_for_ever(runtime: Runtime) -> None:
    await asyncio.Event().wait()
