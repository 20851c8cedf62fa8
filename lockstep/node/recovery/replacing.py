"""A node's part in a repair that puts another value in the place of its metadata: what it holds, what it
promises, and what becomes of its files.

An operator's tool asks each node at its admin port, for a node that can apply no more talks to nobody else.
The order is that of every repair: all write the plan down, then it is decided by the first durable
record that it was activated.

Invariant: what was in the place of the new value is moved beside it, not removed, until the next such repair;
each step may be done again after a crash and leads to the same files.
"""

from __future__ import annotations

from typing import Final

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Registry
from lockstep.node.log.journal import Journal
from lockstep.node.log.metadata_past import Past
from lockstep.node.log.metadata_store import (
    CHECKPOINTS,
    DEFAULT_RETENTION,
    DIRECTORY,
    PARTIAL,
    MetadataStore,
    snapshot_info,
    snapshot_path,
)
from lockstep.node.log_service import NodeLog
from lockstep.node.processors.raft import logged_entries
from lockstep.node.recovery.reset_service import ResetService
from lockstep.recovery.plan import Drawn, ResetPlan
from lockstep.recovery.replacing import Cut, Held, Put, begun, plan_cut, plan_put, unpacked
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile, LockstepError, PreconditionError
from lockstep.values.node_limits import (
    RECOVERY_HASHES_TOLD,
    RECOVERY_SHOWN_BYTES_MAX,
    RECOVERY_SHOWN_ENTRIES_MAX,
)

#: Where the files lie that a repair has put others in the place of.
REPLACED: Final = "metadata-replaced"


class Replacing:
    """Of one node. `desk` keeps what it promises."""

    def __init__(self, runtime: Runtime, log: NodeLog, desk: ResetService) -> None:
        self._runtime = runtime
        self._log = log
        self._desk = desk

    async def hold(self, epoch: int, shown: int = RECOVERY_SHOWN_ENTRIES_MAX) -> Held:
        """What this node holds from an epoch on, with so many entries at most; 0: only how far it is.
        PreconditionError for an epoch with nothing before it."""
        if epoch == 1:
            raise PreconditionError("the log begins with epoch 1, and nothing is before it")
        state = self._log.state
        survey, tail = self._desk.own.survey_of(), self._desk.own.tail(state.epoch)
        found = [*state.retained(epoch, state.epoch), *(one for one in tail if one.epoch >= epoch)]
        entries = found if epoch else []
        told = _shown(entries, shown)
        standing = self._desk.file.standing
        return Held(
            survey=survey,
            broken=str(state.broken) if state.broken is not None else "",
            committed=self._committed(tail),
            voters=tuple(state.current.voters),
            hash_before=(state.hash_at(epoch - 1) or b"") if epoch else b"",
            value_before=not epoch or await self._value(epoch - 1) is not None,
            entries=told,
            more=len(entries) - len(told),
            phase=standing.phase.value,
            attempt=standing.attempt,
            planned=standing.plan.cluster_id if standing.plan is not None else "",
        )

    def _committed(self, tail: list[LogEntry]) -> int:
        """The newest epoch that this node knows to be committed: it may have no way to apply it."""
        driver, applied = self._log.driver, self._log.state.epoch
        if not tail:
            return applied
        if driver is None:
            return tail[-1].epoch
        raft = driver.raft
        for index in range(min(raft.commit_index, raft.last_index), raft.first_index - 1, -1):
            logged = logged_entries((raft.entry(index),))
            if logged:
                return max(applied, logged[0].epoch)
        return applied

    async def _value(self, epoch: int) -> ClusterMetadata | None:
        try:
            return await Past(self._log.state).value_at(epoch)
        except LockstepError:
            return None

    async def cut(self, held: list[Held], absent: list[int], wish: Cut) -> ResetPlan:
        """The plan that takes entries out of the log, from what nodes hold. PreconditionError."""
        state = self._log.state
        before = await self._value(wish.epoch - 1)
        if before is None:
            raise PreconditionError(
                f"this node cannot make the metadata of epoch {wish.epoch - 1}",
                hint="ask one that keeps more of the log",
            )
        known = self._hashes(wish.epoch)
        return plan_cut(before, held, absent, wish, self._drawn(), state.registry, known)

    def put(self, told: bytes, held: list[Held], wish: Put) -> ResetPlan:
        """The plan that puts a value on nodes; without one, what this node has. PreconditionError,
        CorruptFile."""
        state = self._log.state
        current = state.current
        value = unpacked(told, state.registry) if told else current
        known = self._hashes(current.epoch + 1)
        return plan_put(value, current, held, wish, self._drawn(), state.registry, known)

    def _hashes(self, before: int) -> list[tuple[int, bytes]]:
        first = max(1, before - RECOVERY_HASHES_TOLD)
        known = ((epoch, self._log.state.hash_at(epoch)) for epoch in range(first, before))
        return [(epoch, hash_) for epoch, hash_ in known if hash_ is not None]

    def _drawn(self) -> Drawn:
        random = self._runtime.random
        return Drawn(random.uuid(), random.uuid(), random.bytes(16), self._runtime.clock.wall_us())

    async def prepare(self, plan: ResetPlan) -> int:
        """Write the plan down; this node's id. Rejected when it is not as the plan has it; CorruptFile,
        CannotApply when the plan makes no sense here."""
        _, after = begun(plan, self._log.registry)
        return await self._desk.prepare_replacement(plan, after)


