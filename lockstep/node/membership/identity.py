"""Who this node is, kept in its data directory.

Invariant: the host id never changes; a cluster id, once written, changes by a repair of the groups alone,
between two lives of the node; the boot generation grows by one with each start and is durable before the node
creates its first mutation id.
"""

from __future__ import annotations

import msgspec

from lockstep.node.log.journal import Journal
from lockstep.node.stamps import STAMPS_PATH
from lockstep.runtime.ports import Disk, Runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store import STORE_DIRECTORY
from lockstep.storage.store_position import PositionFile, lost
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import ConfigurationError, CorruptFile

IDENTITY_PATH = "identity"
#: In an archive: an empty file that is called so and by the host id of the node whose log goes there.
ARCHIVE_OWNER_PREFIX = "owner-"
_GENERATION = b"boot-generation"


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """What is stored; cluster_id "" means the node belongs to no cluster yet. `log_epoch`: of the entry that
    built the log, once this node has begun its part of that; 0 where there was none."""

    host_id: str
    cluster_id: str
    generation: int
    log_epoch: int = 0


_DECODER = decoder(Identity)


def keep_generation(engine: StorageEngine, generation: int) -> None:
    """Have the store remember this start. CorruptFile when it remembers a later one: ids of mutations would
    be given twice."""
    kept = engine.local_fact(_GENERATION)
    known = int.from_bytes(kept, "big") if kept is not None else 0
    if known >= generation:
        raise CorruptFile(
            IDENTITY_PATH, 0, f"it says that this is start {generation}, and the store knows of start {known}"
        )
    # Durable together with the first write under it.
    engine.keep_local_fact(_GENERATION, generation.to_bytes(8, "big"))


class IdentityFile:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._journal = Journal(runtime.disk, IDENTITY_PATH)
        self.value = Identity("", "", 0)

    def load(self) -> Identity:
        """What is stored, without a start; the host id is "" when nothing is."""
        records = self._journal.load_as(_DECODER)
        return records[-1] if records else self.value

    async def boot(self) -> Identity:
        """Load or create the identity and count this start; durable on return."""
        last = self.load()
        if not last.host_id:
            self._refuse_others_data()
        host_id = last.host_id or self._runtime.random.uuid()
        await self._store(Identity(host_id, last.cluster_id, last.generation + 1, last.log_epoch))
        return self.value

    def _refuse_others_data(self) -> None:
        """CorruptFile: whose data this is cannot be known any more. Metadata alone is of no node: a dump was
        put there for a new one."""
        disk = self._runtime.disk
        for directory in ("raft", STORE_DIRECTORY):
            if disk.names(directory):
                why = f"it says nothing, and there is data of a node in {directory}"
                raise CorruptFile(IDENTITY_PATH, 0, why)
        if disk.exists(STAMPS_PATH):
            raise CorruptFile(IDENTITY_PATH, 0, f"it says nothing, and there is {STAMPS_PATH} of a node")

    async def adopt_cluster(self, cluster_id: str) -> None:
        """Bind the directory to a cluster; ConfigurationError when it belongs to another one."""
        if self.value.cluster_id == cluster_id:
            return
        if self.value.cluster_id:
            raise ConfigurationError(
                f"this data directory belongs to cluster {self.value.cluster_id}, not to {cluster_id}",
                hint="start the node with its own directory, or with an empty one to join as a new node",
            )
        await self._store(msgspec.structs.replace(self.value, cluster_id=cluster_id))

    async def move(self, cluster_id: str) -> None:
        """Bind the directory of a stopped node to the id that a repair has given its cluster."""
        last = self.load()
        assert last.cluster_id, "only a member's cluster is repaired"
        await self._store(msgspec.structs.replace(last, cluster_id=cluster_id))

    async def begin_log(self, epoch: int) -> None:
        """This node has begun its part of the log that the entry of `epoch` built; never again after this."""
        assert epoch > self.value.log_epoch, "a log is begun once"
        await self._store(msgspec.structs.replace(self.value, log_epoch=epoch))

    async def _store(self, value: Identity) -> None:
        await self._journal.append(encode(value))
        self.value = value


def refuse_other_cluster(held: str, wanted: str) -> None:
    """The directory holds a cluster's log: the configuration must mean that cluster."""
    if held and held != wanted:
        raise ConfigurationError(
            f"the data directory belongs to cluster {held}, not to {wanted}",
            hint="correct [cluster] name or [node] data_directory; an empty one joins as a new node",
        )


def refuse_lost_store(disk: Disk, identity: Identity) -> None:
    """CorruptFile when a member has no store: each had one before it became a member."""
    if not identity.cluster_id or disk.names(STORE_DIRECTORY):
        return
    if PositionFile(disk, STORE_DIRECTORY).load() is None:
        raise lost(STORE_DIRECTORY, 0, "it is missing or empty, and this node is a member of a cluster")


async def claim_archive(archive: Disk | None, identity: Identity) -> None:
    """ConfigurationError when another node's log goes to this archive: files of both have the same names. Of
    nodes that claim it at once, none gets it."""
    if archive is None:
        return
    own = ARCHIVE_OWNER_PREFIX + identity.host_id
    if archive.exists(own):
        return
    archive.append(own, b"")
    others = [name for name in archive.names("") if name.startswith(ARCHIVE_OWNER_PREFIX) and name != own]
    if others:
        archive.remove(own)
        raise ConfigurationError(
            f"the archive directory is that of node {others[0].removeprefix(ARCHIVE_OWNER_PREFIX)}, and this "
            f"is {identity.host_id}",
            hint="give each node a [metadata] archive_directory of its own",
        )
    await archive.sync(own)
    await archive.sync_names("")
