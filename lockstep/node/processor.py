"""The leader's side of the metadata log: judge against the tip, append, answer.

Invariants: an id that is in the tip is never judged again, it joins the first outcome; a refusal is told
only after this node confirmed, in the term it judged in, that it still leads and what it judged against is
applied; when leadership is lost in between, nothing is claimed and the submitter retries. An id that was
refused stays refused for the term, and a frame addressed to one term is judged in no other. Peers may
deliver a later leader's entries before its messages arrive: what was appended here is void from then on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockstep.consensus.messages import Entry, EntryKind
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.entries import ENTRY_DECODER, LogEntry
from lockstep.metadata.registry import Registry
from lockstep.metadata.tip import Duplicate, Expired, Judgement, Refused, Tip
from lockstep.node.messages import Submit
from lockstep.node.metadata_state import MetadataState
from lockstep.node.raft_driver import RaftDriver
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import InvalidRequest, NotLeader, OutcomeUnknown, Overloaded
from lockstep.values.limits import ENTRY_BODY_BYTES_MAX, REFUSED_IDS_MAX


def committed_log_entries(entries: tuple[Entry, ...]) -> list[LogEntry]:
    """Metadata entries among committed Raft entries."""
    return [ENTRY_DECODER.decode(entry.data) for entry in entries if entry.kind is EntryKind.NORMAL]


def _forked(logged: list[LogEntry], applied: ClusterMetadata) -> bool:
    """Whether this node's log holds another entry than the one that was applied at that epoch."""
    return any(entry.epoch == applied.epoch and entry.hash != applied.hash for entry in logged)


class Processor:
    """Exists on voters; refuses with NotLeader unless this node leads."""

    def __init__(
        self, runtime: Runtime, state: MetadataState, driver: RaftDriver, registry: Registry
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._driver = driver
        self._registry = registry
        self._tip: Tip | None = None
        self._tip_term = 0
        #: A term in which this node leads although a later leader has committed something else.
        self._overtaken_term = 0
        self._waiting: dict[bytes, list[asyncio.Future[int]]] = {}
        #: What was refused in the tip's term: a doubled submission gets the same answer, whatever changed.
        self._refused: dict[bytes, Refused] = {}
        #: Refusals that wait until the epoch they were judged at is applied.
        self._judged: list[tuple[int, asyncio.Future[None]]] = []
        state.listen(self._applied)

    async def submit(self, submit: Submit) -> int:
        """Epoch at which the submission's entry is committed. Rejected, NotLeader, Overloaded."""
        if len(submit.body) > ENTRY_BODY_BYTES_MAX:
            raise InvalidRequest(f"a metadata entry holds at most {ENTRY_BODY_BYTES_MAX} bytes")
        tip = self._current_tip()
        term = self._tip_term
        outcome: Judgement = self._refused.get(submit.entry_id) or tip.judge(
            entry_id=submit.entry_id,
            kind=submit.kind,
            body=submit.body,
            actor=submit.actor,
            commit_time_us=self._runtime.clock.wall_us(),
            term=term,
            base_epoch=submit.base_epoch,
        )
        if isinstance(outcome, Refused):
            self._remember_refusal(submit.entry_id, outcome)
            await self._confirm(term, outcome.judged_epoch)
            raise outcome.rejection
        if isinstance(outcome, Expired):
            raise OutcomeUnknown(
                f"this change was first sent before epoch {outcome.oldest_epoch}; its id is no longer kept",
                hint="look for it in the log: lockstep cms log",
            )
        if isinstance(outcome, Duplicate):
            if outcome.epoch <= self._state.epoch:
                return outcome.epoch
            return await self._committed(submit.entry_id)
        if not self._driver.propose((encode(outcome.entry),)):
            tip.truncate_from(outcome.entry.epoch)
            if self._driver.is_leader:
                raise Overloaded("too many metadata changes wait for their commit")
            raise NotLeader(self._driver.raft.leader)
        self._runtime.probes.reach("processor.appended")
        return await self._committed(submit.entry_id)

    def tip_value(self) -> ClusterMetadata:
        """The value after every entry in this leader's log, committed or not; NotLeader when it does not lead."""
        return self._current_tip().value

    def close(self) -> None:
        """This node's member of the group has ended; nothing more is judged or answered here."""
        self._forget(NotLeader(None))
        self._state.unlisten(self._applied)

    def leading_term(self) -> int:
        """The term in which this node judges; NotLeader when it does not."""
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
        self._refused = {}
        waiting, self._waiting = self._waiting, {}
        judged, self._judged = self._judged, []
        futures: list[asyncio.Future[Any]] = [future for _, future in judged]
        for future in [*futures, *(future for joined in waiting.values() for future in joined)]:
            if not future.done():
                future.set_exception(reason)

    def _current_tip(self) -> Tip:
        raft = self._driver.raft
        if not self._driver.is_leader:
            raise NotLeader(raft.leader)
        if raft.term == self._overtaken_term:
            raise NotLeader(None)
        if self._tip is None or self._tip_term != raft.term:
            applied = self._state.current
            logged = committed_log_entries(raft.entries(raft.first_index, raft.last_index))
            if _forked(logged, applied):
                self._overtaken()
                raise NotLeader(None)
            self._tip = Tip(applied, self._registry)
            self._tip.rebuild(applied, [entry for entry in logged if entry.epoch > applied.epoch])
            self._tip_term = raft.term
        return self._tip

    async def _confirm(self, term: int, judged_epoch: int) -> None:
        await self._driver.confirm_leadership()
        if judged_epoch > self._state.epoch and self._driver.is_leader and self._driver.raft.term == term:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._judged.append((judged_epoch, future))
            await future
        if not self._driver.is_leader or self._driver.raft.term != term:
            raise NotLeader(self._driver.raft.leader)

    async def _committed(self, entry_id: bytes) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(entry_id, []).append(future)
        return await future

    def _answer(self, entry_id: bytes, epoch: int) -> None:
        for future in self._waiting.pop(entry_id, ()):
            if not future.done():
                future.set_result(epoch)

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        if after.epoch == before.epoch + 1:
            self._answer(entry.entry_id, entry.epoch)
        else:
            for entry_id in list(self._waiting):
                epoch = after.recent_ids.epoch_of(entry_id)
                if epoch is not None:
                    self._answer(entry_id, epoch)
        if self._tip is not None:
            if self._tip.forked_at(after):
                self._overtaken()
            else:
                self._tip.applied_now(after)
        if self._judged:
            due = [future for epoch, future in self._judged if epoch <= after.epoch]
            self._judged = [pair for pair in self._judged if pair[0] > after.epoch]
            for judged in due:
                if not judged.done():
                    judged.set_result(None)
