"""Nodes whose table store is damaged or gone when they start again: the fault, and the operator's command.

Invariant: one node at a time, and the next one only when that is filled again; the cluster has three replicas
of everything. So nothing acknowledged at QUORUM may be lost, whoever notices the damage, and when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep.node.recovering import recover_store, survey
from lockstep.runtime.ports import Disk, Runtime
from lockstep.runtime.real.tasks import NoProbes
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream
from lockstep.storage.store import STORE_DIRECTORY
from lockstep.storage.store_position import PositionFile
from lockstep.values import codec, limits
from lockstep.values.errors import CorruptFile, LockstepError
from lockstep.values.ids import NodeId

if TYPE_CHECKING:
    from lockstep.node.node import Node
    from lockstep.sim.cluster import SimCluster
    from lockstep.sim.faults.nemesis import Nemesis

#: What became of the files: all gone, also what was known of them, or a record of the log damaged.
HARMS = ("gone", "forgotten", "flipped")
#: Replicas of each range without which a lost store is not made up for by the others.
_FACTOR = 3
#: What must be seen sometimes where stores are lost.
FACTS = ("store lost", "store refused", "store recovered", "store filled")


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


def may_lose(cluster: SimCluster) -> bool:
    """Whether a store may be lost now: there is something to lose, of which the others have two more."""
    keyspaces = cluster.newest.schema.keyspaces
    enough = all(keyspace.replication.total >= _FACTOR for keyspace in keyspaces)
    return bool(keyspaces) and enough and not cluster.stores.unfilled


def lose_store(nemesis: Nemesis, draw: Stream) -> None:
    """A node ends, and finds its store damaged when it starts again."""
    cluster = nemesis.cluster
    harm = draw.choice(HARMS)
    candidates = [name for name in cluster.live() if cluster.ready(name)]
    if not candidates or not may_lose(cluster):
        return
    name = draw.choice(candidates)
    cluster.stores.lose(name, harm)
    nemesis.crash(name, POWER if draw.random() < 0.5 else KILL, 0.2 + draw.random())
