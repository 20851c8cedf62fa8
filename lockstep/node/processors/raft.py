"""The leader's side of the metadata log: judge against the tip, append, answer.

Invariants: an id that is in the tip is never judged again, it joins the first outcome; a refusal is told
only after this node confirmed, in the term it judged in, that it still leads and what it judged against is
applied; when leadership is lost in between, nothing is claimed and the submitter retries. An id that was
refused stays refused for the term, and a frame addressed to one term is judged in no other. Peers may
deliver a later leader's entries before its messages arrive: what was appended here is void from then on.

What is judged in one turn of the loop is appended together: one step of the group, one write, one sync.
A submission is settled when its entry is committed, which the reply says; when the epoch can be seen on this
node is another matter, and what is read here waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.consensus.messages import Entry, EntryKind
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import ENTRY_DECODER, LogEntry
from lockstep.metadata.log.registry import EntryKind as LogEntryKind
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.tip import Appended, Expired, Judgement, Refused, Tip
from lockstep.node.log.messages import Submit
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.processors.base import Processor, Settle, expired
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import (
    InvalidRequest,
    LeadershipLost,
    LockstepError,
    NotLeader,
    Overloaded,
    Rejected,
)
from lockstep.values.limits import ENTRY_BODY_BYTES_MAX, REFUSED_IDS_MAX


def logged_entries(entries: tuple[Entry, ...]) -> list[LogEntry]:
    """Metadata entries among Raft entries."""
    return [ENTRY_DECODER.decode(entry.data) for entry in entries if entry.kind is EntryKind.NORMAL]


def _nothing_refused(_kind: int) -> Rejected | None:
    return None


def _forked(logged: list[LogEntry], applied: ClusterMetadata) -> bool:
    """Whether this node's log holds another entry than the one that was applied at that epoch."""
    return any(entry.epoch == applied.epoch and entry.hash != applied.hash for entry in logged)


