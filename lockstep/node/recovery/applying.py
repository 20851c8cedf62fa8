"""Carrying out an activated plan on the disk of a node that takes part in nothing yet.

Each part of it may be done again: a crash on the way leads to the same files. What it ends with, the record
that it was applied, is durable before the node has a voice in any group of the new cluster id; so nothing
that it promises there is ever wiped.

Invariant: the metadata is extended before the journal that may hold the last of it is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lockstep.consensus.configuration import Configuration
from lockstep.consensus.effects import HardState
from lockstep.consensus.messages import Snapshot
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import LINEAGE, NodeState, Reset
from lockstep.metadata.groups import management
from lockstep.metadata.groups.management import (
    EMPTY_STATE,
    Command,
    Found,
    Host,
    ManagementState,
    RecordVoters,
    Repair,
)
from lockstep.metadata.lineage import former_of, repair_of
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.registry import Registry
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP, RaftJournal, journal_path
from lockstep.node.log.metadata_member import SnapshotFacts
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.recovery.audit_file import AuditFile
from lockstep.node.recovery.recovery_file import RecoveryFile
from lockstep.node.recovery.replacing import replace_metadata
from lockstep.node.recovery.stepping_back import step_back
from lockstep.recovery.audit import Step, Told
from lockstep.recovery.living import Anew, anew_from, is_decided
from lockstep.recovery.plan import ResetPlan
from lockstep.recovery.steps import Applied, Migrating, Phase
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile, LockstepError

#: Where the new management group's log begins: behind the commands that its first state is made of.
_MANAGEMENT_INDEX = 2


async def apply_recovery(runtime: Runtime, registry: Registry, log: Callable[..., None]) -> None:
    """Carry out what was activated and not applied yet; at a node's start, before anything else is read."""
    file = RecoveryFile(runtime.disk)
    standing = file.load()
    if standing.phase not in (Phase.MIGRATING, Phase.ACTIVATED):
        return
    audit = AuditFile(runtime)
    audit.load()
    if standing.phase is Phase.MIGRATING:
        assert standing.move is not None, "who migrates knows where to"
        await _migrate(runtime, registry, standing.move)
        told = "it follows the log of that cluster, with no part in its groups"
        await audit.note(Told(Step.MIGRATED, standing.move.actor, told, cluster_id=standing.move.cluster_id))
        await file.record(Applied(standing.move.cluster_id))
        log("recovery.migrated", cluster=standing.move.cluster_id)
    if standing.phase is not Phase.ACTIVATED:
        return
    assert standing.plan is not None, "what was activated has a plan"
    plan = standing.plan
    probes = runtime.probes
    if plan.value:
        value = await replace_metadata(runtime, registry, plan)
    else:
        value = await _extend_metadata(runtime, registry, plan)
    probes.reach("recovery.extended")
    own = value.directory.by_host_id[IdentityFile(runtime).load().host_id].id
    await begin_groups(runtime, plan.anew, value, own)
    await IdentityFile(runtime).move(plan.cluster_id)
    probes.reach("recovery.moved")
    told = f"the log goes on at epoch {value.epoch}; voters {plan.voters}"
    await audit.note(Told(Step.APPLIED, plan.actor, told, plan.attempt, plan.cluster_id))
    await file.record(Applied(plan.cluster_id))
    probes.reach("recovery.applied")
    log("recovery.applied", attempt=plan.attempt, cluster=plan.cluster_id, epoch=value.epoch)


async def follow_the_log(
    runtime: Runtime,
    state: MetadataState,
    identity: IdentityFile,
    audit: AuditFile,
    log: Callable[..., None],
) -> None:
    """Begin the groups anew where the last entry that this node applied gave its cluster another id; at its
    start, once its metadata is read. CannotApply when entries follow that one under the former id."""
    value, bound = state.current, identity.value.cluster_id
    if not is_decided(bound, value.identity):
        return
    (last,) = state.retained(value.epoch, value.epoch)
    anew = anew_from(value, last)
    # The last of it may be in the journal alone, which is about to be replaced.
    await state.store.flush()
    runtime.probes.reach("recovery.extended")
    own = value.directory.by_host_id[identity.value.host_id].id
    repaired: Reset = value.parts[LINEAGE][-1]
    told = f"{repaired.kind}: the log gives the cluster another id{': ' * bool(repaired.lost)}{repaired.lost}"
    await audit.note(Told(Step.APPLIED, repaired.actor, told, anew.attempt, anew.cluster_id))
    await begin_groups(runtime, anew, value, own)
    await identity.move(anew.cluster_id)
    runtime.probes.reach("recovery.moved")
    log("recovery.followed", cluster=anew.cluster_id, epoch=value.epoch)


async def begin_groups(runtime: Runtime, anew: Anew, value: ClusterMetadata, own: int) -> None:
    """Write what this node's members of both groups begin with, `value` is that of the entry behind which."""
    await _begin_management(runtime, anew, value, own)
    runtime.probes.reach("recovery.managed")
    await _begin_metadata_group(runtime, anew, own)
    runtime.probes.reach("recovery.grouped")