def _shown(entries: list[LogEntry], count: int) -> tuple[LogEntry, ...]:
    """The first of them, as many as one answer has."""
    found: list[LogEntry] = []
    size = 0
    for entry in entries[:count]:
        size += len(entry.body)
        if found and size > RECOVERY_SHOWN_BYTES_MAX and count <= RECOVERY_SHOWN_ENTRIES_MAX:
            break
        found.append(entry)
    return tuple(found)


async def replace_metadata(runtime: Runtime, registry: Registry, plan: ResetPlan) -> ClusterMetadata:
    """Have the metadata's files begin with the plan's value; the value after its entries."""
    before, after = begun(plan, registry)
    entry = plan.last
    await _move_away(runtime, registry, plan)
    runtime.probes.reach("recovery.moved_away")
    partial = CHECKPOINTS + PARTIAL
    if runtime.disk.exists(partial):
        runtime.disk.remove(partial)
    await Journal(runtime.disk, partial).append(encode(list(plan.hashes)))
    runtime.disk.rename(partial, CHECKPOINTS)
    await runtime.disk.sync_names(DIRECTORY)
    store = MetadataStore(runtime, DEFAULT_RETENTION, lambda *_, **__: None, registry.parts)
    store.load()
    if entry.epoch not in store.infos:
        await store.write_snapshot(before, entry)
    runtime.probes.reach("recovery.replaced")
    return after


async def _move_away(runtime: Runtime, registry: Registry, plan: ResetPlan) -> None:
    """Put every file of the metadata but the one that the plan makes among those that were replaced."""
    disk = runtime.disk
    for name in disk.names(REPLACED):
        if not name.startswith(plan.attempt):
            disk.remove(f"{REPLACED}/{name}")
    for name in disk.names(DIRECTORY):
        path, target = f"{DIRECTORY}/{name}", f"{REPLACED}/{plan.attempt}-{name}"
        if path == snapshot_path(plan.last.epoch) and _is_made(runtime, registry, plan):
            continue
        if disk.exists(target):
            # A crash left it: what was there before it is moved already.
            disk.remove(path)
        else:
            disk.rename(path, target)
    for directory in (REPLACED, DIRECTORY):
        if disk.names(directory):
            await disk.sync_names(directory)


def _is_made(runtime: Runtime, registry: Registry, plan: ResetPlan) -> bool:
    """Whether the plan's snapshot is there, whole under its name."""
    try:
        return snapshot_info(runtime.disk, plan.last.epoch, registry.parts).entry == plan.last
    except CorruptFile:
        return False
