"""The plan of a repair that puts another value in the place of the metadata that nodes have: one from before
an entry that none of them can apply, or one that an operator brings.

The cluster goes on under another id, so a node that took no part cannot bring back what was taken out. Epochs
never go back where a node has shown them: a value from before them is counted on from the newest that any
participant applied.

Invariant: a plan names the value, so that every participant comes to the same metadata whatever it holds, and
says what goes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import IDENTITY, LINEAGE, NodeState, Reset
from lockstep.metadata.lineage import ResetCluster
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import LogEntry, seal
from lockstep.metadata.log.recent_ids import RECENT_IDS, RecentIds
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.log.snapshot_file import dump_file, read_file
from lockstep.recovery import plan as planning
from lockstep.recovery.plan import STATES_HINT, Drawn, ResetPlan, require_sound
from lockstep.recovery.survey import Survey
from lockstep.values import codec
from lockstep.values.errors import CannotApply, CorruptFile, PreconditionError
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import RECOVERY_VALUE_BYTES_MAX

#: The `kind` in the lineage of a repair that took entries out of the log.
TRUNCATION: Final = "truncate"
#: Of one that put metadata of an operator's in the place of all that there was.
LOADED: Final = "load"
#: Of one that made other voters of the groups, whatever the old ones say.
FORCED: Final = "force-cms"


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What a node holds, as seen from an epoch. `broken`: why it applies no more; empty while it does.
    `committed`: the newest epoch that it knows to be committed. `voters`: by what it applied.
    `hash_before`: of the epoch before, empty where it does not know; `value_before`: whether it can make that
    epoch's value. `entries` begin at the epoch, and `more` is how many follow them. `phase`, `attempt` and
    `planned` (a cluster id): of a repair that it has prepared."""

    survey: Survey
    broken: str
    committed: int
    voters: tuple[NodeId, ...]
    hash_before: bytes
    value_before: bool
    entries: tuple[LogEntry, ...]
    more: int = 0
    phase: str = ""
    attempt: str = ""
    planned: str = ""

    @property
    def last_epoch(self) -> int:
        return max(self.survey.log_epoch, self.survey.epoch, self.committed)


class Cut(msgspec.Struct, frozen=True):
    """Take every entry from `epoch` on out of the log; `committed`: also those that may have been
    acknowledged."""

    epoch: int
    actor: str
    committed: bool = False


class Put(msgspec.Struct, frozen=True):
    """Put a value on `nodes` (all that answer when there are none), with these voters: the old ones when none
    are named."""

    kind: str
    actor: str
    voters: tuple[NodeId, ...] = ()
    nodes: tuple[NodeId, ...] = ()


def packed(value: ClusterMetadata) -> bytes:
    """A value as a plan has it. PreconditionError when it is too large for one."""
    told = zlib.compress(b"".join(dump_file(value)))
    if len(told) > RECOVERY_VALUE_BYTES_MAX:
        raise PreconditionError(
            f"the metadata has {len(told)} bytes, and a plan takes {RECOVERY_VALUE_BYTES_MAX}"
        )
    return told


def unpacked(told: bytes, registry: Registry) -> ClusterMetadata:
    """CorruptFile when it is no value."""
    try:
        return read_file([zlib.decompress(told)], registry.parts, "the value of a plan").value
    except zlib.error as error:
        raise CorruptFile("the value of a plan", 0, str(error)) from error


def counted_on(value: ClusterMetadata, epoch: int) -> ClusterMetadata:
    """The value at a later epoch than its own, after a history that nobody else has."""
    assert epoch > value.epoch, "epochs do not go back"
    hash_ = hashlib.blake2b(codec.encode(("counted on", epoch, value.hash)), digest_size=32).digest()
    ids = RECENT_IDS.set(RecentIds.from_listed(epoch + 1, ()))
    made = ClusterMetadata(epoch, hash_, value.parts.changed([ids]))
    made.validate()
    return made


