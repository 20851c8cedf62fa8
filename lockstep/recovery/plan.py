"""The plan of a repair of both groups after their majority was lost.

All that is left of the metadata's history goes on: the participant with the freshest log, by term of its last
entry and then by epoch, gives what others lack, also entries that no majority is known to have had. An entry
that any participant applied is in that log: who led in the later term had every entry that was committed
before it.

Invariant: a plan names all that its participants need, so that they carry it out without asking each other
again, and equal answers give equal plans but for the ids that are drawn. Every new voter takes part. Source:
IEP-128; two phases and the plan are ours (docs/decisions/0078).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState, Reset
from lockstep.metadata.groups.management import Host
from lockstep.metadata.groups.ringed import QUORUM
from lockstep.metadata.groups.voter_choice import size_for
from lockstep.metadata.lineage import MANAGEMENT_RESET, ResetCluster, ResetManagement
from lockstep.metadata.log.entries import LogEntry, seal, verify_chain
from lockstep.metadata.log.registry import EntryKind
from lockstep.recovery.living import Anew, management_lost
from lockstep.recovery.survey import Survey
from lockstep.values import codec
from lockstep.values.errors import PreconditionError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import METADATA_VOTERS_MAX

#: The `kind` of a repair of both groups in the lineage.
RESET: Final = "reset"
STATES_HINT: Final = "`lockstep recovery cluster states metastorage --local` shows what each node has"


class Wish(msgspec.Struct, frozen=True):
    """What an operator asks for. `management`: the first members of the new management group; empty: the new
    voters. `size`: of the metadata group; 0: what suits the participants. `excluded`: nodes that take no part
    although they may answer, as one that hangs. `keeps_managers`: the members that the management group has,
    of those that take part; its leader says who they are."""

    management: tuple[NodeId, ...] = ()
    size: int = 0
    actor: str = ""
    excluded: tuple[NodeId, ...] = ()
    keeps_managers: bool = False
    #: No groups are made anew: what is left goes on on the ring, by majorities.
    to_ring: bool = False


class ResetPlan(msgspec.Struct, frozen=True, array_like=True):
    """`entries` follow epoch `base_epoch`, which every participant reaches first, from node `ahead`, and end
    with the one that names the new cluster id. `source` has the freshest log, to `log_epoch` in `log_term`.
    The new groups begin in `raft_term`, that of the metadata behind `raft_index`: above all that the old ones
    are known to have had.
    `absent`: nodes that did not answer. `lost` says what may be missing, for people; empty for nothing.
    `value`: the metadata that is put in the place of what participants have; `base_epoch` is its epoch then,
    and a snapshot's entry follows the one with the new id. `hashes`: (epoch, hash) of the history before it.
    """

    attempt: str
    former_id: str
    cluster_id: str
    cluster_name: str
    base_epoch: int
    base_hash: bytes
    entries: tuple[LogEntry, ...]
    participants: tuple[NodeId, ...]
    voters: tuple[NodeId, ...]
    management: tuple[NodeId, ...]
    ahead: NodeId
    source: NodeId
    log_epoch: int
    log_term: int
    raft_index: int
    raft_term: int
    expelled: tuple[str, ...]
    absent: tuple[NodeId, ...]
    lost: str
    #: The metadata group works, and decides this itself: `entries` shows what it is asked to append.
    by_log: bool = False
    kind: str = RESET
    value: bytes = b""
    hashes: tuple[tuple[int, bytes], ...] = ()
    #: Without groups: how members of the ring that is left agree.
    ring_mode: str = ""

    @property
    def last(self) -> LogEntry:
        return self.entries[-1]

    @property
    def anew(self) -> Anew:
        return Anew(
            self.attempt,
            self.cluster_id,
            self.cluster_name,
            self.voters,
            self.management,
            self.raft_index,
            self.raft_term,
            self.expelled,
            self.last,
        )

    @property
    def actor(self) -> str:
        """Who asked for it."""
        return self.last.actor

    @property
    def digest(self) -> str:
        """Over what the plan follows from and what it does, not over the ids that were drawn for it."""
        told = (
            self.former_id,
            # The log of a group that works goes on meanwhile, and nothing of it is lost.
            *((0, b"") if self.by_log else (self.base_epoch, self.base_hash)),
            [one.hash for one in self.entries[:-1]],
            self.participants,
            self.voters,
            self.management,
            self.source,
            self.absent,
            self.kind,
            *((self.ring_mode,) if self.ring_mode else ()),
            hashlib.blake2b(self.value).digest(),
        )
        return hashlib.blake2b(codec.encode(told), digest_size=16).hexdigest()


class Drawn(msgspec.Struct, frozen=True):
    """What is drawn for an attempt: ids, and the wall clock of who plans."""

    attempt: str
    cluster_id: str
    entry_id: bytes
    at_us: int


def require_sound(plan: ResetPlan) -> None:
    """Assert what participants rely on."""
    assert {*plan.voters} <= {*plan.participants}, "who votes takes part"
    assert {*plan.management} <= {*plan.participants}, "who manages takes part"
    assert not {*plan.absent} & {*plan.participants}, "who is absent takes no part"
    assert plan.by_log or plan.source in plan.participants, "the freshest log is one of theirs"
    wanted = EntryKind.RESET_MANAGEMENT if plan.by_log else EntryKind.RESET_CLUSTER
    naming = plan.entries[0] if plan.value else plan.last
    assert naming.kind == wanted, "an entry gives the new id"
    steps = [one.epoch - plan.base_epoch for one in plan.entries]
    assert steps == [*range(1, len(steps) + 1)], "entries follow the base without a gap"


def source_of(answers: Sequence[Survey]) -> Survey:
    """Whose log goes on."""
    return max(answers, key=lambda one: (one.freshness, one.epoch, -one.node))


def ahead_of(answers: Sequence[Survey]) -> Survey:
    """Who applied most."""
    return max(answers, key=lambda one: (one.epoch, -one.node))


def refuse(cluster: ClusterMetadata, answers: Sequence[Survey], wish: Wish) -> None:
    """PreconditionError unless there is something to repair and the wish fits who is there."""
    taking_part = part_of(answers, wish)
    foreign = [one.node for one in taking_part if one.cluster_id != cluster.identity.cluster_id]
    if foreign:
        raise PreconditionError(f"nodes {_listed(foreign)} belong to another incarnation of this cluster")
    lives = working(cluster, answers, wish)
    if lives and not management_lost(cluster, taking_part):
        raise PreconditionError(
            f"the metadata group has a majority: {lives}", hint="there is nothing to repair; " + STATES_HINT
        )
    if lives and not any(one.leader for one in taking_part):
        raise PreconditionError(
            "the metadata group has a majority, and no leader yet", hint="wait until one is elected"
        )
    if wish.to_ring:
        _refuse_ring(cluster, taking_part, wish, works=bool(lives))
    _refuse_wish(cluster, taking_part, wish)


def part_of(answers: Sequence[Survey], wish: Wish) -> list[Survey]:
    """Answers of those that take part."""
    return [one for one in answers if one.node not in wish.excluded]


def working(cluster: ClusterMetadata, answers: Sequence[Survey], wish: Wish) -> str:
    """Why the metadata group has a majority, as far as the answers tell; empty when it has none. Who is left
    out counts as gone, unless somebody leads."""
    leaders = sorted({one.leader for one in answers if one.leader})
    here = {one.node for one in part_of(answers, wish)}
    living = [voter for voter in cluster.voters if voter in here]
    if leaders:
        return f"node {leaders[0]} leads it"
    has_most = 2 * len(living) > len(cluster.voters)
    return f"{len(living)} of {len(cluster.voters)} voters answer" if has_most else ""


def _refuse_ring(cluster: ClusterMetadata, answers: Sequence[Survey], wish: Wish, *, works: bool) -> None:
    """PreconditionError unless what is left can go on on the ring."""
    if works:
        raise PreconditionError(
            "the metadata group works, and a log that works does not become a ring",
            hint="`lockstep recovery cluster reset` without --to-ring repairs the management group",
        )
    if wish.management or wish.size or wish.keeps_managers:
        raise PreconditionError("on the ring there are no groups whose members could be named")
    here = {one.node for one in answers}
    if not any(node.owns_tokens for node in cluster.directory.nodes if node.id in here):
        raise PreconditionError("none of the nodes that answer owns tokens, so none would have a voice")


def _refuse_wish(cluster: ClusterMetadata, answers: Sequence[Survey], wish: Wish) -> None:
    here = {one.node for one in answers}
    if wish.size < 0 or wish.size > METADATA_VOTERS_MAX or (wish.size and wish.size % 2 == 0):
        raise PreconditionError(
            f"the metadata group has an odd number of voters up to {METADATA_VOTERS_MAX}, not {wish.size}"
        )
    able = len(_able(cluster, answers))
    if not able:
        raise PreconditionError("none of the nodes that answer may vote")
    if wish.size > able:
        raise PreconditionError(f"{wish.size} voters are asked for, and {able} of those that answer may vote")
    if len(set(wish.management)) != len(wish.management):
        raise PreconditionError("the management group names each node once")
    missing = [node for node in wish.management if node not in here]
    if missing:
        why = "take no part" if {*missing} <= {*wish.excluded} else "do not answer"
        raise PreconditionError(f"nodes {_listed(missing)} of the management group {why}")


def make_plan(
    cluster: ClusterMetadata,
    answers: Sequence[Survey],
    tail: Sequence[LogEntry],
    wish: Wish,
    drawn: Drawn,
) -> ResetPlan:
    """`cluster` is the value at the newest epoch that any of them applied, `tail` what the source's log has
    beyond it.

    PreconditionError when there is nothing to repair, or no way to do as wished.
    """
    refuse(cluster, answers, wish)
    if working(cluster, answers, wish):
        return plan_by_log(cluster, part_of(answers, wish), wish, drawn)
    answers = part_of(answers, wish)
    source = source_of(answers)
    ahead = ahead_of(answers)
    assert (ahead.epoch, ahead.hash) == (cluster.epoch, cluster.hash), "the value is the newest"
    last_epoch, last_hash = (tail[-1].epoch, tail[-1].hash) if tail else (cluster.epoch, cluster.hash)
    problem = verify_chain(tail, epoch=cluster.epoch, previous_hash=cluster.hash)
    if problem is not None or source.log_epoch != last_epoch:
        raise PreconditionError(
            f"the freshest log, of node {source.node}, does not go on where node {ahead.node} is: "
            f"{problem or f'it ends at epoch {source.log_epoch}'}",
            hint=STATES_HINT,
        )
    participants = tuple(sorted(NodeId(one.node) for one in answers))
    absent = _absent(cluster, participants)
    voters = () if wish.to_ring else chosen(cluster, answers, wish.size)
    lost = _lost(cluster, last_epoch, absent)
    repaired = Reset(drawn.cluster_id, RESET, wish.actor, last_epoch, last_hash, drawn.at_us, lost)
    term = max(max(one.raft_term, one.log_term) for one in answers) + 1
    management = tuple(sorted(wish.management)) or voters
    named = management if management != voters else ()
    reset = _reset_for(wish, repaired, voters, named, absent)
    entry = seal(
        epoch=last_epoch + 1,
        entry_id=drawn.entry_id,
        kind=EntryKind.RESET_CLUSTER,
        body=codec.encode(reset),
        actor=wish.actor,
        commit_time_us=drawn.at_us,
        term=term,
        previous_hash=last_hash,
    )
    made = ResetPlan(
        attempt=drawn.attempt,
        former_id=cluster.identity.cluster_id,
        cluster_id=drawn.cluster_id,
        cluster_name=cluster.identity.cluster_name,
        base_epoch=cluster.epoch,
        base_hash=cluster.hash,
        entries=(*tail, entry),
        participants=participants,
        voters=voters,
        management=management,
        ahead=NodeId(ahead.node),
        source=NodeId(source.node),
        log_epoch=source.log_epoch,
        log_term=source.log_term,
        raft_index=max(one.raft_index for one in answers) + 1,
        raft_term=term,
        expelled=tuple(sorted({host for one in answers for host in one.expelled})),
        absent=absent,
        lost=lost,
        ring_mode=reset.ring_mode,
    )
    require_sound(made)
    return made


def _reset_for(
    wish: Wish,
    repaired: Reset,
    voters: tuple[NodeId, ...],
    management: tuple[NodeId, ...],
    absent: tuple[NodeId, ...],
) -> ResetCluster:
    """Who is absent from a ring is asked for nothing any more, or those that are left could be too few to
    agree."""
    if wish.to_ring:
        return ResetCluster(repaired, voters, management, QUORUM, absent)
    return ResetCluster(repaired, voters, management)


def _absent(cluster: ClusterMetadata, participants: Sequence[NodeId]) -> tuple[NodeId, ...]:
    return tuple(
        node.id
        for node in cluster.directory.nodes
        if node.id not in participants and node.state is not NodeState.LEFT
    )


class Kept(msgspec.Struct, frozen=True):
    """What the new management group begins with besides what metadata say: see ResetManagement. `lost`: what
    goes, for people."""

    kind: str = MANAGEMENT_RESET
    lost: str = ""
    admitted: tuple[Host, ...] = ()
    expelled: tuple[str, ...] = ()


NOTHING_KEPT: Final = Kept()


def plan_by_log(
    cluster: ClusterMetadata, answers: Sequence[Survey], wish: Wish, drawn: Drawn, kept: Kept = NOTHING_KEPT
) -> ResetPlan:
    """The metadata group works: it is asked to end this cluster id itself. Who votes goes on to vote, of
    those that take part."""
    participants = tuple(sorted(NodeId(one.node) for one in answers))
    absent = _absent(cluster, participants)
    voting = [one for one in answers if one.node in cluster.voters]
    voters = chosen(cluster, voting if not wish.size else answers, wish.size)
    management = tuple(sorted(wish.management)) or voters
    repaired = Reset(
        drawn.cluster_id, kept.kind, wish.actor, cluster.epoch, cluster.hash, drawn.at_us, kept.lost
    )
    named = management if management != voters else ()
    change = ResetManagement(repaired, voters, named, kept.admitted, kept.expelled)
    term = max(one.log_term for one in answers)
    entry = seal(
        epoch=cluster.epoch + 1,
        entry_id=drawn.entry_id,
        kind=EntryKind.RESET_MANAGEMENT,
        body=codec.encode(change),
        actor=wish.actor,
        commit_time_us=drawn.at_us,
        term=term,
        previous_hash=cluster.hash,
    )
    made = ResetPlan(
        attempt=drawn.attempt,
        former_id=cluster.identity.cluster_id,
        cluster_id=drawn.cluster_id,
        cluster_name=cluster.identity.cluster_name,
        base_epoch=cluster.epoch,
        base_hash=cluster.hash,
        entries=(entry,),
        participants=participants,
        voters=voters,
        management=management,
        ahead=participants[0],
        source=NodeId(next(one.leader for one in answers if one.leader)),
        log_epoch=cluster.epoch,
        log_term=term,
        raft_index=entry.epoch + 1,
        raft_term=term + 1,
        expelled=kept.expelled,
        absent=absent,
        lost=kept.lost,
        by_log=True,
        kind=kept.kind if kept.kind != MANAGEMENT_RESET else RESET,
    )
    require_sound(made)
    return made


def _able(cluster: ClusterMetadata, answers: Sequence[Survey]) -> list[NodeInfo]:
    found = (cluster.directory.by_id.get(NodeId(one.node)) for one in answers)
    return [
        node
        for node in found
        if node is not None and node.may_vote and node.state in (NodeState.NORMAL, NodeState.REBUILDING)
    ]


def chosen(cluster: ClusterMetadata, answers: Sequence[Survey], size: int) -> tuple[NodeId, ...]:
    """The freshest first, each next one from the data centre and rack with the fewest so far."""
    able = _able(cluster, answers)
    wanted = size or min(size_for(len(able)), len(able) - 1 + len(able) % 2)
    fresh: Mapping[int, tuple[int, int]] = {one.node: one.freshness for one in answers}
    chosen: list[NodeInfo] = []
    while len(chosen) < wanted:
        dcs, racks = Counter(n.dc for n in chosen), Counter((n.dc, n.rack) for n in chosen)
        left = [node for node in able if node not in chosen]
        chosen.append(
            min(
                left,
                key=lambda n: (
                    dcs[n.dc] if chosen else 0,
                    racks[n.dc, n.rack] if chosen else 0,
                    *(-part for part in fresh[n.id]),
                    n.id,
                ),
            )
        )
    assert fresh[chosen[0].id] == max(fresh[node.id] for node in able), "one of the freshest is in"
    return tuple(sorted(node.id for node in chosen))


def _lost(cluster: ClusterMetadata, last_epoch: int, absent: Sequence[NodeId]) -> str:
    """What may be lost by going on without the absent, for people; empty for nothing."""
    voters = [node for node in absent if node in cluster.voters]
    if not voters:
        return ""
    knows = _listed(absent)
    return f"entries above epoch {last_epoch}, if there are any: only nodes {knows} could know of them"


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(str(node) for node in nodes)


def check_against(plan: ResetPlan, own: Survey) -> None:
    """Rejected when a participant is not as the plan has it: what it knows would be lost unseen."""
    if own.cluster_id != plan.former_id:
        raise Rejected(f"node {own.node} is of cluster {own.cluster_id}, and {plan.former_id} is repaired")
    if own.node not in plan.participants:
        raise Rejected(f"node {own.node} takes no part in this repair")
    if own.leader:
        raise Rejected(f"node {own.node} knows a leader of the metadata group: node {own.leader}")
    if (own.epoch, own.hash) != (plan.base_epoch, plan.base_hash):
        raise Rejected(f"node {own.node} is at epoch {own.epoch}, and the plan begins at {plan.base_epoch}")
    if own.freshness > (plan.log_term, plan.log_epoch):
        raise Rejected(f"node {own.node} has a fresher log than the plan knows of")
