"""One simulated host with nothing on it but a metadata state, and logs to feed it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.snapshot_entries import KINDS as SNAPSHOT_KINDS
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.transformations import KINDS, Initialize, SetExtension
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.metadata_store import Retention
from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.disk import DiskPort, SimDisk
from lockstep.sim.runtime.world import World, WorldSettings
from lockstep.values.errors import LockstepError
from tests.metadata.histories import History, founder

REGISTRY = Registry(KINDS, SNAPSHOT_KINDS)


def history(epochs: int, every: int = 5, value_bytes: int = 20) -> History:
    """Epochs divisible by `every` are snapshots."""
    made = History(REGISTRY)
    made.submit(Initialize("id", "name", (founder(1, (0,)),)))
    while made.now.epoch < epochs:
        epoch = made.now.epoch + 1
        if epoch % every == 0:
            made.submit(TakeSnapshot("test", made.now.service.snapshot_epoch))
        else:
            made.submit(SetExtension(f"name-{epoch % 7}", epoch.to_bytes(value_bytes, "big")))
    return made


LONG = history(43)
KEEPS_LITTLE = Retention(entries=5, snapshots=2)
Work = Callable[[MetadataState], Coroutine[Any, Any, Any]]


class Place:
    """One simulated host with nothing on it but a metadata state."""

    def __init__(self, seed: int = 1, retention: Retention = KEEPS_LITTLE) -> None:
        self.world = World(seed, WorldSettings())
        self.retention = retention
        self.state: MetadataState
        self.broken: list[LockstepError] = []
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.archive: SimDisk | None = None
        self.registry = REGISTRY
        self.failed: LockstepError | None = None
        self.process = self.world.process("n1", "127.0.0.1")

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *failure: object) -> None:
        self.world.close()

    @property
    def disk(self) -> SimDisk:
        return self.process.disk

    def start(self, work: Work | None = None) -> None:
        async def main(runtime: Runtime) -> None:
            if self.archive is not None:
                loop = self.process.loop
                assert loop is not None
                port = DiskPort(self.archive, loop, runtime.probes)  # type: ignore[arg-type]
                runtime = msgspec.structs.replace(runtime, archive=port)
            state = MetadataState(
                runtime,
                self.registry,
                self.broken.append,
                lambda event, **facts: self.said.append((event, facts)),
                self.retention,
            )
            try:
                await state.store.settle()
                state.load()
            except LockstepError as error:
                self.failed = error
                return
            self.state = state
            state.start()
            if work is not None:
                await work(state)
            await asyncio.Event().wait()

        self.failed = None
        self.process.start(main)

    def run(self, work: Work | None = None, limit_s: float = 5.0) -> None:
        """Start (again), work, and come to rest."""
        self.start(work)
        self.world.run_for(limit_s)
        self.world.check()

    def restart(self, kind: str = "power") -> None:
        self.process.crash(kind)
        self.run()

    def log(self, event: str) -> list[dict[str, Any]]:
        return [facts for what, facts in self.said if what == event]


def feeding(entries: Sequence[LogEntry], group: int = 1) -> Work:
    async def feed(state: MetadataState) -> None:
        rest = [entry for entry in entries if entry.epoch > state.epoch]
        for at in range(0, len(rest), group):
            state.offer(rest[at : at + group])
            await state.wait_for(rest[min(at + group, len(rest)) - 1].epoch)

    return feed


def same(state: MetadataState, made: History, epoch: int) -> None:
    assert state.epoch == epoch
    assert state.current.hash == made.values[epoch].hash
    assert state_digest(state.current) == state_digest(made.values[epoch])
    assert [e.hash for e in state.entries] == [e.hash for e in made.entries[state.first_epoch - 1 : epoch]]


def damage(disk: SimDisk, path: str) -> None:
    file = disk.file(path)
    file.durable[len(file.durable) // 2] ^= 1
    file.cache[:] = file.durable
