"""Planted bugs of the metadata: consensus groups, the log, who judges and answers, snapshots, members,
schema, roles, and what a step machine notices by looking at itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from rpds import HashTrieMap

from lockstep.consensus import elections, replication
from lockstep.consensus.effects import Role
from lockstep.consensus.log import Log
from lockstep.consensus.raft import Raft
from lockstep.consensus.state import RaftState
from lockstep.metadata import transformations
from lockstep.metadata.access.roles import Access
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups import membership as membership_module
from lockstep.metadata.groups import service as service_part
from lockstep.metadata.groups import voter_choice
from lockstep.metadata.groups.management import ManagementState
from lockstep.metadata.groups.membership import AdvanceMembership
from lockstep.metadata.log import tip as tip_module
from lockstep.metadata.log.recent_ids import RecentIds
from lockstep.metadata.log.tip import Tip
from lockstep.metadata.operations import Stage
from lockstep.metadata.transformations import SetExtension
from lockstep.node import node as node_module
from lockstep.node.log import metadata_state, metadata_store, submission
from lockstep.node.log.catch_up import CatchUp
from lockstep.node.log.journal import RaftJournal
from lockstep.node.log.metadata_store import MetadataStore
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.log.submission import Submitter
from lockstep.node.membership import service_driver
from lockstep.node.membership.management import Management
from lockstep.node.processors.raft import RaftProcessor
from lockstep.node.work.worker import WorkService
from lockstep.schema import type_changes
from lockstep.sim.plant import Planted, replaced
from lockstep.values.codec import frame_record
from lockstep.values.errors import LockstepError
from lockstep.values.hash_tree import key_of_text

_Context = contextlib.AbstractContextManager[None]

# ---- consensus


def _leader_counts_unsynced() -> _Context:
    """A leader counts its own entries before its disk has them."""
    advance_commit = replication.advance_commit

    def eager(state: Any) -> bool:
        writes = state.writes
        saved, writes.durable_index = writes.durable_index, state.log.last_index
        try:
            return advance_commit(state)
        finally:
            writes.durable_index = saved

    return replaced((replication, "advance_commit", eager))


def _counts_a_removed_voter() -> _Context:
    """Until its removal is committed, a voter still gets entries and is counted."""
    advance_commit, track_members = replication.advance_commit, replication.track_members

    def committed_one(state: Any) -> Any:
        history = state.configurations
        former = history.at(state.log.commit_index)
        return former if set(former.voters) - set(history.current.voters) else history.current

    def with_former(state: Any, do: Any) -> Any:
        history = state.configurations
        saved, history.current = history.current, committed_one(state)
        try:
            return do(state)
        finally:
            history.current = saved

    def track(state: Any) -> None:
        known = dict(state.progress)
        track_members(state)
        for peer in committed_one(state).members():
            if peer in known and peer != state.identity:
                state.progress.setdefault(peer, known[peer])

    def advance(state: Any) -> bool:
        return bool(with_former(state, advance_commit))

    return replaced(
        (replication, "advance_commit", advance),
        (replication, "track_members", track),
        (RaftState, "validate", lambda self: None),
    )


def _older_term_by_count() -> _Context:
    return replaced((replication, "is_committable", lambda state, index: True))


def _stale_candidate() -> _Context:
    """A vote for a log that lacks what may be committed."""
    return replaced((Log, "is_current", lambda self, last_index, last_term: True))


def _unsynced_journal() -> _Context:
    """The leader counts its own entries, and members acknowledge theirs, before the disk has them."""

    async def hasty(self: Any, hard_state: Any, entries: Any, commit_index: int = 0) -> None:
        journal = self._journal
        original = journal._disk

        class Lazy:
            async def append_synced(self, path: str, data: bytes) -> None:
                original.append(path, data)

            def __getattr__(self, name: str) -> Any:
                return getattr(original, name)

        journal._disk = Lazy()
        try:
            await append(self, hard_state, entries, commit_index)
        finally:
            journal._disk = original

    from lockstep.node.log.journal import RaftJournal

    append = RaftJournal.append
    return replaced((RaftJournal, "append", hasty))


def _shown_unmarked() -> _Context:
    """An epoch is shown as soon as it is committed, although no file says so yet."""

    async def hasty(_self: Any, _index: int) -> bool:
        return True

    return replaced((RaftDriver, "mark", hasty))


def _marked_commits_unread() -> _Context:
    """A start comes to the end of the metadata's own files, whatever the group's journal has behind it."""
    return replaced((metadata_state, "committed_after", lambda _disk, _epoch: []))


# ---- judging and answering


def _early_refusal() -> _Context:
    """A refusal is told without making sure that this node still leads, nor that what it was judged at is
    committed."""

    async def nothing(self: Any, term: int, waits: asyncio.Future[None] | None) -> None:
        if waits is not None:
            waits.add_done_callback(lambda done: done.cancelled() or done.exception())

    return replaced((RaftProcessor, "_confirm", nothing))


def _refusal_forgotten() -> _Context:
    """A second copy of what was refused is judged anew."""
    return replaced((RaftProcessor, "_remember_refusal", lambda self, entry_id, refusal: None))


def _unknown_told_as_failed() -> _Context:
    """An attempt that may have been appended counts as one that did nothing."""

    def nothing_done(self: Any, error: LockstepError, address: Any) -> None:
        self.nothing_done(error)

    return replaced((submission._Attempts, "unknown", nothing_done))


def _answered_at_append() -> _Context:
    """A submission is settled when it is appended."""
    propose = RaftProcessor._propose

    def eager(self: Any, entries: Any) -> bool:
        taken = propose(self, entries)
        if taken:
            self.settle_committed(list(entries))
        return taken

    async def now(self: Any, epoch: int, *_: Any) -> None:
        return None

    return replaced((RaftProcessor, "_propose", eager), (Submitter, "_applied_here", now))


def _retry_gets_another_epoch() -> _Context:
    """A retried submission is answered with the newest epoch, not its own."""
    judge = Tip.judge

    def newest(self: Any, *args: Any, **names: Any) -> Any:
        found = judge(self, *args, **names)
        if isinstance(found, tip_module.Duplicate) and found.committed:
            return tip_module.Duplicate(self.applied.epoch, True)
        return found

    return replaced((Tip, "judge", newest))


def _expired_id_judged() -> _Context:
    """An id too old to be known is taken for a new one."""
    judge = Tip.judge

    def careless(self: Any, *args: Any, base_epoch: Any = None, **names: Any) -> Any:
        return judge(self, *args, **names)

    return replaced((Tip, "judge", careless))


# ---- snapshots and the log


def _snapshot_loses_ids() -> _Context:
    """A value read from a snapshot knows no entry ids, and nobody notices one that is applied again."""
    from_listed, with_entry = RecentIds.from_listed, RecentIds.with_entry

    def forgetful(first_epoch: int, ids: Any) -> RecentIds:
        found = from_listed(first_epoch, ids)
        newer = msgspec.structs.replace(found.newer, epochs=HashTrieMap())
        return msgspec.structs.replace(found, newer=newer)

    def lenient(self: RecentIds, epoch: int, entry_id: bytes) -> RecentIds:
        with replaced((RecentIds, "epoch_of", lambda self, entry_id: None)):
            return with_entry(self, epoch, entry_id)

    return replaced((RecentIds, "from_listed", staticmethod(forgetful)), (RecentIds, "with_entry", lenient))


def _serves_a_gap() -> _Context:
    """A peer leaves out an entry of what it serves."""
    serve = CatchUp._serve

    async def holed(self: Any, peer: Any, request: Any) -> Any:
        reply = await serve(self, peer, request)
        if len(reply.entries) > 2:
            return msgspec.structs.replace(reply, entries=(*reply.entries[:1], *reply.entries[2:]))
        return reply

    return replaced((CatchUp, "_serve", holed))


def _snapshot_not_synced() -> _Context:
    """The log before a snapshot is dropped although the snapshot's bytes are not on the disk."""

    async def hasty(self: Any, disk: Any, path: str, parts: Any) -> None:
        for part in parts:
            disk.append(path, part)

    return replaced((MetadataStore, "_write", hasty))