def refuse_cut(cluster: ClusterMetadata, held: Sequence[Held], cut: Cut) -> None:
    """PreconditionError unless the group can do its work no more and the entries are there to be taken out.
    `cluster` is the value before them."""
    _refuse_foreign(cluster, held)
    last = max(one.last_epoch for one in held)
    if cut.epoch > last:
        raise PreconditionError(f"there is no entry {cut.epoch}: the log ends at epoch {last}")
    voters = max(held, key=lambda one: one.survey.epoch).voters
    working = [one.survey.node for one in held if not one.broken and one.survey.node in voters]
    if 2 * len(working) > len(voters):
        raise PreconditionError(
            f"{len(working)} of {len(voters)} voters can apply every entry: the group does its work",
            hint="nothing is taken out of the log of a group that lives; " + STATES_HINT,
        )
    differing = {one.hash_before for one in held if one.hash_before} | {cluster.hash}
    if len(differing) > 1:
        raise PreconditionError(
            f"nodes have different entries at epoch {cluster.epoch}", hint="truncate from an earlier one on"
        )
    committed = max(one.committed for one in held)
    if cut.epoch <= committed and not cut.committed:
        raise PreconditionError(
            f"entries up to epoch {committed} are committed: whoever asked for them may have been told so",
            hint="--below-commit-index takes them out all the same",
        )


def _refuse_foreign(cluster: ClusterMetadata, held: Sequence[Held]) -> None:
    own = cluster.identity.cluster_id
    foreign = sorted({one.survey.node for one in held if one.survey.cluster_id != own})
    if foreign:
        listed = ", ".join(map(str, foreign))
        raise PreconditionError(f"nodes {listed} belong to another incarnation of this cluster")


def plan_put(
    value: ClusterMetadata,
    current: ClusterMetadata,
    held: Sequence[Held],
    wish: Put,
    drawn: Drawn,
    registry: Registry,
    hashes: Iterable[tuple[int, bytes]] = (),
) -> ResetPlan:
    """`current` is what the node that plans has. PreconditionError when the value is of another cluster, or
    there is no way to do as wished."""
    _refuse_foreign(current, held)
    part = [one for one in held if not wish.nodes or one.survey.node in wish.nodes]
    here = {one.survey.node for one in part}
    missing = [node for node in (*wish.nodes, *wish.voters) if node not in here]
    if missing or not part:
        raise PreconditionError(
            f"nodes {', '.join(map(str, missing))} do not answer, or are not among the named"
        )
    newest = max(current.epoch, *(one.last_epoch for one in part))
    if value.hash == current.hash:
        ahead = [one.survey.node for one in part if one.survey.epoch > value.epoch]
        if ahead:
            raise PreconditionError(f"node {ahead[0]} has applied more than epoch {value.epoch}")
        lost = f"entries above epoch {value.epoch}, if there are any"
    else:
        lost = f"what entries up to epoch {newest} did and the metadata of epoch {value.epoch} do not have"
        value = _of_this_cluster(value, current)
        value = counted_on(value, newest) if newest >= value.epoch else value
        hashes = ()
    voters = tuple(sorted(wish.voters)) or max(part, key=lambda one: one.survey.epoch).voters
    unable = [node for node in wish.voters if not _may_vote(value, node)]
    if unable:
        raise PreconditionError(f"node {unable[0]} may not vote by these metadata")
    assert set(wish.voters) <= here, "who is named to vote takes part"
    goal = Goal(wish.kind, lost, wish.actor, voters, tuple(hashes))
    return replacement(value, [one.survey for one in part], goal, drawn, registry)


def _may_vote(value: ClusterMetadata, node: NodeId) -> bool:
    info = value.directory.by_id.get(node)
    return info is not None and info.may_vote and info.state is NodeState.NORMAL