async def _migrate(runtime: Runtime, registry: Registry, move: Migrating) -> None:
    """Follow the log of the repaired cluster from now on, with no part in its groups before that log says
    so. What the journals have beyond what was applied is dropped: no majority is known to have had it."""
    broken: list[LockstepError] = []
    state = MetadataState(runtime, registry, broken.append)
    if move.epoch >= 0:
        await step_back(runtime.disk, move.epoch)
        runtime.probes.reach("recovery.stepped_back")
    state.load(quiet=True, up_to=move.epoch)
    # The last of what was applied may be in the journal alone.
    await state.store.flush()
    await _forget_journal(runtime, MANAGEMENT_GROUP)
    await _forget_journal(runtime, METADATA_GROUP)
    runtime.probes.reach("recovery.journals_forgotten")
    await IdentityFile(runtime).move(move.cluster_id)


async def _extend_metadata(runtime: Runtime, registry: Registry, plan: ResetPlan) -> ClusterMetadata:
    """Put the plan's entries behind what this node has; the value after them."""
    broken: list[LockstepError] = []
    state = MetadataState(runtime, registry, broken.append)
    state.load(quiet=True)
    value = state.current
    if value.epoch < plan.base_epoch:
        raise CorruptFile(
            "metadata", 0, f"it ends at epoch {value.epoch}, and had {plan.base_epoch} when a repair began"
        )
    for entry in plan.entries:
        if entry.epoch <= value.epoch:
            if state.hash_at(entry.epoch) != entry.hash:
                raise CorruptFile(
                    "metadata", 0, f"it has another entry at epoch {entry.epoch} than the repair"
                )
            continue
        value = apply_entry(value, entry, registry)
        state.store.keep([entry])
    await state.store.flush()
    return value


async def _begin_management(runtime: Runtime, plan: Anew, value: ClusterMetadata, own: int) -> None:
    """Every first member begins with one state, so none of them waits for another's first command."""
    if own not in plan.management:
        await _forget_journal(runtime, MANAGEMENT_GROUP)
        return
    state = first_state(plan, value)
    snapshot = Snapshot(
        _MANAGEMENT_INDEX, plan.raft_term, Configuration(plan.management), management.encode_state(state)
    )
    journal = RaftJournal(runtime.disk, MANAGEMENT_GROUP)
    await journal.replace(HardState(term=plan.raft_term), snapshot, (), _MANAGEMENT_INDEX)


def first_state(plan: Anew, value: ClusterMetadata) -> ManagementState:
    """What the new management group begins with: all of it follows from plan and metadata."""
    repairs: tuple[Reset, ...] = value.parts[LINEAGE]
    repair = repair_of(repairs[-1]) if repairs else Repair()
    assert not repairs or repairs[-1].cluster_id == plan.cluster_id, "the metadata's last repair is this one"
    here = [node for node in value.directory.nodes if node.state is not NodeState.LEFT]
    known = {node.host_id for node in value.directory.nodes}
    gone = {node.host_id for node in value.directory.nodes if node.state is NodeState.LEFT} | {*plan.expelled}
    found = Found(
        plan.cluster_id,
        plan.cluster_name,
        (
            *(Host(node.host_id, node.address, node.internode_port, node.id) for node in here),
            *(host for host in plan.admitted if host.host_id not in known),
        ),
        repair,
        former_of(value.identity, repairs),
    )
    record = RecordVoters(plan.voters, plan.raft_index, value.epoch, value.service.recovery_generation)
    state = EMPTY_STATE
    actions: tuple[Any, ...] = (found, record)
    for index, action in enumerate(actions, 1):
        command_id = encode((plan.attempt, index))[-management.COMMAND_ID_BYTES :].rjust(16, b"\0")
        state = management.apply(state, index, Command(command_id, index - 1, plan.last.actor, action))
        outcome = state.outcome_of(command_id)
        assert outcome is not None and outcome.refusal is None, f"{action} is refused: {outcome}"
    expelled = gone - {node.host_id for node in state.nodes}
    state = msgspec.structs.replace(state, expelled=tuple(sorted(expelled)))
    assert state.index == _MANAGEMENT_INDEX, "the log begins behind what the state is made of"
    state.validate()
    return state


async def _begin_metadata_group(runtime: Runtime, plan: Anew, own: int) -> None:
    """A voter of the new group begins behind the whole history, which it has; others have no part in it."""
    if own not in plan.voters:
        await _forget_journal(runtime, METADATA_GROUP)
        return
    last = plan.last
    facts = SnapshotFacts(last.epoch, last.hash, b"", len(last.body))
    snapshot = Snapshot(
        plan.raft_index, plan.raft_term, Configuration(plan.voters), encode(facts), facts.size_bytes
    )
    journal = RaftJournal(runtime.disk, METADATA_GROUP)
    await journal.replace(HardState(term=plan.raft_term), snapshot, (), plan.raft_index)


async def _forget_journal(runtime: Runtime, group: int) -> None:
    path = journal_path(group)
    if runtime.disk.exists(path):
        runtime.disk.remove(path)
        await runtime.disk.sync_names(path.rpartition("/")[0])
