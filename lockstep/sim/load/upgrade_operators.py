"""Operators who take a cluster from the ring to a log while clients, newcomers and schema changes go on, who
give it up again, ask twice at once, and ignore who is dead.

Invariant: at the end of a run the cluster has a log, whatever was given up before.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.ringed import RINGED, UpgradeState
from lockstep.metadata.groups.upgrade_entries import AbortUpgrade, BeginUpgrade
from lockstep.metadata.log.registry import EntryKind
from lockstep.runtime.ports import Runtime
from lockstep.sim.load.operators import BusyOperators
from lockstep.sim.runtime.streams import Stream
from lockstep.values.ids import NodeId

#: Of the upgrades under way that an operator sees, this many are given up.
_GIVEN_UP = 0.3
#: Of those asked for, this many are asked for at two nodes at once.
_TWICE = 0.3
#: Of those asked for while a node is dead, this many ignore it.
_IGNORING = 0.7
_LOOK_S = 0.3


class UpgradeOperators:
    """`pause_s`: mean pause before an upgrade is asked for."""

    def __init__(self, operators: BusyOperators, pause_s: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_s = pause_s
        self._draw: Stream = operators.cluster.world.stream("upgrade operators")

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "upgrade operators")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            if self._cluster.newest.upgrade_state is UpgradeState.DONE:
                return
            await self._begin(runtime)
            await self._watch(runtime)

    async def _begin(self, runtime: Runtime) -> None:
        newest = self._cluster.newest
        here = [node for node in newest.directory.nodes if node.state is NodeState.NORMAL]
        live = self._cluster.live()
        dead = [node.id for node in here if self._cluster.name_of(node.id) not in live]
        ignored: tuple[NodeId, ...] = ()
        if dead and self._draw.random() < _IGNORING:
            ignored = (self._draw.choice(dead),)
        living = [node.id for node in here if node.id not in dead] or [node.id for node in here]
        wanted = [BeginUpgrade(self._draw.choice(living), "an operator", ignored)]
        if self._draw.random() < _TWICE:
            wanted.append(BeginUpgrade(self._draw.choice(living), "another operator"))
        await asyncio.gather(
            *(self._operators.submit(runtime, EntryKind.BEGIN_UPGRADE, one) for one in wanted)
        )

    async def _watch(self, runtime: Runtime) -> None:
        """Until it has ended; some are given up."""
        gives_up = self._draw.random() < _GIVEN_UP
        while not self._operators.stopped:
            running = self._cluster.newest.parts[RINGED].upgrading
            if running is None:
                return
            if gives_up:
                await self._operators.submit(
                    runtime, EntryKind.ABORT_UPGRADE, AbortUpgrade(running.begun_epoch, "an operator")
                )
                self._cluster.fact("upgrade given up")
                return
            await asyncio.sleep(_LOOK_S)

    async def end(self, runtime: Runtime) -> None:
        """Everybody is up again: the cluster gets its log."""
        while (state := self._cluster.newest.upgrade_state) is not UpgradeState.DONE:
            if state is UpgradeState.NOT_UPGRADED:
                present = self._cluster.newest.directory.nodes
                first = next(node.id for node in present if node.state is NodeState.NORMAL)
                await self._operators.submit(
                    runtime, EntryKind.BEGIN_UPGRADE, BeginUpgrade(first, "at the end")
                )
            await asyncio.sleep(_LOOK_S)
        self._cluster.fact("log built")
        await self._operators.include_all(runtime)
