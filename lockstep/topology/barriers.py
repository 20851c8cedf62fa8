"""Barriers: when enough replicas have seen a step for the next one to be safe.

Invariant: a barrier on epoch e passes only when, in every group of an affected range that some
coordinator may still use, the members that have not seen e cannot form a quorum, neither over all data
centres nor within one. Whoever could not be asked counts as not having seen it. Only when operators said that
the whole suffices, a barrier that waited for long enough leaves out the quorums within data centres.

The guards of closed sessions are the one thing for which a node that seems dead is not waited for: what they
guard is done to that node's own store, its own metadata lets nothing new begin, and it wipes a range before
it may own it again. So a dead newcomer never blocks the way back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transitions import Transition
from lockstep.placement.quorums import DcOf, dc_factors, majority
from lockstep.schema.model import Replication
from lockstep.topology.kind import Mover, moving, stage_row
from lockstep.topology.roles import promoted
from lockstep.topology.stages import Drain, Side, StageRow, Work, side_of
from lockstep.topology.streams import filled_nodes
from lockstep.values.ids import NodeId
from lockstep.values.memo import memo_from


class GroupNeed(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`members` must not hold `quorum` or more nodes that have not seen the step; dc "" = all of them."""

    members: tuple[NodeId, ...]
    quorum: int
    dc: str

    def __post_init__(self) -> None:
        assert self.quorum > 0, "nobody alone is no quorum"


class BarrierNeed(msgspec.Struct, frozen=True, array_like=True):
    """`must_see`: each by itself (they get the stage's work); `must_drain`: older requests finished too.

    `never`: whoever the operation was told is dead. It counts as unaware, whatever it said before.
    `must_release`: no work of closed sessions, whose names begin with the prefix, has an effect there any
    more.
    """

    session_prefix: str
    epoch: int
    groups: tuple[GroupNeed, ...]
    must_see: tuple[NodeId, ...]
    must_drain: tuple[NodeId, ...]
    never: tuple[NodeId, ...] = ()
    must_release: tuple[NodeId, ...] = ()

    def __post_init__(self) -> None:
        assert not {*self.never} & {*self.must_see, *self.must_drain}, "nobody waits for who is dead"

    def nodes(self) -> tuple[NodeId, ...]:
        """Everyone worth asking, ascending."""
        asked = {node for group in self.groups for node in group.members}
        asked.update(self.must_see, self.must_drain, self.must_release)
        return tuple(sorted(asked.difference(self.never)))


class GuardReport(msgspec.Struct, frozen=True, array_like=True):
    """What a node said at `epoch` of the guards it holds: (session, count) for each that is closed there."""

    epoch: int
    held: tuple[tuple[str, int], ...] = ()


class Missing(msgspec.Struct, frozen=True, array_like=True):
    """A node the barrier waits for: the epoch it was last seen at, and why it counts."""

    node: NodeId
    seen: int
    needed: int
    reason: str


class BarrierState(msgspec.Struct, frozen=True, array_like=True):
    """`missing` may name more nodes than are needed: any that complete each group will do.

    `relaxable`: all that is missing are quorums within data centres.
    """

    passed: bool
    missing: tuple[Missing, ...]
    relaxable: bool = False


def barrier_need(
    mover: Mover,
    cluster: ClusterMetadata,
    sources: Collection[NodeId] = (),
    workers: Sequence[NodeId] = (),
    dead: Sequence[NodeId] = (),
) -> BarrierNeed:
    """What the barrier on the present stage needs.

    `sources` are those of the streams still to run, `workers` the nodes that still have a part of the stage's
    work, `dead` those that seem so: nobody waits for their guards.
    """
    row, gone = stage_row(mover), mover.about.presumed_dead
    # A transition that moves by itself is the same as long as its `Lone` is.
    ranges = moving(cluster, mover) if isinstance(mover, Operation) else None
    walked = memo_from(
        mover,
        "_walked",
        (cluster.directory, cluster.degraded, ranges),
        None,
        partial(_walked, mover, cluster),
    )
    assert gone not in walked.must_see, "nobody waits for whom it was told is dead"
    return BarrierNeed(
        mover.session_prefix,
        mover.stage_epoch,
        walked.groups,
        walked.must_see,
        _must_drain(row, walked, sources, workers),
        (gone,) if gone else (),
        tuple(node for node in walked.guards if node not in dead),
    )


