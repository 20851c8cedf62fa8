"""A simulated cluster: nodes on hosts of their own, restarted when they end, with settings drawn by seed.

Invariant: a node process runs the product's Node on its own disk; whatever happens to it, `heal` brings
it back on the same disk. A node that left is parked with an empty disk, and joins as a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import NodeState
from lockstep.node.configuration import (
    ClusterSection,
    Configuration,
    HintsSection,
    MetadataSection,
    NetworkSection,
    NodeSection,
    PlacementSection,
    PurgeSection,
    RaftSection,
    StreamingSection,
    TabletsSection,
    TestingSection,
    TimeoutsSection,
)
from lockstep.node.log.raft_driver import GroupBounds
from lockstep.node.node import Node
from lockstep.node.recovery.store import recover_store, survey
from lockstep.runtime.ports import Disk, Runtime
from lockstep.runtime.real.tasks import NoProbes
from lockstep.server.cql.cql_server import serve
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import open_door
from lockstep.sim.load.history import History
from lockstep.sim.runtime.disk import DiskSettings
from lockstep.sim.runtime.process import Main, Process
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.runtime.world import World
from lockstep.storage.model import open_model_store
from lockstep.storage.store import STORE_DIRECTORY, Store
from lockstep.storage.store_position import PositionFile
from lockstep.values import codec, limits
from lockstep.values.errors import CorruptFile, LockstepError
from lockstep.values.ids import NodeId

#: A node that ended by itself is started again after this long, as a service manager would.
_RESTART_S = (0.2, 2.0)
#: What no node may ever say: of a peer that served entries with a hole, or damaged ones; of a defect of its
#: own that a client got as a server error.
_NEVER_SAID = {
    "metadata.fetch_gap": ("LOG-1", "what a peer served has a hole"),
    "metadata.fetch_damaged": ("LOG-1", "what a peer served is damaged"),
    "cql.fault": ("FAULT", "a client was answered with a defect"),
}


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn once for a cluster. Times in the unit of their name."""

    founders: int = 3
    spares: int = 2
    factor: int = 3
    strategy: str = "SimpleStrategy"
    tokens: int = 2
    tick_ms: int = 50
    election_ticks: int = 10
    heartbeat_ticks: int = 2
    write_ms: int = 2000
    read_ms: int = 2000
    store_log_bytes: int = 1 << 22
    #: The slowest sync of a healthy disk.
    sync_ms: float = 4.0
    #: Entries of the management group's log between two snapshots.
    management_entries: int = 256
    #: Probability that an internode frame is delivered a second time, later.
    duplicate: float = 0.0
    #: Data centres; nodes are in them by turns, and `factor` holds in each.
    dcs: int = 1
    #: Whether writes are kept for replicas that miss them.
    hints: bool = True
    #: How many tablets each table begins with; 0: the keyspace lies on the ring.
    tablets: int = 0
    #: Whether replicas know by ids what they hold.
    tracked: bool = False
    #: How many of a data centre's replicas are witnesses.
    witnesses: int = 0
    #: After how long a silent replica of tracked tables is away; 0 leaves it to the product.
    cohort_after_s: float = 0.0
    #: How nodes agree on the ring without a log; empty: there is a log.
    ring_mode: str = ""


