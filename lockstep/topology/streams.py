"""Who streams what from whom when a pending replica is filled.

Invariant: the sources together hold every write that was acknowledged at QUORUM (of any data centre) under
the old group. The replica that gives the range up does, as far as the group can tell: replacing it by a
copy of itself keeps every quorum. Where nobody gives up, or that one is dead, a read quorum of the old
group does (of each data centre, where the strategy counts per data centre), and with some of it dead,
any number that every write quorum must meet. Whoever the operation was told is dead is no source, nor is a
replica that a degraded range says lacks writes. Where a replication changes, replicas that stay are filled
too, as far as the new counts need it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded, handed_on
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.deltas import Passage, refilled
from lockstep.placement.quorums import DcOf, dc_factors, majority
from lockstep.placement.witnesses import full_of
from lockstep.topology.kind import Mover, kind_of, moving
from lockstep.topology.roles import promoted
from lockstep.topology.stages import Filling, StreamTask
from lockstep.topology.tablets import stages as courses
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

_NOBODY = NodeId(0)


def stream_plan(mover: Mover, cluster: ClusterMetadata, dead: Sequence[NodeId]) -> tuple[StreamTask, ...]:
    """One task for each pending replica of each transition, in the order of the transitions.

    A kind may have others instead. A range without (other) old replicas has nothing
    to copy and needs no task.
    """
    dc_of = cluster.directory.dc_by_id.__getitem__
    dead_one = mover.about.presumed_dead
    gone = (dead_one,) if dead_one else ()
    tasks: list[StreamTask] = []
    for transition in moving(cluster, mover):
        for piece, lacking in pieces(transition, cluster.degraded):
            absent = (*dead, *gone, *shunned(mover, piece, lacking, dc_of))
            if not isinstance(mover, Lone):
                found = kind_of(mover).tasks(mover, piece, dc_of, absent, lacking)
            elif courses.COURSES[mover.kind].filling is Filling.GIVERS:
                found = tasks_of_givers(piece, dc_of, absent, lacking)
            else:
                found = tasks_of_quorum(piece, dc_of, absent, lacking)
            if piece.replication.has_witnesses:
                found = list(_with_data(found, piece, dc_of, absent))
            tasks.extend(found)
    return tuple(tasks)


def _with_data(
    tasks: Sequence[StreamTask], piece: Transition, dc_of: DcOf, absent: Sequence[NodeId]
) -> Iterator[StreamTask]:
    """The tasks of a piece with a source that keeps data for each target that is to keep it, and those of
    witnesses that become full replicas. A witness has ids for others, and mutations, and no tables."""
    before = full_of(piece.replication, piece.old, dc_of)
    after = full_of(piece.replication_after, piece.new, dc_of)
    fill = [node for node in promoted(piece, dc_of) if all(task.target != node for task in tasks)]
    known = (
        *tasks,
        *(StreamTask(node, piece.group, piece.range, (_NOBODY,), needs_all=True) for node in fill),
    )
    for task in known:
        sources = tuple(node for node in task.sources if node != _NOBODY)
        if task.target in after and task.sources and not any(node in before for node in sources):
            with_data = [node for node in before if node not in absent and node != task.target]
            sources = (*sources, with_data[0]) if with_data else ()
        assert task.target not in sources, "nobody is filled from itself"
        yield msgspec.structs.replace(task, sources=sources)


def pieces(
    transition: Transition, degraded: Sequence[Degraded]
) -> list[tuple[Transition, tuple[NodeId, ...]]]:
    """The transition cut where degraded ranges of its group begin and end, and with each piece the old
    replicas that lack writes there."""
    whole = transition.range
    lines = [
        line
        for line in degraded
        if line.lacking and line.group == transition.group and line.range.intersects(whole)
    ]
    if not lines:
        return [(transition, ())]
    ends = {end for line in lines for end in (line.range.left, line.range.right)}
    cuts = [whole.left, *sorted(end for end in ends if whole.left < end < whole.right), whole.right]
    assert all(left < right for left, right in itertools.pairwise(cuts)), "each piece has tokens"
    found = []
    for left, right in itertools.pairwise(cuts):
        range_ = Range(left, right)
        lacked = {node for line in lines if line.range.intersects(range_) for node in line.lacking}
        lacking = tuple(node for node in transition.old if node in lacked)
        found.append((msgspec.structs.replace(transition, range=range_), lacking))
    assert found[0][0].range.left == whole.left and found[-1][0].range.right == whole.right, "nothing is lost"
    return found


def shunned(mover: Mover, piece: Transition, lacking: tuple[NodeId, ...], dc_of: DcOf) -> tuple[NodeId, ...]:
    """Of the replicas that lack writes, those that are no sources: all, unless too few others are left.

    Where too few are, the range may have lost writes whoever is asked, and everyone is. It follows from the
    metadata alone, so all know afterwards who was filled from whom.
    """
    if not lacking:
        return ()
    gone = mover.about.presumed_dead
    absent = (*lacking, gone) if gone else lacking
    if isinstance(mover, Lone):
        return lacking if read_quorum(piece, dc_of, absent) else ()
    return lacking if kind_of(mover).sources(mover, piece, dc_of, absent) else ()


def tasks_of_givers(
    transition: Transition, dc_of: DcOf, dead: Sequence[NodeId], lacking: Sequence[NodeId]
) -> list[StreamTask]:
    """Who gives a range up fills who gets it. A giver that lacks writes is never the only source, also where
    it is needed as one of several."""
    per_dc = bool(dc_factors(transition.replication))
    if not transition.old:
        return []
    givers: dict[str, list[NodeId]] = {}
    for node in transition.lost:
        givers.setdefault(dc_of(node) if per_dc else "", []).append(node)
    tasks = []
    for target in transition.gained:
        giving = givers.get(dc_of(target) if per_dc else "", [])
        giver = giving.pop(0) if giving else None
        if giver is not None and giver not in dead and giver not in lacking:
            sources: tuple[NodeId, ...] = (giver,)
        else:
            sources = read_quorum(transition, dc_of, dead)
        assert target not in sources, "nobody is filled from itself"
        tasks.append(StreamTask(target, transition.group, transition.range, sources, needs_all=True))
    return tasks


def tasks_of_quorum(
    transition: Transition, dc_of: DcOf, dead: Sequence[NodeId], lacking: Sequence[NodeId]
) -> list[StreamTask]:
    """A read quorum of the old group fills the gained replicas. Where one replica only gives up, it alone
    fills those that stay and need it: what it lacks is on enough of them.

    Where some lack writes, counts say nothing of what only the others have: who gives up fills all that stay,
    and where too few others are left everyone is asked.
    """
    if not transition.old:
        return []
    kept = refills(transition, dc_of)
    if lacking and transition.lost:
        kept = tuple(node for node in transition.new if node in transition.old)
    sources = read_quorum(transition, dc_of, dead) if transition.gained or kept else ()
    if sources and any(node not in dead for node in lacking):
        sources = tuple(node for node in transition.old if node not in dead)
    giver = transition.lost[0] if len(transition.lost) == 1 and not transition.gained else _NOBODY
    tasks = []
    for target in (*transition.gained, *kept):
        named = (giver,) if giver and giver not in dead else sources
        others = tuple(node for node in named if node != target)
        if named and not others:
            continue
        assert {*others} <= {*transition.old}, "who has a range fills others"
        tasks.append(StreamTask(target, transition.group, transition.range, others, needs_all=True))
    return tasks


def filled_nodes(mover: Mover, cluster: ClusterMetadata) -> tuple[NodeId, ...]:
    """Who may be filled meanwhile, whoever is alive, ascending."""
    dc_of = cluster.directory.dc_by_id.__getitem__
    found: dict[NodeId, None] = {}
    for transition in moving(cluster, mover):
        filled = (*transition.gained, *refills(transition, dc_of), *promoted(transition, dc_of))
        found.update(dict.fromkeys(filled))
    if not isinstance(mover, Lone):
        found.update(dict.fromkeys(kind_of(mover).also_filled(mover, cluster)))
    return tuple(sorted(found))


def refills(transition: Transition, dc_of: DcOf) -> tuple[NodeId, ...]:
    """Replicas that stay and are filled before reads move, in ring order."""
    if transition.new_replication is None:
        return ()
    before, after = transition.replication, transition.new_replication
    return refilled(Passage(transition.old, transition.new, before, after), dc_of)


def read_quorum(
    transition: Transition,
    dc_of: DcOf,
    dead: Sequence[NodeId],
    source_dc: str = "",
    doubted: NodeId = _NOBODY,
) -> tuple[NodeId, ...]:
    """Live old replicas that meet every acknowledged write; empty when too few are alive.

    A group smaller than a quorum cannot have acknowledged one, but what it holds still counts: all of
    it is needed then. With `source_dc`, only that data centre's replicas, and the writes it acknowledged.
    `doubted` is a live member whose own copy counts for nothing: where it is the only one, nobody is asked.
    """
    factors = dc_factors(transition.replication)
    chosen: list[NodeId] = []
    for dc, factor in factors or ((source_dc, transition.replication.total),):
        if source_dc and dc != source_dc:
            continue
        members = [node for node in transition.old if not dc or dc_of(node) == dc]
        others = [node for node in members if node != doubted]
        live = [node for node in others if node not in dead]
        if len(live) < min(sources_min(len(members), factor), len(others)):
            return ()
        assert doubted not in live and len(live) <= len(members), "live ones are members"
        chosen.extend(live[: majority(factor)])
    if transition.replication.has_witnesses:
        keeping = full_of(transition.replication, transition.old, dc_of)
        if all(node in dead or node == doubted for node in keeping):
            return ()
    return tuple(node for node in transition.old if node in chosen)


def sources_of(
    operation: Operation, transition: Transition, dc_of: DcOf, absent: Sequence[NodeId]
) -> tuple[NodeId, ...]:
    """`read_quorum`, for a kind that asks every old replica alike."""
    return read_quorum(transition, dc_of, absent)


def sources_min(members: int, factor: int) -> int:
    """How many of a group's members are sure to meet every write quorum of it."""
    assert members >= 0 and factor >= 0, "numbers of replicas"
    quorum = majority(factor)
    needed = members if members < quorum else members - quorum + 1
    assert needed <= members, "who has a range fills others"
    return needed