# ---- transformations


def _clock_in_transformation() -> _Context:
    """An entry's effect depends on the clock of the node that applies it."""
    apply = SetExtension.apply

    def timed(self: Any, cluster: Any, epoch: int) -> Any:
        try:
            second = int(asyncio.get_running_loop().time())
        except RuntimeError:
            second = 0
        return apply(msgspec.structs.replace(self, value=self.value + b"%d" % (second % 2)), cluster, epoch)

    return replaced((SetExtension, "apply", timed))


def _settings_in_transformation() -> _Context:
    """An entry's effect depends on a setting of the node that applies it: only a replay shows it."""
    apply = SetExtension.apply

    def local(self: Any, cluster: Any, epoch: int) -> Any:
        changed = self
        with contextlib.suppress(RuntimeError):
            if getattr(asyncio.get_running_loop(), "host", "").startswith("10.9."):
                changed = msgspec.structs.replace(self, value=self.value + b"!")
        return apply(changed, cluster, epoch)

    return replaced((SetExtension, "apply", local))


def _frozen_ignored() -> _Context:
    return replaced((tip_module, "refuse_while_frozen", lambda cluster, kind: None))


def _drop_type_unchecked() -> _Context:
    """A type is dropped although a table uses it."""
    return replaced((type_changes, "_tables_using", lambda space, used: []))