class _Walked(msgspec.Struct, frozen=True):
    """What the ranges of an operation ask of the barrier on its stage, whoever reports what. It is kept with
    the operation, so a report costs no walk of them. `touched`: all replicas of before and after."""

    groups: tuple[GroupNeed, ...]
    must_see: tuple[NodeId, ...]
    touched: tuple[NodeId, ...]
    guards: tuple[NodeId, ...]


def _walked(mover: Mover, cluster: ClusterMetadata) -> _Walked:
    row, dc_of = stage_row(mover), cluster.directory.dc_by_id.__getitem__
    groups: dict[GroupNeed, None] = {}
    touched: dict[NodeId, None] = {}
    pending: dict[NodeId, None] = {}
    for transition in moving(cluster, mover):
        touched.update(dict.fromkeys(transition.union))
        pending.update(dict.fromkeys((*transition.gained, *promoted(transition, dc_of))))
        for side in row.in_use:
            for need in _group_needs(transition, side, row, dc_of):
                groups[need] = None
    assert pending.keys() <= touched.keys(), "who gets a range is one of its replicas"
    assert all(touched.keys() >= {*need.members} for need in groups), "replicas make the quorums"
    return _Walked(
        tuple(groups),
        _must_see(row, mover, tuple(sorted(pending))),
        tuple(sorted(touched)),
        _may_hold_guards(mover, cluster),
    )


def _may_hold_guards(mover: Mover, cluster: ClusterMetadata) -> tuple[NodeId, ...]:
    """Who worked under the session that closed when the present stage was entered, or just before: the stage
    that commits a generation has no work, and may be cancelled before its own barrier has passed."""
    earlier = list(mover.earlier)
    if earlier and earlier[-1] is Stage.COMMIT_CDC_GENERATION:
        earlier.pop()
    if not earlier:
        return ()
    former = stage_row(mover, earlier[-1])
    if former.work in (Work.WIPE, Work.STREAM):
        return filled_nodes(mover, cluster)
    return (mover.node,) if former.work is Work.REBUILD else ()


