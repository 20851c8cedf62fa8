"""Fetching the metadata log from peers, and giving it to them.

Whom to ask, and when to ask another, is decided by gossip.pulling.Puller; this module asks, verifies what
comes, and hands it to the metadata state. Invariant: one request is under way at a time, so requests for one
gap are merged; what is served is committed and durable here and has no hole; what arrives is verified by the
hash chain and against this node's own history before it is applied, and who contradicts it is not believed.

One snapshot on its way from peers to this node.

Its bytes are read as they come, so that damage shows early and nothing is held twice. Invariant: a snapshot
is installed only when its value has the digest that its snapshot entry states, and a majority of the voters
confirms that entry's hash: the voters this node knows, or, for a newcomer, those that the value names. A node
that was away while its voters went believes those that the value names, too, when the nodes it knows
say the same: most of those that answer, two at least where it knows two.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from lockstep.gossip.pulling import Offer, Puller, Request
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import hash_of
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.log.snapshot_file import SnapshotFileReader, SnapshotInfo
from lockstep.node.log.histories import Histories, whole_part
from lockstep.node.log.messages import Announce, FetchLog, FetchSnapshot, LogEntries, SnapshotChunk
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.voters import Member
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import UNREADABLE, decoder
from lockstep.values.errors import CorruptFile, LockstepError, PeerTimeout
from lockstep.values.limits import (
    FETCHED_ENTRIES_QUEUED_MAX,
    LOG_FETCH_ENTRIES_MAX,
    SNAPSHOT_CHUNK_BYTES,
    SNAPSHOT_GAP_EPOCHS,
)

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
                self._state.registry.parts, f"snapshot of epoch {snapshot.epoch}"
            )
        return problem

    async def _doubt(self, snapshot: SnapshotInfo) -> str | None:
        """Why it is not to be believed, as far as this node's own metadata says whom to ask."""
        if self._histories.goes_to():
            # The voters that it knows are of the cluster before; those of the new one are named in the value.
            self._unknown_voters = True
            return None
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
        goal = self._histories.goes_to()
        if goal and goal not in content.value.identity.lineage:
            return f"it is not of cluster {goal}, to which this node goes"
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


#: How long a node waits for an epoch unless the caller says otherwise.
REACH_TIMEOUT_MS = 2000
#: An answer that takes longer is lost. Other peers are asked long before; a late answer is still used.
FETCH_TIMEOUT_MS = 10_000


#: Upper bounds of waits: from a hop between neighbours to the end of a client's patience.
WAIT_BOUNDS_MS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)


class Waits:
    """How long requests waited for metadata that was newer than this node's, also in vain. `counts` has one
    more element than WAIT_BOUNDS_MS: what is above all of them."""

    def __init__(self) -> None:
        self.counts = [0] * (len(WAIT_BOUNDS_MS) + 1)
        self.total_ms = 0.0

    def note(self, took_ms: float) -> None:
        self.counts[bisect_left(WAIT_BOUNDS_MS, took_ms)] += 1
        self.total_ms += took_ms


