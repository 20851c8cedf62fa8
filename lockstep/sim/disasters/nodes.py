"""The nodes of a run about disasters: the product's nodes with model stores, which begin anew in their
process when they are told to, as a server does.

Invariant: a node that was destroyed never starts again; any other one comes back on the disk that it left.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from lockstep.node.configuration import (
    ClusterSection,
    Configuration,
    MetadataSection,
    NetworkSection,
    NodeSection,
    PlacementSection,
    TimeoutsSection,
)
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.process import Main, Process
from lockstep.sim.runtime.world import World
from lockstep.storage.model import open_model_store
from lockstep.storage.store import STORE_DIRECTORY
from lockstep.values.errors import LockstepError, NodeRestarting

#: A node whose start failed, or that ended, is started again after so long.
_AGAIN_S = 1.0


class Doing:
    """How something that was begun on a node ended; neither value nor error while it has not."""

    def __init__(self) -> None:
        self.is_done = False
        self.value: Any = None
        self.error: LockstepError | None = None


class DisasterNodes:
    """`told(name, event, facts)` hears what nodes log."""

    def __init__(
        self, world: World, count: int, vanish_percent: int, told: Callable[[str, str, dict[str, Any]], None]
    ) -> None:
        self.world = world
        self.numbers = tuple(range(1, count + 1))
        self._vanish_percent = vanish_percent
        self._told = told
        self.nodes: dict[str, Node] = {}
        #: Whose disks are gone for good; names of those that are to stay down for now.
        self.destroyed: dict[int, None] = {}
        self.resting: dict[int, None] = {}
        for number in self.numbers:
            process = world.process(f"n{number}", f"127.0.0.{number}")
            process.expected_errors = (LockstepError,)

    def process(self, number: int) -> Process:
        return self.world.processes[f"n{number}"]

    def node(self, number: int) -> Node:
        return self.nodes[f"n{number}"]

    def ready(self, number: int) -> bool:
        """Whether the node serves."""
        node = self.nodes.get(f"n{number}")
        return node is not None and self.process(number).alive and node.ready

    def up(self) -> list[int]:
        return [number for number in self.numbers if self.ready(number)]

    def bound(self, number: int) -> str:
        """The cluster id that the node's directory belongs to."""
        return self.node(number).context.identity.value.cluster_id

    def start(self, number: int) -> None:
        if number not in self.destroyed and not self.process(number).alive:
            self.resting.pop(number, None)
            self.nodes.pop(f"n{number}", None)
            self.process(number).start(self._main(f"n{number}"))

    def stop(self, number: int, kind: str, *, destroyed: bool = False) -> None:
        """End it at once; with `destroyed` its disk is gone, too."""
        self.resting[number] = None
        self.process(number).crash(kind)
        if destroyed:
            self.destroyed[number] = None
            self.process(number).wipe_disk()

    def begin(self, number: int, work: Callable[[Node], Coroutine[Any, Any, Any]]) -> Doing:
        """Run `work(node)` there; its end is noted, unless the node dies under it."""
        doing, node = Doing(), self.node(number)

        async def run(_runtime: Runtime) -> None:
            try:
                doing.value = await work(node)
            except LockstepError as error:
                doing.error = error
            doing.is_done = True

        self.process(number).submit(run)
        return doing

    def _configuration(self, name: str) -> Configuration:
        founders = tuple(f"127.0.0.{number}:7000" for number in self.numbers)
        return Configuration(
            node=NodeSection(name=name, data_directory="."),
            cluster=ClusterSection(founders=founders),
            network=NetworkSection(address=self.process(int(name[1:])).host),
            placement=PlacementSection(num_tokens=1),
            timeouts=TimeoutsSection(metadata_ms=5000),
            metadata=MetadataSection(vanish_percent=self._vanish_percent),
        )

    def _main(self, name: str) -> Main:
        async def run(runtime: Runtime) -> None:
            node = Node(
                runtime,
                self._configuration(name),
                lambda own: open_model_store(own.disk, STORE_DIRECTORY),
                lambda event, **facts: self._told(name, event, facts),
            )
            self.nodes[name] = node
            while isinstance(ended := await _life(node), NodeRestarting):
                await node.stop()
                self._told(name, "node.begins_anew", {})
            self._told(name, "node.ended", {"error": str(ended)})
            await node.stop()
            number = int(name[1:])
            self.world.after(_AGAIN_S, self._again, number, label=f"restart {name}")

        return run

    def _again(self, number: int) -> None:
        if number not in self.resting:
            self.start(number)


async def _life(node: Node) -> LockstepError:
    """One life of a node; why it ended."""
    try:
        await node.load()
        await node.start()
    except LockstepError as error:
        return error
    assert node.broken is not None, "a node that started can break"
    return await node.broken