def _must_see(row: StageRow, mover: Mover, pending: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Pending replicas even when their work is done: a coordinator that is new has not heard of it."""
    if row.work in (Work.WIPE, Work.STREAM):
        return pending
    return (mover.node,) if row.work is Work.REBUILD else ()


def _must_drain(
    row: StageRow, walked: _Walked, sources: Collection[NodeId], workers: Sequence[NodeId]
) -> tuple[NodeId, ...]:
    if row.drain is Drain.WORKERS:
        return tuple(sorted(workers))
    if row.drain is Drain.SOURCES:
        return tuple(sorted(sources))
    if row.drain is Drain.ALL:
        return walked.touched
    return ()


def _group_needs(transition: Transition, side: Side, row: StageRow, dc_of: DcOf) -> list[GroupNeed]:
    """Where counts change with the step, both may be in use on the union, and the weaker one decides."""
    members = tuple(sorted(side_of(transition, side)))
    assert len(set(members)) == len(members), "a replica counts once"
    needs: dict[GroupNeed, None] = {}
    for replication, beside in _counts(transition, side, row):
        needs[GroupNeed(members, majority(replication.total) + len(beside), "")] = None
        for dc, factor in dc_factors(replication):
            local = tuple(node for node in members if dc_of(node) == dc)
            extra = sum(dc_of(node) == dc for node in beside)
            needs[GroupNeed(local, majority(factor) + extra, dc)] = None
    return [need for need in needs if len(need.members) >= need.quorum]


def _counts(
    transition: Transition, side: Side, row: StageRow
) -> tuple[tuple[Replication, tuple[NodeId, ...]], ...]:
    """What is counted on a side, and the nodes whose answers are asked for beside it.

    A change of replication is about all ranges, so also about those that only a dead node had, and must not
    wait for it for ever. Where a range only gains replicas or only loses some, the union is counted as
    coordinators do. The old group alone is left out once both sides were written: whoever counts it is
    refused by all that heard of that, which was a barrier of its own. And so it is on the way back, where
    those that have not heard of it use what everyone comes back to.
    """
    before, after = transition.replication, transition.replication_after
    pending = transition.gained if row.pending_votes else ()
    changes = transition.new_replication is not None and not (transition.gained and transition.lost)
    if side is Side.NEW:
        return ((after, ()),)
    if side is Side.OLD:
        kept = not changes or row.stage in (Stage.PREPARED, Stage.WRITE_BOTH_READ_OLD)
        return ((before, ()),) if kept else ()
    if changes:
        return (before, transition.gained), (after, transition.lost)
    if before != after:
        return (before, pending), (after, pending)
    return ((before, pending),)


def evaluate(
    need: BarrierNeed,
    acknowledged: Mapping[NodeId, int],
    drained: Mapping[NodeId, int],
    guards: Mapping[NodeId, GuardReport] | None = None,
    relaxed: bool = False,
) -> BarrierState:
    """Whether the barrier passes.

    `acknowledged` is the newest epoch each node is known to have durably applied, `drained` the newest
    epoch below which it has no request left; a node that is absent has seen nothing. `guards` None: nodes
    end what they do under a session before they apply what closes it. `relaxed`: quorums within data centres
    are left out.
    """
    assert need.epoch > 0, "a barrier is on an epoch"
    found: dict[NodeId, Missing] = {}
    if need.never:
        acknowledged = {node: seen for node, seen in acknowledged.items() if node not in need.never}

    def miss(node: NodeId, seen: int, reason: str) -> None:
        found.setdefault(node, Missing(node, seen, need.epoch, reason))

    for node in need.must_see:
        if acknowledged.get(node, 0) < need.epoch:
            miss(node, acknowledged.get(node, 0), "receives ranges")
    for node in need.must_drain:
        if min(acknowledged.get(node, 0), drained.get(node, 0)) < need.epoch:
            miss(node, acknowledged.get(node, 0), "has older requests to finish before its part of the work")
    for node, reason in _held(need, guards):
        miss(node, acknowledged.get(node, 0), reason)
    relaxable = not found
    for group in need.groups:
        if relaxed and group.dc:
            continue
        unseen = [node for node in group.members if acknowledged.get(node, 0) < need.epoch]
        if len(unseen) >= group.quorum:
            where = f" in data centre {group.dc}" if group.dc else ""
            relaxable = relaxable and bool(group.dc)
            for node in [node for node in unseen if node not in need.never] or unseen:
                miss(node, acknowledged.get(node, 0), f"{len(unseen)} unaware replicas make a quorum{where}")
    missing = tuple(found[node] for node in sorted(found))
    assert all(one.needed == need.epoch for one in missing), "what is missing is missing of this step"
    assert not relaxed or not relaxable or not missing, "what was let go holds nobody up"
    return BarrierState(not missing, missing, relaxable and bool(missing))


def _held(need: BarrierNeed, guards: Mapping[NodeId, GuardReport] | None) -> Iterator[tuple[NodeId, str]]:
    if guards is None:
        return
    for node in need.must_release:
        report = guards.get(node)
        if report is None or report.epoch < need.epoch:
            yield node, "has not said yet that work of the closed session has ended"
            continue
        for session, count in report.held:
            if session.startswith(need.session_prefix):
                yield node, f"still holds {count} guard{'s' if count > 1 else ''} of session {session}"