# ---- members


def _two_changes() -> _Context:
    """A change of voters begins while another one runs."""
    return replaced((membership_module, "_refuse_running", lambda service: None))


def _advance_unchecked() -> _Context:
    """A sub-step is recorded whichever it is."""
    apply = AdvanceMembership.apply

    def blind(self: Any, cluster: Any, epoch: int) -> Any:
        change = cluster.service.change
        if change is None or change.id != self.change or change.cancelled:
            return apply(self, cluster, epoch)
        moved = msgspec.structs.replace(change, index=change.index + 1)
        service = msgspec.structs.replace(
            cluster.service, voters=self.voters, change=moved if moved.index < change.steps else None
        )
        return cluster.changed(service_part.SERVICE.set(service))

    return replaced((AdvanceMembership, "apply", blind))


def _vote_before_log() -> _Context:
    """A learner gets its vote before it has the log."""
    view = service_driver.group_view

    def everyone(driver: RaftDriver, own: Any, *_: Any) -> Any:
        found = view(driver, own)
        return msgspec.structs.replace(found, caught_up=(*found.members.voters, *found.members.learners))

    return replaced((service_driver, "group_view", everyone))


def _straight_to_voter() -> _Context:
    """A newcomer is made a voter at once."""
    from lockstep.metadata.groups import membership_step

    addition = membership_step._addition

    def direct(missing: Any, members: Any, caught_up: Any) -> Any:
        step = addition(missing, members, caught_up)
        if isinstance(step, membership_step.GroupConfigure):
            voters = tuple(sorted({*step.members.voters, *step.members.learners}))
            return membership_step.GroupConfigure(membership_step.Members(voters))
        return step

    return replaced((membership_step, "_addition", direct))


def _momentary_voters() -> _Context:
    """Only nodes count that nothing is done with at the moment."""
    return replaced((voter_choice, "_VOTING_STATES", (NodeState.NORMAL,)))