def _of_this_cluster(value: ClusterMetadata, current: ClusterMetadata) -> ClusterMetadata:
    """The value with the lineage that the cluster has by now. PreconditionError when it is of another one."""
    theirs, own = value.identity.lineage, current.identity.lineage
    if not theirs or theirs != own[: len(theirs)]:
        raise PreconditionError(
            f"these metadata are of cluster {value.identity.cluster_id}, which this one never was"
        )
    after = value.changed(IDENTITY.set(current.identity), LINEAGE.set(current.parts[LINEAGE]))
    assert after.identity.cluster_id == current.identity.cluster_id, "it goes on as this cluster"
    return after


#: They say what files there are, not what the cluster is.
_OF_FILES: Final = (EntryKind.SNAPSHOT, EntryKind.TRUNCATE_LOG)


def edited(
    base: ClusterMetadata,
    entries: Sequence[LogEntry],
    registry: Registry,
    *,
    up_to: int,
    without: frozenset[int],
) -> ClusterMetadata:
    """What the entries up to an epoch make of a value when some of them are left out. PreconditionError when
    one of the others needs what was left out."""
    absent = sorted(without - {one.epoch for one in entries if one.epoch <= up_to})
    if absent:
        raise PreconditionError(f"there is no entry {absent[0]} that could be left out")
    value = base
    for entry in entries:
        if entry.epoch > up_to:
            break
        if entry.epoch in without or entry.kind in _OF_FILES:
            continue
        again = seal(
            epoch=value.epoch + 1,
            entry_id=entry.entry_id,
            kind=entry.kind,
            body=entry.body,
            actor=entry.actor,
            commit_time_us=entry.commit_time_us,
            term=entry.term,
            previous_hash=value.hash,
        )
        try:
            value = apply_entry(value, again, registry)
        except CannotApply as error:
            raise PreconditionError(
                f"entry {entry.epoch} cannot follow without what was left out: {error.message}",
                hint=f"leave it out too: --without {entry.epoch}",
            ) from error
    assert value.epoch <= up_to, "leaving out adds nothing"
    value.validate()
    return value


def plan_cut(
    before: ClusterMetadata,
    held: Sequence[Held],
    absent: Sequence[int],
    cut: Cut,
    drawn: Drawn,
    registry: Registry,
    hashes: Iterable[tuple[int, bytes]] = (),
) -> ResetPlan:
    """`before` is the value of the epoch before the cut. PreconditionError when there is nothing to cut, or
    no way to."""
    refuse_cut(before, held, cut)
    shown = max(one.survey.epoch for one in held)
    assert before.epoch == cut.epoch - 1, "the value is the one before what goes"
    value = counted_on(before, shown) if shown > before.epoch else before
    last = max(one.last_epoch for one in held)
    lost = f"entries {cut.epoch} to {last}"
    if absent:
        lost += f", and later ones that only nodes {', '.join(map(str, absent))} could know of"
    voters = max(held, key=lambda one: one.survey.epoch).voters
    goal = Goal(TRUNCATION, lost, cut.actor, voters, tuple(hashes))
    return replacement(value, [one.survey for one in held], goal, drawn, registry)


class Goal(msgspec.Struct, frozen=True):
    """What a repair that replaces the metadata is for. `voters`: who is to vote, those that take part.
    `hashes`: (epoch, hash) of the history that goes on."""

    kind: str
    lost: str
    actor: str
    voters: tuple[NodeId, ...]
    hashes: tuple[tuple[int, bytes], ...] = ()


