"""A cluster of real nodes in a simulated world, small enough to be struck at named places."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.voter_choice import choose_voters
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.configuration import Configuration, parse
from lockstep.node.log.raft_driver import USUAL
from lockstep.node.node import Node
from lockstep.node.processors.kinds import Factory
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.log import LogMonitor
from lockstep.sim.runtime.process import Main, Process
from lockstep.sim.runtime.world import World, WorldSettings
from lockstep.storage.model import open_model_store
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import CannotApply, LockstepError, NodeRestarting
from lockstep.values.ids import NodeId
from lockstep.values.memo import memo


def keyspace(name: str, factor: int = 3) -> ChangeSchema:
    """A change that is accepted once."""
    replication = (("class", "SimpleStrategy"), ("replication_factor", str(factor)))
    return ChangeSchema(CreateKeyspace(name, replication))


def table(name: str) -> ChangeSchema:
    columns = (NewColumn("p", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("v", "int"))
    return ChangeSchema(CreateTable(name, "t", "00000000-0000-4000-8000-000000000001", columns))


def decommission(node: int) -> PrepareOperation:
    return PrepareOperation(Decommission(NodeId(node)))


def leave(node: int) -> EnqueueRequest:
    """As an operator asks for a decommission: a vote is handed over first."""
    return EnqueueRequest(Decommission(NodeId(node)), actor="operator")


class Town:
    """`ended[name]` is why a node's last incarnation ended; `said` is what all nodes logged."""

    def __init__(self, seed: int = 1, founders: int = 3) -> None:
        self.world = World(seed, WorldSettings())
        self.log = LogMonitor(lambda before, after, label: None)
        self.world.monitors.append(self.log)
        self.founders = tuple(f"127.0.0.{number}" for number in range(1, founders + 1))
        self.nodes: dict[str, Node] = {}
        self.ended: dict[str, LockstepError] = {}
        self.said: list[tuple[str, str, dict[str, Any]]] = []
        #: Called with each new node before it starts.
        self.prepare: Callable[[str, Node], None] = lambda name, node: None
        #: Called with each new node that has read its disk.
        self.loaded: Callable[[str, Node], None] = lambda name, node: None
        self.bounds = USUAL
        #: A node that can apply no more waits to be repaired, as its process does.
        self.keeps_broken = False
        #: Overrides of a node's configuration text: sections' keys, as `[section]` -> lines.
        self.cluster_lines: dict[str, str] = {}
        #: Kinds of processors beside the built-in ones.
        self.processors: dict[str, Factory] = {}
        #: Lines of a node's section [placement].
        self.placement: dict[str, str] = {}
        #: More lines of a node's configuration: whole sections.
        self.extra_lines: dict[str, str] = {}

    def __enter__(self) -> Town:
        return self

    def __exit__(self, *failure: object) -> None:
        self.world.close()

    # -- nodes

    def process(self, number: int) -> Process:
        """The process of a node; one that a test has put elsewhere stays there."""
        known = self.world.processes.get(f"n{number}")
        return known if known is not None else self.world.process(f"n{number}", f"127.0.0.{number}")

    def configuration(self, name: str) -> Configuration:
        host = self.world.processes[name].host
        quoted = ", ".join(f'"{founder}"' for founder in self.founders)
        lines = self.cluster_lines.get(name)
        if lines is None:
            lines = f"founders=[{quoted}]" if host in self.founders else f"seeds=[{quoted}]"
        placement = self.placement.get(name, "num_tokens=2")
        return parse(
            f'[network]\naddress="{host}"\n[cluster]\n{lines}\n[placement]\n{placement}\n'
            "[timeouts]\nmetadata_ms=5000\n" + self.extra_lines.get(name, "")
        )

    def main(self, name: str) -> Main:
        async def run(runtime: Runtime) -> None:
            node = Node(
                runtime,
                self.configuration(name),
                lambda own: open_model_store(own.disk, "store"),
                lambda event, **facts: self.said.append((name, event, facts)),
                self.processors,
                self.bounds,
            )
            self.prepare(name, node)
            self.nodes[name] = node
            while isinstance(ended := await self._live(name, node), NodeRestarting):
                await node.stop()
                self.log.begins_anew(self.world.processes[name].label)
            self.ended[name] = ended
            await node.stop()

        return run

    async def _live(self, name: str, node: Node) -> LockstepError:
        """One life of a node; why it ended."""
        try:
            await node.load()
            self.loaded(name, node)
            await node.start()
            assert node.broken is not None
            ended = await node.broken
            if isinstance(ended, CannotApply) and self.keeps_broken:
                self.ended[name] = ended
                await node.again.wait()
                return NodeRestarting("a repair of its metadata was decided")
            return ended
        except LockstepError as error:
            return error

    def start(self, *numbers: int) -> None:
        for number in numbers:
            process = self.process(number)
            self.ended.pop(process.name, None)
            self.nodes.pop(process.name, None)
            process.start(self.main(process.name))

    def ready(self, *numbers: int) -> bool:
        return all(
            (node := self.nodes.get(f"n{number}")) is not None and self.process(number).alive and node.ready
            for number in numbers
        )

    def found(self) -> None:
        """Start all founders and wait until they serve and vote."""
        numbers = range(1, len(self.founders) + 1)
        self.start(*numbers)
        self.until(lambda: self.ready(*numbers) and self.voters_settled and self.management_settled)
        self.agreed(*numbers)
        # What was being sent at this very moment is on its way before anything is cut.
        self.wait(0.01)

    def node(self, number: int) -> Node:
        return self.nodes[f"n{number}"]

    def leader(self) -> int:
        return next(int(name[1:]) for name, node in self.nodes.items() if node.ready and node.log.is_leader)

    @property
    def voters_settled(self) -> bool:
        """Whether those vote who should, by the metadata and by Raft."""
        cluster = self.newest
        if cluster.service.change is not None:
            return False
        ready = ((name, node) for name, node in self.nodes.items() if node.ready and node.log.is_leader)
        leader = next((node for name, node in ready if self.process(int(name[1:])).alive), None)
        if leader is None or leader.log.driver is None:
            return False
        configuration = leader.log.driver.raft.configuration
        if configuration.voters != cluster.voters or configuration.learners:
            return False
        # It is asked at each instant, mostly of the same value.
        return memo(cluster, "_wanted_voters", choose_voters) == cluster.voters

    @property
    def management_settled(self) -> bool:
        """Whether the management group has followed the voters."""
        for node in self.nodes.values():
            group = node.membership.management.group if node.ready else None
            if group is not None and group.is_leader:
                configuration, voters = group.driver.raft.configuration, self.newest.voters
                return (
                    not configuration.learners
                    and configuration.voters == tuple(voters) == group.state.voters.voters
                )
        return False

    @property
    def newest(self) -> ClusterMetadata:
        """The newest value that any node applied."""
        return self.log.values[-1]

    def state_of(self, node_id: int) -> NodeState:
        return self.newest.directory.by_id[NodeId(node_id)].state

    def logged(self, event: str, name: str | None = None) -> list[dict[str, Any]]:
        return [facts for who, what, facts in self.said if what == event and name in (None, who)]

    # -- time

    def until(self, done: Callable[[], bool], limit_s: float = 60.0) -> None:
        self.world.run_for(limit_s, done=done)
        self.world.check()
        assert done(), f"not within {limit_s} s; ended: {self.ended}; said last: {self.said[-5:]}"

    def wait(self, seconds: float) -> None:
        self.world.run_for(seconds)
        self.world.check()

    def begin(self, number: int, work: Callable[[Node], Coroutine[Any, Any, Any]]) -> Outcome:
        """Run `work(node)` on a node; its end is noted, also when the node dies under it."""
        outcome = Outcome(self.world)
        node = self.node(number)

        async def run(_runtime: Runtime) -> None:
            try:
                outcome.value = await work(node)
            except LockstepError as error:
                outcome.error = error
            outcome.done_s = self.world.now_s()

        self.process(number).submit(run)
        return outcome

    def submit(self, number: int, transformation: Any, **options: Any) -> Outcome:
        return self.begin(number, lambda node: node.log.submit(transformation, **options))

    def finish(self, outcome: Outcome) -> Outcome:
        self.until(lambda: outcome.done)
        return outcome

    def agreed(self, *numbers: int) -> None:
        """Wait until these nodes hold the newest epoch."""
        self.until(lambda: all(self.node(n).log.state.epoch == self.newest.epoch for n in numbers))

    def ids(self) -> list[bytes]:
        """Entry ids in the log, by epoch."""
        longest = max(self.nodes.values(), key=lambda node: node.log.state.epoch)
        return [entry.entry_id for entry in longest.log.state.entries]


class Outcome:
    """How something that was begun on a node ended; neither value nor error while it has not."""

    def __init__(self, world: World) -> None:
        self.begun_s = world.now_s()
        self.done_s = 0.0
        self.value: Any = None
        self.error: LockstepError | None = None

    @property
    def done(self) -> bool:
        return self.done_s > 0