class RaftProcessor(Processor):
    """Exists on members of the group; refuses with NotLeader unless this node leads.

    `on_snapshot_entry(index, entry)` is told of each committed snapshot entry and its place in the group.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        driver: RaftDriver,
        registry: Registry,
        on_snapshot_entry: Callable[[int, LogEntry], None] = lambda *_: None,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._driver = driver
        self._registry = registry
        self._on_snapshot_entry = on_snapshot_entry
        self._tip: Tip | None = None
        self._tip_term = 0
        #: A term in which this node leads although a later leader has committed something else.
        self._overtaken_term = 0
        #: Judged in this turn and not yet appended; the tip counts on them.
        self._batch: list[LogEntry] = []
        #: Appended in the tip's term and not yet committed, by Raft index.
        self._appended: dict[int, LogEntry] = {}
        self._waiting: dict[bytes, list[Settle]] = {}
        #: What was refused in the tip's term: a doubled submission gets the same answer, whatever changed.
        self._refused: dict[bytes, Refused] = {}
        #: Why no entry of a kind is appended here at present.
        self.refuses: Callable[[int], Rejected | None] = _nothing_refused
        #: Refusals that wait until the epoch they were judged at is applied.
        self._judged: list[tuple[int, asyncio.Future[None]]] = []
        state.listen(self._applied)

    def take(self, submit: Submit, settle: Settle) -> None:
        try:
            outcome = self._judge(submit)
        except LockstepError as error:
            settle(error)
            return
        if isinstance(outcome, Appended):
            self._waiting[submit.entry_id] = [settle]
            if not self._batch:
                asyncio.get_running_loop().call_soon(self._append)
            self._batch.append(outcome.entry)
        elif isinstance(outcome, Refused):
            self._remember_refusal(submit.entry_id, outcome)
            waits = self._wait_for(outcome.judged_epoch)
            refusing = self._refuse(outcome, self._tip_term, waits, settle)
            self._runtime.tasks.spawn(refusing, "processor.refuse")
        elif isinstance(outcome, Expired):
            settle(expired(outcome))
        elif submit.entry_id in self._waiting:
            self._waiting[submit.entry_id].append(settle)
        elif outcome.committed:
            settle(outcome.epoch)
        else:
            # Appended before this node led, or committed and not applied here yet.
            self._waiting[submit.entry_id] = [settle]

    def _judge(self, submit: Submit) -> Judgement:
        if len(submit.body) > ENTRY_BODY_BYTES_MAX:
            raise InvalidRequest(f"a metadata entry holds at most {ENTRY_BODY_BYTES_MAX} bytes")
        tip = self._current_tip()
        known = self._refused.get(submit.entry_id) if self._refused else None
        refusal = self.refuses(submit.kind)
        if known is None and refusal is not None and tip.value.recent_ids.epoch_of(submit.entry_id) is None:
            refusal.epoch = tip.epoch
            return Refused(refusal, tip.epoch)
        return known or tip.judge(
            submit.entry_id,
            submit.kind,
            submit.body,
            submit.actor,
            self._runtime.clock.wall_us(),
            self._tip_term,
            base_epoch=submit.base_epoch,
        )

    def _append(self) -> None:
        """Append what this turn has judged; what the group does not take is settled so."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        left = batch
        if self._propose(batch):
            left = []
        elif len(batch) > 1:
            # Too much for now as a whole: the first ones may fit.
            while left and self._propose(left[:1]):
                left = left[1:]
        if left:
            self._undo(left)
        if len(left) < len(batch):
            self._runtime.probes.reach("processor.appended")

    def _propose(self, entries: list[LogEntry]) -> bool:
        accepted = self._driver.propose(tuple([encode(entry) for entry in entries]))
        if accepted is None:
            return False
        self._appended.update(enumerate(entries, accepted.first_index))
        return True

    def _undo(self, entries: list[LogEntry]) -> None:
        """They are not in the log, so nothing that was judged after them holds."""
        first = entries[0].epoch
        if self._tip is not None:
            self._tip.truncate_from(first)
        refused: LockstepError = NotLeader(self._driver.raft.leader)
        if self._driver.is_leader:
            refused = Overloaded("too many metadata changes wait for their commit")
        self._refused = {
            entry_id: refusal for entry_id, refusal in self._refused.items() if refusal.judged_epoch < first
        }
        for epoch, future in self._judged:
            if epoch >= first and not future.done():
                future.set_exception(refused)
        self._judged = [pair for pair in self._judged if pair[0] < first]
        for entry in entries:
            for settle in self._waiting.pop(entry.entry_id, ()):
                settle(refused)

    def tip_value(self) -> ClusterMetadata:
        """The value after every entry in this leader's log, committed or not; NotLeader when it does not
        lead."""
        self._append()
        return self._current_tip().value

    def close(self) -> None:
        """This node's member of the group has ended; nothing more is judged or answered here."""
        self._forget(NotLeader(None))
        self._state.unlisten(self._applied)

    def leading_term(self) -> int:
        self._current_tip()
        return self._tip_term

    def _remember_refusal(self, entry_id: bytes, refusal: Refused) -> None:
        self._refused[entry_id] = refusal
        if len(self._refused) > REFUSED_IDS_MAX:
            del self._refused[next(iter(self._refused))]

    def role_changed(self) -> None:
        """Leadership lost: speculative values go, and nothing is claimed about what was waiting."""
        if not self._driver.is_leader or self._driver.raft.term != self._tip_term:
            self._forget(NotLeader(self._driver.raft.leader))

    def _overtaken(self) -> None:
        """A later leader has committed; the messages that end this term have not arrived yet."""
        self._overtaken_term = self._driver.raft.term
        self._runtime.probes.reach("processor.overtaken")
        self._forget(NotLeader(None))

    def _forget(self, reason: NotLeader) -> None:
        self._tip = None
        self._refused, self._batch, self._appended = {}, [], {}
        waiting, self._waiting = self._waiting, {}
        judged, self._judged = self._judged, []
        for _, future in judged:
            if not future.done():
                future.set_exception(reason)
        lost = LeadershipLost(reason.leader)
        for joined in waiting.values():
            for settle in joined:
                settle(lost)

    def _current_tip(self) -> Tip:
        raft = self._driver.raft
        if not self._driver.is_leader:
            raise NotLeader(raft.leader)
        if raft.term == self._overtaken_term:
            raise NotLeader(None)
        if self._tip is None or self._tip_term != raft.term:
            applied = self._state.current
            logged = logged_entries(raft.entries(raft.first_index, raft.last_index))
            if _forked(logged, applied):
                self._overtaken()
                raise NotLeader(None)
            self._tip = Tip(applied, self._registry)
            self._tip.rebuild(applied, [entry for entry in logged if entry.epoch > applied.epoch])
            self._tip_term = raft.term
        return self._tip

    def _wait_for(self, epoch: int) -> asyncio.Future[None] | None:
        """Done once `epoch` is applied, failed once it is known that what was judged there never will be; in
        the same turn as the judgement, for that may be known at the end of the turn. None: it is applied."""
        if epoch <= self._state.epoch:
            return None
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._judged.append((epoch, waits))
        return waits

    async def _refuse(
        self, refused: Refused, term: int, waits: asyncio.Future[None] | None, settle: Settle
    ) -> None:
        try:
            await self._confirm(term, waits)
        except LockstepError as error:
            settle(error)
        else:
            settle(refused.rejection)

    async def _confirm(self, term: int, waits: asyncio.Future[None] | None) -> None:
        try:
            await self._driver.confirm_leadership()
        except LockstepError:
            if waits is not None and not waits.cancel():
                waits.exception()  # Nobody else looks at it.
            raise
        if waits is not None:
            await waits
        if not self._driver.is_leader or self._driver.raft.term != term:
            raise NotLeader(self._driver.raft.leader)

    def committed(self, entries: tuple[Entry, ...]) -> list[LogEntry]:
        """The metadata entries among those that the group has just committed."""
        appended = self._appended
        found: list[LogEntry] = []
        for entry in entries:
            if entry.kind is not EntryKind.NORMAL:
                continue
            own = appended.pop(entry.index, None) if appended else None
            if own is None or own.term != entry.term:
                own = ENTRY_DECODER.decode(entry.data)
            found.append(own)
            if own.kind == LogEntryKind.SNAPSHOT:
                self._on_snapshot_entry(entry.index, own)
        return found

    def settle_committed(self, entries: list[LogEntry]) -> None:
        """Settle the submissions behind these entries, which were handed to the metadata's state."""
        if self._waiting:
            for entry in entries:
                for settle in self._waiting.pop(entry.entry_id, ()):
                    settle(entry.epoch)

    def validate(self) -> None:
        judged = self._batch or self._appended or self._refused or self._judged
        assert self._tip is not None or not judged, "what was judged is gone with its tip"
        assert len(self._refused) <= REFUSED_IDS_MAX, "refusals make room for others"
        if self._tip is not None and self._batch:
            first, last = self._batch[0].epoch, self._batch[-1].epoch
            assert last == self._tip.epoch == first + len(self._batch) - 1, "the tip ends with the batch"

    def known_value(self, entry: LogEntry, before: ClusterMetadata) -> ClusterMetadata | None:
        return self._tip.value_at(entry, before) if self._tip is not None else None

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        # A snapshot was installed: peers were quicker than the group.
        jumped = after.epoch > before.epoch + 1
        if self._waiting:
            for entry_id in list(self._waiting) if jumped else (entry.entry_id,):
                epoch = after.recent_ids.epoch_of(entry_id)
                if epoch is not None:
                    for settle in self._waiting.pop(entry_id, ()):
                        settle(epoch)
        if self._tip is not None:
            if self._tip.forked_at(after):
                self._overtaken()
            elif jumped and self._tip.value is not self._tip.applied:
                # Whether what was appended here is what lies below the snapshot cannot be seen any more.
                self._forget(NotLeader(None))
            else:
                self._tip.applied_now(after)
        if self._judged:
            due = [future for epoch, future in self._judged if epoch <= after.epoch]
            self._judged = [pair for pair in self._judged if pair[0] > after.epoch]
            for judged in due:
                if not judged.done():
                    judged.set_result(None)