def draw_shape(
    draw: Stream,
    *,
    founders: tuple[int, ...] = (1, 3, 3, 3),
    spares: int = 2,
    sync_ms: tuple[float, ...] = (4.0,),
    factors: tuple[int, ...] = (3, 3, 3, 2),
    dcs: int = 1,
) -> Shape:
    count = draw.choice(founders)
    strategies = ("SimpleStrategy", "NetworkTopologyStrategy")
    return Shape(
        founders=count,
        spares=spares,
        factor=min(count // dcs, count if count < 3 else draw.choice(factors)),
        strategy=draw.choice(strategies[-1:] if dcs > 1 else strategies),
        tokens=draw.choice((1, 2, 4)),
        tick_ms=draw.choice((20, 50, 50, 100)),
        election_ticks=draw.choice((5, 10, 15)),
        heartbeat_ticks=draw.choice((1, 2, 3)),
        write_ms=draw.choice((500, 2000)),
        read_ms=draw.choice((500, 2000)),
        sync_ms=draw.choice(sync_ms),
        store_log_bytes=draw.choice((2000, 20_000, 1 << 22)),
        duplicate=draw.choice((0.0, 0.0, 0.02)),
        management_entries=draw.choice((3, 8, 256)),
        dcs=dcs,
    )


class LostStores:
    """Which stores were lost, until their nodes are filled again."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        #: What is to happen to a node's files when it starts next; those that were refused; not yet filled.
        self._harms: dict[str, str] = {}
        self._refused: dict[str, None] = {}
        #: By name, the node as it was before the loss.
        self._lacking: dict[str, Node | None] = {}

    @property
    def unfilled(self) -> list[str]:
        """Names of nodes that lost their store and have not everything again."""
        for name in list(self._lacking):
            node = self._cluster.nodes.get(name)
            if name in self._cluster.parked:
                del self._lacking[name]
            elif node is None or node is self._lacking[name] or not self._cluster.ready(name):
                continue
            elif not node.data.lacking.current:
                del self._lacking[name]
                self._cluster.fact("store filled")
        return list(self._lacking)

    def unfilled_ids(self) -> tuple[NodeId, ...]:
        return tuple(NodeId(self._cluster.node_id(name)) for name in self.unfilled)

    def lose(self, name: str, harm: str) -> None:
        """The node's store is lost while it is down; it must be crashed now."""
        self._harms[name] = harm
        self._lacking[name] = self._cluster.nodes.get(name)

    async def before_start(self, name: str, runtime: Runtime) -> None:
        """Do what was to happen to the files, and then, when a start was refused, what the refusal says."""
        harm = self._harms.pop(name, "")
        if harm:
            await _harmed(runtime.disk, harm)
            self._cluster.world.count("fault.lose_store")
            self._cluster.fact("store lost")
        elif name in self._refused:
            del self._refused[name]
            # The command's own process, of which monitors hear nothing.
            found = survey(msgspec.structs.replace(runtime, probes=NoProbes()))
            await recover_store(runtime, found, self._cluster.open_store, accept_data_loss=bool(found.alone))
            self._cluster.fact("store recovered")

    def start_refused(self, name: str, error: LockstepError) -> None:
        if isinstance(error, CorruptFile) and "lockstep node recover" in error.hint:
            self._cluster.fact("store refused")
            self._refused[name] = None


async def _harmed(disk: Disk, harm: str) -> None:
    paths = [f"{STORE_DIRECTORY}/{name}" for name in disk.names(STORE_DIRECTORY)]
    if harm == "flipped":
        for path in paths:
            content = disk.read(path)
            records = list(
                codec.scan_records(path, content, record_bytes_max=limits.MODEL_STORE_RECORD_BYTES_MAX)
            )
            if len(records) > 1:
                middle = records[0][0] // 2
                disk.truncate(path, 0)
                disk.append(path, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
                await disk.sync(path)
                return
    for path in paths:
        disk.remove(path)
    await disk.sync_names(STORE_DIRECTORY)
    if harm == "forgotten":
        await PositionFile(disk, STORE_DIRECTORY).remove()


class SimCluster:
    """`cluster` is the newest value that any node has applied, as the monitors saw it."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.world = world
        self.shape = shape
        self.history = History()
        self.nodes: dict[str, Node] = {}
        self.parked: dict[str, None] = {}
        #: Whether deletions may be gone from disks, with all that they hid.
        self.purges = False
        #: Nodes that left once: also a founder then joins like any other.
        self._rejoining: dict[str, None] = {}
        #: Which dead node a new one of this name is to replace.
        self.replacing: dict[str, int] = {}
        #: Ids of nodes that left and whose disks are gone.
        self.retired: dict[int, None] = {}
        self._serving: dict[str, Node] = {}
        self.stores = LostStores(self)
        self.newest: ClusterMetadata = empty_cluster()
        #: (term, node name) of the last leader that was seen to be elected.
        self.leader: tuple[int, str] = (0, "")
        #: Data centres that were lost, and when (ns), until they serve again.
        self.lost: dict[str, int] = {}
        #: Until when no node takes the hints of one that leaves.
        self.heirless_until_ns = 0
        #: Until when hints and read repairs reach their replicas late.
        self.late_until_ns = 0
        self.facts: dict[str, int] = {}
        self.story: list[tuple[int, str, str]] | None = [] if world.settings.keep_trace else None
        #: Told (name, id) of each node that has left, before it is stopped.
        self.on_leave: Callable[[str, NodeId], None] = lambda name, node: None
        #: Told the name of each node that is parked.
        self.on_park: Callable[[str], None] = lambda name: None
        #: Told each node before clients reach it.
        self.on_serve: Callable[[Node], None] = lambda node: None
        #: Told (name, node) of each node that has read its disk.
        self.on_load: Callable[[str, Node], None] = lambda name, node: None
        self._draw = world.stream("cluster")
        self._duplicates = world.stream("duplicates")
        #: With one entry at a time followers stop at every point between a leader's entries.
        self.append_bytes_max = GroupBounds().append_bytes_max
        names = [f"n{number}" for number in range(1, shape.founders + shape.spares + 1)]
        self.processes: dict[str, Process] = {
            name: world.process(name, f"127.0.0.{name[1:]}") for name in names
        }
        for name in names[shape.founders :]:
            self.parked[name] = None
        for process in self.processes.values():
            process.expected_errors = (LockstepError,)
            process.disk.settings = self.disk_settings()

    # ---- what is known

    def fact(self, name: str) -> None:
        """Something that must happen sometimes did."""
        self.facts[name] = self.facts.get(name, 0) + 1

    def tell(self, who: str, text: str) -> None:
        """Add to the readable story of the run."""
        if self.story is not None:
            self.story.append((self.world.now_ns, who, text))

    def hosts(self) -> list[str]:
        """Hosts of all nodes that are not parked."""
        return [process.host for name, process in self.processes.items() if name not in self.parked]

    def dc_of(self, name: str) -> str:
        """The data centre in which a node stands, whoever it is."""
        return f"dc{(int(name[1:]) - 1) % self.shape.dcs + 1}"

    def dcs(self) -> list[str]:
        """All data centres."""
        return [f"dc{number}" for number in range(1, self.shape.dcs + 1)]

    def scope_of(self, name: str) -> str:
        """What events of a client of the node are told to be in: its data centre where there are several."""
        return self.dc_of(name) if self.shape.dcs > 1 else ""

    def live(self) -> list[str]:
        """Names of nodes whose process runs."""
        return [name for name, process in self.processes.items() if process.alive]

    def in_service(self) -> list[str]:
        """Names of nodes that are not parked, whether they run or not."""
        return [name for name in self.processes if name not in self.parked]

    def ready(self, name: str) -> bool:
        """Whether the node serves clients, as a normal member."""
        node = self._serving.get(name)
        if node is None or node is not self.nodes.get(name) or not node.ready:
            return False
        info = node.context.info
        return self.processes[name].alive and info is not None and info.state is NodeState.NORMAL

    def node_id(self, name: str) -> int:
        """0 for a node that is in no directory."""
        host = self.processes[name].host
        found = [
            node.id
            for node in self.newest.directory.nodes
            if node.address == host and node.state != NodeState.LEFT and node.id not in self.retired
        ]
        return found[0] if found else 0

    def name_of(self, node_id: int) -> str:
        """The process that is, or last was, this node."""
        info = self.newest.directory.by_id.get(node_id)  # type: ignore[call-overload]
        return "" if info is None else f"n{info.address.rpartition('.')[2]}"

    # ---- life

    def disk_settings(self) -> DiskSettings:
        """A disk without faults."""
        return DiskSettings(sync_high_s=self.shape.sync_ms / 1000)

    def start(self) -> None:
        """Start the founders."""
        for name in self.in_service():
            self.start_node(name)

    def start_node(self, name: str) -> None:
        self.parked.pop(name, None)
        self.processes[name].start(self._main(name))

    def park(self, name: str, node_id: int) -> None:
        """Take a node that left out of service: end it and empty its disk."""
        process = self.processes[name]
        self.retired[node_id] = None
        self.parked[name] = None
        self._rejoining[name] = None
        self.replacing.pop(name, None)
        process.crash()
        process.wipe_disk()
        self.nodes.pop(name, None)
        self.on_park(name)
        self.tell(name, "is parked")

    def restart_later(self, name: str) -> None:
        """After a while, as a service manager does."""
        low, high = _RESTART_S
        delay_s = low + (high - low) * self._draw.random()
        self.world.after(delay_s, self._restart, name, label=f"restart {name}")

    def _restart(self, name: str) -> None:
        if name not in self.parked:
            self.processes[name].start(self._main(name))

    def configuration(self, name: str) -> Configuration:
        shape = self.shape
        founders = tuple(f"127.0.0.{number}:7000" for number in range(1, shape.founders + 1))
        host = self.processes[name].host
        founding = f"{host}:7000" in founders and name not in self._rejoining
        seeds = tuple(f"{process.host}:7000" for process in self.processes.values() if process.host != host)
        return Configuration(
            node=NodeSection(name=name, data_directory="."),
            cluster=ClusterSection(
                founders=founders if founding else (),
                seeds=() if founding else seeds,
                replaces=self.replacing.get(name, 0),
                membership="ring" if shape.ring_mode else "log",
                ring_mode="unanimous" if shape.ring_mode == "unanimous" else "quorum",
            ),
            network=NetworkSection(address=host),
            placement=PlacementSection(dc=self.dc_of(name), num_tokens=shape.tokens),
            timeouts=TimeoutsSection(write_ms=shape.write_ms, read_ms=shape.read_ms),
            raft=RaftSection(
                tick_ms=shape.tick_ms,
                election_ticks=shape.election_ticks,
                heartbeat_ticks=shape.heartbeat_ticks,
            ),
            # Small, so that every run writes snapshots, drops entries and catches up over gaps.
            metadata=MetadataSection(snapshot_every_epochs=12, retain_entries=16),
            # Several small files a stream, some of them held back.
            streaming=StreamingSection(throughput_bytes_s=64 * 1024, file_bytes=512),
            purge=PurgeSection(interval_ms=1000),
            hints=HintsSection(hinted_handoff_enabled=shape.hints),
            tablets=TabletsSection(load_refresh_ms=1000),
            testing=TestingSection(faults=True),
        )

    def _main(self, name: str) -> Main:
        async def main(runtime: Runtime) -> None:
            if name in self.parked:
                return
            try:
                await self.stores.before_start(name, runtime)
            except LockstepError as error:
                self._refused(name, error)
                return
            bounds = GroupBounds(self.append_bytes_max, self.shape.management_entries)
            node = Node(runtime, self.configuration(name), self.open_store, self._log(name), bounds=bounds)
            if self.shape.duplicate:
                node.context.internode.faults.duplicates = self._duplicate
            self.nodes[name] = node
            try:
                await node.load()
                if self.shape.cohort_after_s:
                    node.data.reconciler.cohort_after_s = self.shape.cohort_after_s
                self.on_load(name, node)
                await node.start()
            except LockstepError as error:
                self._refused(name, error)
                return
            if node.broken is not None and node.broken.done():
                self._refused(name, node.broken.result())
                await node.stop()
                return
            # Partitions of a run are small: what replicas tell of is to be more than what they give.
            node.data.outlined.few_rows = 2
            if int(name[1:]) % 2:
                node.data.coordinator.ask_digests_over(1)
            self.on_serve(node)
            await open_door(node, runtime)
            await serve(node.services, runtime)
            self._serving[name] = node
            self.tell(name, f"is ready at epoch {node.log.state.epoch}")
            assert node.broken is not None
            self.tell(name, f"is broken: {await node.broken}")
            self.restart_later(name)

        return main

    def _refused(self, name: str, error: LockstepError) -> None:
        self.tell(name, f"cannot start: {error}")
        self.stores.start_refused(name, error)
        self.restart_later(name)

    async def open_store(self, runtime: Runtime) -> Store:
        return await open_model_store(runtime.disk, STORE_DIRECTORY, log_bytes_max=self.shape.store_log_bytes)

    def _duplicate(self) -> bool:
        twice = self._duplicates.random() < self.shape.duplicate
        if twice:
            self.world.count("net.duplicated")
        return twice

    def _log(self, name: str) -> Any:
        def log(event: str, **facts: Any) -> None:
            text = " ".join(f"{key}={value}" for key, value in facts.items())
            self.world.note(name, "log", event, text)
            self.fact(f"log.{event}")
            if event == "metadata.log_dropped" and self.node_id(name) in self.newest.voters:
                self.fact("log dropped at a voter")
            if event in _NEVER_SAID:
                invariant, what = _NEVER_SAID[event]
                found = Violation(invariant, f"{what}: {text}")
                self.world.fail("monitor", name, str(found), found)
            self.tell(name, f"{event} {text}")

        return log
