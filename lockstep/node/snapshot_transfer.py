"""One snapshot on its way from peers to this node.

Its bytes are read as they come, so that damage shows early and nothing is held twice. Invariant: a snapshot
is installed only when its value has the digest that its snapshot entry states, and a majority of the voters
confirms that entry's hash: the voters this node knows, or, for a newcomer, those that the value names. A node
that was away while its voters went believes those that the value names, too, when the nodes it knows
say the same: most of those that answer, two at least where it knows two.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.gossip.pulling import Offer
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.entries import hash_of
from lockstep.metadata.registry import EntryKind
from lockstep.metadata.snapshot_entries import TakeSnapshot
from lockstep.metadata.snapshot_file import SnapshotFileReader, SnapshotInfo
from lockstep.node.histories import Histories
from lockstep.node.metadata_state import MetadataState
from lockstep.node.voters import Member
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import UNREADABLE, decoder
from lockstep.values.errors import CorruptFile

_TAKE_SNAPSHOT = decoder(TakeSnapshot)


def offer_of(snapshot: SnapshotInfo) -> Offer:
    return Offer(snapshot.epoch, snapshot.entry.hash, snapshot.digest, snapshot.size_bytes)


def problem_with(snapshot: SnapshotInfo) -> str | None:
    """Why these facts contradict each other; None when they do not."""
    entry = snapshot.entry
    if entry.kind != EntryKind.SNAPSHOT or entry.epoch != snapshot.epoch or entry.hash != hash_of(entry):
        return "its entry is no snapshot entry of its epoch"
    try:
        stated = _TAKE_SNAPSHOT.decode(entry.body).digest
    except UNREADABLE as error:
        return f"its entry cannot be read: {error}"
    if stated != snapshot.digest:
        return "its digest is not the one that its entry states"
    if snapshot.size_bytes <= 0:
        return "it is empty"
    return None


def voters_named_in(cluster: ClusterMetadata) -> Sequence[Member]:
    """None when one of them is no node: then there is nobody to ask."""
    known = [cluster.directory.by_id.get(voter) for voter in cluster.voters]
    found = [Member((node.address, node.internode_port), node.host_id) for node in known if node is not None]
    return found if len(found) == len(known) else ()


class SnapshotTransfer:
    """`snapshot` is the one under way."""

    def __init__(self, runtime: Runtime, state: MetadataState, histories: Histories) -> None:
        self._runtime = runtime
        self._state = state
        self._histories = histories
        self._reader = SnapshotFileReader(registered=self._state.registry.parts)
        self.snapshot: SnapshotInfo | None = None
        #: Who confirms it is only known from its value.
        self._unknown_voters = False

    async def begin(self, snapshot: SnapshotInfo) -> str | None:
        """Be ready for its bytes, or go on with them; else why it is not to be believed (now)."""
        problem = problem_with(snapshot)
        if problem is None and self._state.epoch:
            problem = await self._doubt(snapshot)
            if problem is None and await self._histories.diverged():
                # A snapshot must not hide that this node applied what was never committed.
                problem = "this node's own history is another one"
        if problem is None and snapshot != self.snapshot:
            self.snapshot = snapshot
            self._reader = SnapshotFileReader(
                f"snapshot of epoch {snapshot.epoch}", self._state.registry.parts
            )
        return problem

    async def _doubt(self, snapshot: SnapshotInfo) -> str | None:
        """Why it is not to be believed, as far as this node's own metadata says whom to ask."""
        confirmed = await self._histories.majority_hash(snapshot.epoch, self._histories.known_voters())
        self._unknown_voters = confirmed is None
        if confirmed is None and await self._histories.prevailing_hash(snapshot.epoch) == snapshot.entry.hash:
            return None
        return _problem(snapshot, confirmed)

    def feed(self, data: bytes) -> None:
        """Take its next bytes; CorruptFile when they cannot be its own."""
        self._reader.feed(data)

    async def install(self) -> str | None:
        """Make it this node's state, now that its bytes are here; else why not. CorruptFile when they are not
        those of this snapshot."""
        snapshot = self.snapshot
        assert snapshot is not None, "a transfer is under way"
        content = self._reader.finish()
        # Entries behind it would be taken although nobody confirmed them.
        if (content.header.entry, content.header.digest) != (
            snapshot.entry,
            snapshot.digest,
        ) or content.entries:
            path = f"snapshot of epoch {snapshot.epoch}"
            raise CorruptFile(path, self._reader.bytes_read, "it is another one than was offered")
        if not self._state.epoch or self._unknown_voters:
            problem = await self._unconfirmed(snapshot, voters_named_in(content.value))
            if problem is not None:
                return problem
        await self._state.install(content.value, snapshot.entry)
        self._runtime.probes.reach("metadata.snapshot.installed")
        self.forget()
        return None

    def forget(self) -> None:
        if self.snapshot is not None:
            self.snapshot = None
            self._reader = SnapshotFileReader(registered=self._state.registry.parts)

    async def _unconfirmed(self, snapshot: SnapshotInfo, voters: Sequence[Member]) -> str | None:
        return _problem(snapshot, await self._histories.majority_hash(snapshot.epoch, voters))


def _problem(snapshot: SnapshotInfo, confirmed: bytes | None) -> str | None:
    """What is wrong with a snapshot when the voters have confirmed this hash."""
    if confirmed is None:
        return f"no majority of the voters says what epoch {snapshot.epoch} is"
    if confirmed != snapshot.entry.hash:
        return f"a majority of the voters has another entry at epoch {snapshot.epoch}"
    return None