class CatchUp:
    """`log` receives (event, facts) for what went wrong. The counters only grow."""

    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        internode: Internode,
        histories: Histories,
        own_address: Address,
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._internode = internode
        self._histories = histories
        self._own_address = own_address
        self._log = log
        self._puller: Puller[Address] = Puller()
        self._transfer = SnapshotTransfer(runtime, state, histories)
        self._timer: asyncio.TimerHandle | None = None
        self._wake_ms: int | None = None
        self._stopped = False
        #: A snapshot was of no use: ask for entries where there are any.
        self._entries_only = False
        #: Nothing was asked because enough waits to be applied.
        self._queue_full = False
        self.entries_fetched = 0
        self.bytes_fetched = 0
        self.entries_served = 0
        self.bytes_served = 0
        self.snapshots_fetched = 0
        self.snapshots_served = 0
        self.gaps_refused = 0
        self.waits = Waits()
        internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, self._serve)
        internode.register(verbs.FETCH_SNAPSHOT, FetchSnapshot, SnapshotChunk, self._serve_snapshot)
        internode.register_fast(verbs.ANNOUNCE, Announce, Announce, self._announced)
        state.listen(self._applied)

    def stop(self) -> None:
        """Ask nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- serving -------------------------------------------------------------------------------------

    async def _serve(self, _peer: object, request: FetchLog) -> LogEntries:
        state, after = self._state, max(request.after, 0)
        if state.epoch <= after < state.tail[0]:
            # Committed and on its way to the disk: the asker was told of it already.
            await state.wait_for(after + 1)
        kept = after + 1 >= state.first_epoch
        if not kept or (state.epoch - after > SNAPSHOT_GAP_EPOCHS and not request.entries_only):
            snapshot = state.latest_snapshot()
            if snapshot is not None and snapshot.epoch > after:
                return LogEntries(state.epoch, (), snapshot)
        entries = state.entries_after(after) if kept else ()
        assert not entries or entries[0].epoch == after + 1, "what is served has no hole"
        self.entries_served += len(entries)
        self.bytes_served += sum(len(entry.body) for entry in entries)
        return LogEntries(state.epoch, entries)

    async def _serve_snapshot(self, _peer: object, request: FetchSnapshot) -> SnapshotChunk:
        wanted = request.snapshot
        if self._state.store.infos.get(wanted.epoch) != wanted:
            return SnapshotChunk(b"")
        size = min(SNAPSHOT_CHUNK_BYTES, wanted.size_bytes - request.offset)
        if request.offset < 0 or size <= 0:
            return SnapshotChunk(b"")
        data = self._state.read_snapshot_chunk(wanted.epoch, request.offset, size) or b""
        if request.offset == 0 and data:
            self.snapshots_served += 1
        self.bytes_served += len(data)
        return SnapshotChunk(data)

    # -- what is heard -------------------------------------------------------------------------------

    def heard(self, address: Address, epoch: int) -> None:
        """A message from `address` carried `epoch`: fetch in the background when it is news."""
        self._want(address, epoch)

    def _want(self, address: Address, epoch: int) -> None:
        if epoch > self._state.epoch and self._state.broken is None and address != self._own_address:
            self._puller.heard(address, epoch, self._now_ms())
            self._turn()

    def _announced(self, peer: PeerInfo, message: Announce, _respond: object) -> None:
        """The epoch itself was heard with the envelope; here it is the history that is compared."""
        if self._histories.contradicts(message.epoch, message.hash):
            self._refuse(peer.endpoint, message.epoch, message.hash)

    def behind(self) -> bool:
        """Whether a peer is known to have more than this node."""
        return self._puller.behind(self._state.epoch)

    def far_behind(self) -> bool:
        """Whether more is to be had from peers than one answer holds."""
        return self._puller.to_be_had(self._state.epoch) > self._state.epoch + LOG_FETCH_ENTRIES_MAX

    @property
    def newest_heard(self) -> int:
        """The newest epoch that some peer is known to have, or this node's own."""
        return max(self._puller.wanted(self._state.epoch), self._state.epoch)

    @property
    def installing(self) -> bool:
        """Whether a snapshot is on its way here."""
        return self._puller.offer is not None

    async def reach(self, epoch: int, source: Address, timeout_ms: int = REACH_TIMEOUT_MS) -> None:
        """Return when `epoch` is applied here; PeerTimeout when that takes longer than allowed."""
        if self._state.epoch >= epoch:
            return
        clock = self._runtime.clock
        began_s = clock.monotonic_s()
        self._want(source, epoch)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._state.wait_for(epoch)
        except TimeoutError:
            raise PeerTimeout(f"epoch {epoch} did not arrive here within {timeout_ms} ms") from None
        finally:
            self.waits.note((clock.monotonic_s() - began_s) * 1000)

    def _applied(self, *_change: object) -> None:
        if self._queue_full and self._queued() <= LOG_FETCH_ENTRIES_MAX:
            self._queue_full = False
            self._turn()

    # -- asking --------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._runtime.clock.monotonic_s() * 1000)

    def _queued(self) -> int:
        return self._state.tail[0] - self._state.epoch

    def _turn(self) -> None:
        """Ask what is to be asked now, and come back when that may change."""
        if self._stopped or self._state.broken is not None:
            return
        if self._queued() > FETCHED_ENTRIES_QUEUED_MAX:
            self._queue_full = True
            return
        now_ms = self._now_ms()
        request = self._puller.next(self._state.tail[0], now_ms)
        if self._puller.offer is None:
            self._transfer.forget()
        if request is not None:
            self._runtime.tasks.spawn(self._ask(request), f"metadata.fetch.{request.peer[0]}")
        wake_ms = self._puller.wake_ms()
        if wake_ms != self._wake_ms:
            self._set_timer(wake_ms, now_ms)

    def _set_timer(self, wake_ms: int | None, now_ms: int) -> None:
        self._wake_ms = wake_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_ms is not None:
            delay_s = max(1, wake_ms - now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._timer = self._wake_ms = None
        self._turn()

    async def _ask(self, request: Request[Address]) -> None:
        try:
            if request.offer is None:
                await self._ask_entries(request)
            else:
                await self._ask_chunk(request)
        except LockstepError as error:
            self._log("metadata.fetch_failed", peer=request.peer[0], error=str(error))
            self._puller.failed(request, self._now_ms())
        except Exception:
            # A defect, and reported; what is missing is asked for all the same, of others first.
            self._puller.failed(request, self._now_ms())
            self._turn()
            raise
        self._turn()

    async def _ask_entries(self, request: Request[Address]) -> None:
        reply: LogEntries = await self._internode.request(
            request.peer, verbs.FETCH_LOG, FetchLog(request.after, self._entries_only), FETCH_TIMEOUT_MS
        )
        if reply.snapshot is not None and not reply.entries:
            if self._puller.is_current(request):
                self._puller.answered(request, reply.epoch, True, self._now_ms())
                self._puller.hold(True)
                await self._begin(request.peer, reply.snapshot)
            return
        took = self._take(request, reply)
        self._puller.answered(request, reply.epoch, took, self._now_ms())

    def _take(self, request: Request[Address], reply: LogEntries) -> bool:
        """Whether the answer had news; they wait to be applied now."""
        peer = request.peer
        entries, problem, damaged = whole_part(reply.entries)
        if damaged:
            self._log("metadata.fetch_damaged", peer=peer[0], after=request.after, problem=problem)
            self._puller.refuse(peer, self._now_ms())
            return False
        other = self._histories.contradiction(entries)
        if other is not None:
            self._refuse(peer, *other)
            return False
        tail = self._state.tail[0]
        fresh = [entry for entry in entries if entry.epoch > tail]
        if fresh and fresh[0].epoch != tail + 1:
            problem, fresh = f"entry {fresh[0].epoch} follows epoch {tail}", []
        if problem:
            self.gaps_refused += 1
            self._log("metadata.fetch_gap", peer=peer[0], after=tail, problem=problem)
        if fresh:
            self._state.offer(fresh)
            self.entries_fetched += len(fresh)
            self.bytes_fetched += sum(len(entry.body) for entry in fresh)
            self._entries_only = False
        return bool(fresh)

    def _refuse(self, peer: Address, epoch: int, other: bytes) -> None:
        """Another history there: it is not asked again, and the voters say who is wrong."""
        self._log("metadata.fork_seen", peer=peer[0], epoch=epoch)
        self._puller.refuse(peer, self._now_ms())
        self._histories.dispute(peer, epoch, other)

    # -- snapshots -----------------------------------------------------------------------------------

    async def _begin(self, peer: Address, snapshot: SnapshotInfo) -> None:
        """Fetch the offered snapshot, when it may be believed."""
        try:
            if snapshot.epoch > self._state.tail[0]:
                problem = await self._transfer.begin(snapshot)
            else:
                problem = "its epoch is here already"
        finally:
            self._puller.hold(False)
        if problem is None:
            self._puller.began(offer_of(snapshot), peer)
        else:
            self._spoiled(peer, snapshot, problem)

    async def _ask_chunk(self, request: Request[Address]) -> None:
        snapshot = self._transfer.snapshot
        assert snapshot is not None and request.offer == offer_of(snapshot), "the transfer under way"
        chunk: SnapshotChunk = await self._internode.request(
            request.peer, verbs.FETCH_SNAPSHOT, FetchSnapshot(snapshot, request.offset), FETCH_TIMEOUT_MS
        )
        if not self._puller.is_current(request):
            return  # Late: another peer was asked for the same bytes.
        if not 0 < len(chunk.data) <= snapshot.size_bytes - request.offset:
            self._puller.lacking(request)
            return
        try:
            self._transfer.feed(chunk.data)
        except LockstepError as damage:
            self._spoiled(request.peer, snapshot, str(damage), damaged=True)
            return
        self.bytes_fetched += len(chunk.data)
        self._puller.arrived(request, len(chunk.data), self._now_ms())
        if self._puller.complete:
            await self._install(request.peer, snapshot)

    async def _install(self, peer: Address, snapshot: SnapshotInfo) -> None:
        self._puller.hold(True)
        problem: str | None = "installing it failed"
        damaged = False
        try:
            problem = await self._transfer.install()
        except LockstepError as error:
            problem, damaged = str(error), isinstance(error, CorruptFile)
        finally:
            self._puller.hold(False)
            if problem is not None:
                self._spoiled(peer, snapshot, problem, damaged=damaged)
        if problem is not None:
            return
        self.snapshots_fetched += 1
        self._entries_only = False
        self._puller.installed()

    def _spoiled(self, peer: Address, snapshot: SnapshotInfo, problem: str, *, damaged: bool = False) -> None:
        """Not this snapshot, or not now: entries, or another peer's. `damaged`: its bytes were wrong, and
        `peer` gave the last of them."""
        self._log("metadata.snapshot_refused", peer=peer[0], epoch=snapshot.epoch, problem=problem)
        self._entries_only = True
        self._transfer.forget()
        if damaged:
            self._puller.damaged(peer, self._now_ms())
        else:
            self._puller.dropped()
            self._puller.disappointed(peer, self._now_ms())