SERVICE = (
    Planted("leader_counts_unsynced", "committed entries are lost", "power", _leader_counts_unsynced),
    Planted("counts_a_removed_voter", "a quorum is none", "metadata", _counts_a_removed_voter),
    Planted("older_term_by_count", "committed entries are replaced", "log", _older_term_by_count),
    Planted("stale_candidate", "committed entries are lost", "metadata", _stale_candidate),
    Planted("unsynced_journal", "committed entries are lost", "power", _unsynced_journal),
    Planted("shown_unmarked", "a node goes back to an older epoch", "power", _shown_unmarked),
    Planted("marked_commits_unread", "a node goes back to an older epoch", "power", _marked_commits_unread),
    Planted("early_refusal", "refusals that do not hold", "metadata", _early_refusal),
    Planted("unknown_told_as_failed", "what failed is done", "metadata", _unknown_told_as_failed),
    Planted("answered_at_append", "acknowledged changes are lost", "metadata", _answered_at_append),
    Planted("retry_gets_another_epoch", "a wrong epoch is told", "metadata", _retry_gets_another_epoch),
    Planted("expired_id_judged", "a submission is applied twice", "metadata", _expired_id_judged),
    Planted("snapshot_loses_ids", "a submission is applied twice", "metadata", _snapshot_loses_ids),
    Planted("serves_a_gap", "entries are left out", "metadata", _serves_a_gap),
    Planted("snapshot_not_synced", "a node cannot start", "metadata", _snapshot_not_synced),
    Planted("clock_in_transformation", "nodes differ", "metadata", _clock_in_transformation),
    Planted("settings_in_transformation", "nodes differ", "metadata", _settings_in_transformation),
    Planted("frozen_ignored", "what is frozen changes", "metadata", _frozen_ignored),
    Planted("drop_type_unchecked", "a table uses a type that is gone", "schema", _drop_type_unchecked),
    Planted("two_changes", "members are forgotten", "metadata", _two_changes),
    Planted("advance_unchecked", "the record of voters is wrong", "metadata", _advance_unchecked),
    Planted("vote_before_log", "voters without the log", "metadata", _vote_before_log),
    Planted("momentary_voters", "one loss too many ends the metadata", "kinds", _momentary_voters),
    Planted("straight_to_voter", "voters without the log", "metadata", _straight_to_voter),
)
#: Brought about by a test: it takes a copy that comes after the answer to the first one.
DIRECTED = (Planted("refusal_forgotten", "what was refused is done", "metadata", _refusal_forgotten),)


def _grants_outlive_roles() -> contextlib.AbstractContextManager[None]:
    """A role is dropped, and what it was granted and is a member of stays for the next one of its name."""

    def forgetful(self: Any, name: str) -> Access:
        return Access(self.roles.without(key_of_text(name)), self.grants)

    return replaced((Access, "without_role", forgetful))


def _revoked_is_kept() -> contextlib.AbstractContextManager[None]:
    """What is revoked of a resource stays granted where the role has it already."""
    original = Access.with_grant

    def with_grant(self: Any, role: str, resource: str, permissions: Any) -> Access:
        return original(self, role, resource, {*permissions, *self.granted(role, resource)})

    return replaced((Access, "with_grant", with_grant))


def _long_names_taken() -> contextlib.AbstractContextManager[None]:
    """The metadata keeps whatever it is given."""
    return replaced((transformations, "EXTENSION_NAME_CHARACTERS_MAX", 1 << 20))


def _dead_voter_awaited() -> contextlib.AbstractContextManager[None]:
    """A new voter that died is waited for until the management group has it."""
    unsettled = Management.unsettled

    def patient(self: Any) -> str:
        alive, self._alive = self._alive, lambda _node: True
        try:
            return unsettled(self)
        finally:
            self._alive = alive

    return replaced((Management, "unsettled", patient))


ACCESS = (
    Planted("dead_voter_awaited", "the voters never change again", "access", _dead_voter_awaited),
    Planted(
        "grants_outlive_roles",
        "a new role inherits what another was granted",
        "access",
        _grants_outlive_roles,
    ),
    Planted("long_names_taken", "what is wrong is accepted", "access", _long_names_taken),
    Planted("revoked_is_kept", "a role may do what was revoked", "access", _revoked_is_kept),
)


def _vote_not_durable() -> contextlib.AbstractContextManager[None]:
    append = RaftJournal.append

    async def forgetful(self: Any, hard_state: Any, entries: Any, commit_index: int = 0) -> None:
        if entries or commit_index:
            await append(self, None, entries, commit_index)

    return replaced((RaftJournal, "append", forgetful))


def _vote_for_anyone() -> contextlib.AbstractContextManager[None]:
    return replaced((elections, "may_vote_for", lambda state, candidate: True))


def _promise_before_sync() -> contextlib.AbstractContextManager[None]:
    """Raft messages that promise durability leave before the write."""
    execute = RaftDriver._execute

    def hasty(self: Any, ready: Any) -> None:
        for message in ready.messages_after_persist:
            self._send(message)
        execute(self, ready)

    return replaced((RaftDriver, "_execute", hasty))