def replacement(
    value: ClusterMetadata, answers: Sequence[Survey], goal: Goal, drawn: Drawn, registry: Registry
) -> ResetPlan:
    """The plan that puts `value` in the place of what nodes have. PreconditionError when nobody may vote."""
    here = [one for one in answers if NodeId(one.node) in value.directory.by_id]
    participants = tuple(sorted(NodeId(one.node) for one in here))
    kept = tuple(voter for voter in goal.voters if voter in participants)
    voters = kept if len(kept) == len(goal.voters) else planning.chosen(value, here, 0)
    if not voters:
        raise PreconditionError("none of the nodes that answer may vote")
    term = max(max(one.raft_term, one.log_term) for one in here) + 1
    source = planning.source_of(here)
    reset = Reset(drawn.cluster_id, goal.kind, goal.actor, value.epoch, value.hash, drawn.at_us, goal.lost)
    entries = _entries(value, ResetCluster(reset, voters), drawn, term, registry)
    made = ResetPlan(
        attempt=drawn.attempt,
        former_id=value.identity.cluster_id,
        cluster_id=drawn.cluster_id,
        cluster_name=value.identity.cluster_name,
        base_epoch=value.epoch,
        base_hash=value.hash,
        entries=entries,
        participants=participants,
        voters=voters,
        management=voters,
        ahead=NodeId(planning.ahead_of(here).node),
        source=NodeId(source.node),
        log_epoch=max(one.log_epoch for one in here),
        log_term=source.log_term,
        raft_index=max(one.raft_index for one in here) + 1,
        raft_term=term,
        expelled=tuple(sorted({host for one in here for host in one.expelled})),
        absent=tuple(
            node.id
            for node in value.directory.nodes
            if node.id not in participants and node.state is not NodeState.LEFT
        ),
        lost=goal.lost,
        kind=goal.kind,
        value=packed(value),
        hashes=goal.hashes,
    )
    require_sound(made)
    return made


def _entries(
    value: ClusterMetadata, naming: ResetCluster, drawn: Drawn, term: int, registry: Registry
) -> tuple[LogEntry, ...]:
    """The entry that gives the new id, and a snapshot's: with it a node's files begin."""

    def sealed(before: ClusterMetadata, kind: int, body: bytes, entry_id: bytes) -> LogEntry:
        return seal(
            epoch=before.epoch + 1,
            entry_id=entry_id,
            kind=kind,
            body=body,
            actor=naming.repaired.actor,
            commit_time_us=drawn.at_us,
            term=term,
            previous_hash=before.hash,
        )

    first = sealed(value, EntryKind.RESET_CLUSTER, codec.encode(naming), drawn.entry_id)
    named = apply_entry(value, first, registry)
    taken = TakeSnapshot("repair").prepared(named)
    second_id = hashlib.blake2b(drawn.entry_id, digest_size=len(drawn.entry_id)).digest()
    return first, sealed(named, EntryKind.SNAPSHOT, codec.encode(taken), second_id)


def begun(plan: ResetPlan, registry: Registry) -> tuple[ClusterMetadata, ClusterMetadata]:
    """The value under the new id before the snapshot's entry, and the one after it. CorruptFile, CannotApply
    when the plan does not make sense."""
    assert plan.value and len(plan.entries) == 2, "this plan replaces the metadata"
    value = unpacked(plan.value, registry)
    if (value.epoch, value.hash) != (plan.base_epoch, plan.base_hash):
        raise CorruptFile("the value of a plan", 0, "it is of another epoch than the plan")
    named, last = plan.entries
    before = apply_entry(value, named, registry)
    assert before.identity.cluster_id == plan.cluster_id, "the value goes on under the new id"
    return before, apply_entry(before, last, registry)


def problem_with(plan: ResetPlan, survey: Survey, *, broken: bool) -> str | None:
    """Why a node may not take part as planned, for people. `broken`: it can apply no more."""
    if survey.cluster_id != plan.former_id:
        return f"node {survey.node} is of cluster {survey.cluster_id}, and {plan.former_id} is repaired"
    if survey.node not in plan.participants:
        return f"node {survey.node} takes no part in this repair"
    if survey.epoch > plan.base_epoch:
        return f"node {survey.node} applied epoch {survey.epoch}, and the plan goes on at {plan.base_epoch}"
    if survey.freshness > (plan.log_term, plan.log_epoch):
        return f"node {survey.node} has a fresher log than the plan knows of"
    if survey.leader and not broken and plan.kind == TRUNCATION:
        return f"node {survey.node} knows a leader of the metadata group: node {survey.leader}"
    return None