def enough(transition: Transition, dc_of: DcOf, absent: Sequence[NodeId]) -> bool:
    """Whether every acknowledged write of the range is on an old replica that is not absent."""
    return bool(read_quorum(transition, dc_of, absent))


def lost_copies(transition: Transition, dc_of: DcOf, dead: NodeId, degraded: Sequence[Degraded] = ()) -> bool:
    """Whether, without `dead`, acknowledged writes of the range may be on nobody that is left, and with it
    they are surely on somebody."""
    if dead not in transition.old:
        return False
    return any(
        enough(piece, dc_of, lacking) and not enough(piece, dc_of, (dead, *lacking))
        for piece, lacking in pieces(transition, degraded)
    )


def still_degraded(cluster: ClusterMetadata, mover: Mover) -> tuple[Degraded, ...]:
    """Who was filled from replicas that lack writes may lack them too."""
    before = degraded = cluster.degraded
    if not before or mover.stage is Stage.ROLLBACK_TO_NORMAL:
        return before
    dc_of = cluster.directory.dc_by_id.__getitem__
    for transition in moving(cluster, mover):
        for piece, lacking in pieces(transition, before):
            if lacking and not shunned(mover, piece, lacking, dc_of):
                degraded = handed_on(degraded, transition.group, piece.range, piece.old, piece.gained)
    return degraded