def _epoch_before_sync() -> contextlib.AbstractContextManager[None]:
    """A node shows an epoch that its disk does not hold yet."""
    append = MetadataStore.append

    class Later:
        """A segment that is synced when the entries were shown."""

        def __init__(self, segment: Any, store: Any) -> None:
            self._segment = segment
            self._store = store

        async def append(self, body: bytes) -> None:
            segment = self._segment
            segment._disk.append(segment._path, frame_record(body))
            self._store._runtime.tasks.spawn(self._sync(), "planted sync")

        async def _sync(self) -> None:
            with contextlib.suppress(LockstepError):
                await self._segment._disk.sync(self._segment._path)

    async def hasty(self: Any, batch: Any) -> None:
        if self._active is not None and not isinstance(self._active, Later):
            self._active = Later(self._active, self)
        await append(self, batch)

    return replaced((MetadataStore, "append", hasty))


def _unsettled_restart() -> contextlib.AbstractContextManager[None]:
    """A restarted node takes for durable what its killed predecessor had not synced."""

    async def nothing(disk: Any, paths: Any) -> None:
        return None

    return replaced((node_module, "settle", nothing), (metadata_store, "settle", nothing))


def _forget_dedup() -> contextlib.AbstractContextManager[None]:
    """A submission that was seen before is judged again."""
    return replaced((RecentIds, "epoch_of", lambda self, entry_id: None))


def _command_twice() -> contextlib.AbstractContextManager[None]:
    """A management command that was seen before is judged again."""
    return replaced((ManagementState, "is_known", lambda self, command_id: False))


LOG = (
    Planted("vote_not_durable", "two leaders in one term", "log", _vote_not_durable),
    Planted("vote_for_anyone", "two leaders in one term", "log", _vote_for_anyone),
    Planted("promise_before_sync", "committed entries are lost", "log", _promise_before_sync),
    Planted("epoch_before_sync", "a node's epoch goes back", "power", _epoch_before_sync),
    Planted("unsettled_restart", "a node's epoch goes back", "log", _unsettled_restart),
    Planted("command_twice", "a management command is applied twice", "metadata", _command_twice),
    Planted("forget_dedup", "a submission is applied twice", "log", _forget_dedup),
)


def _bytes_miscounted() -> _Context:
    """A leader counts a byte too many for each message: in the end it takes no proposals any more."""
    step = Raft.step

    def miscounting(self: Any, event: Any) -> Any:
        ready = step(self, event)
        if self.state.role is Role.LEADER:
            self.state.uncommitted_bytes += 1
        return ready

    return replaced((Raft, "step", miscounting))


def _snapshot_name_not_synced() -> _Context:
    """The log before a snapshot is dropped although a power cut may take the snapshot's name back."""
    write = MetadataStore.write_snapshot

    async def hasty(self: Any, value: Any, entry: Any) -> Any:
        disk = self._disk

        class Lazy:
            async def sync_names(self, directory: str) -> None:
                return None

            def __getattr__(self, name: str) -> Any:
                return getattr(disk, name)

        self._disk = Lazy()
        try:
            return await write(self, value, entry)
        finally:
            self._disk = disk

    return replaced((MetadataStore, "write_snapshot", hasty))


def _newcomer_not_emptied() -> _Context:
    """What a cancelled newcomer was sent stays on its disk."""
    clean_up = WorkService._clean_up

    async def keeps(self: Any, operation: Any, wanted: Any) -> None:
        if operation.stage is not Stage.ROLLBACK_TO_NORMAL:
            await clean_up(self, operation, wanted)

    return replaced((WorkService, "_clean_up", keeps))


MACHINES = (
    Planted("bytes_miscounted", "proposals are refused for ever", "calm", _bytes_miscounted),
    Planted("snapshot_name_not_synced", "a node cannot start", "metadata", _snapshot_name_not_synced),
    Planted("newcomer_not_emptied", "what was purged since returns", "newcomers", _newcomer_not_emptied),
)
