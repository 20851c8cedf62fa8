"""Planning an operation, which ranges change, from which replicas to which, and whether it may be, and what
goes with one that runs: its cuts of the rings, its transitions and its session.

Invariant: a plan holds whichever of the running operations finish or are cancelled. It is refused when an
outcome would change it, or when it touches a range on its way. So it is computed against every combination
of outcomes of the operations that it touches; others cannot change it. Whoever looks for ranges on their way
asks for those that are wanted. A session is open exactly while the operation is in a stage with work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import TABLE, Held, Wanted, refuse_during
from lockstep.metadata.directory import Directory, NodeInfo, NodeState
from lockstep.metadata.operations import Body, Operation, Stage
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import Lone, Transition, Transitions
from lockstep.placement.circle import Circle, Owner
from lockstep.placement.deltas import Delta, changes, cut, merged, plan_of
from lockstep.placement.placements import PlacedRange, Placements, ReplicaGroup, RingPlacement
from lockstep.placement.quorums import Passing, adjacent_safe, shape_of
from lockstep.schema.model import Replication
from lockstep.topology.kind import kind_of, ring_of, stage_row
from lockstep.topology.stages import STREAMING, StageRow, Work, group_at, replication_at
from lockstep.topology.streams import lost_copies
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import PARALLEL_OPERATIONS_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range, any_within

_NOBODY = NodeId(0)
#: How a plan says that an excluded node is in its way; whoever reads refusals looks for it.
EXCLUDED = "node {node} is excluded"
#: How a refusal begins of what waits for tablets, or for nodes that could have them.
PAUSED: Final = "paused: "
#: The way out for a person whom a running operation is in the way; it may wait for a node that is dead.
WAIT_OR_CANCEL = "wait for its end (`lockstep topology watch`) or cancel it"


class Change(msgspec.Struct, frozen=True):
    """What an operation on the ring, asked for or running, does when it succeeds: `tokens` are those that its
    node will own, gives up or keeps."""

    body: Body
    tokens: tuple[int, ...]


def change_of(operation: Operation) -> Change:
    return Change(operation.body, operation.tokens)


def unfit_state(kind: str, needed: NodeState, node: NodeInfo, by: str = "") -> Rejected:
    """The refusal of an operation for the state of its node."""
    drops = f"it never joined, and holds nothing: `lockstep topology remove {node.id} --force` drops it"
    return Rejected(
        f"{kind} needs a node in state {needed}; node {node.id} is {node.state}{by}",
        hint=drops if node.state is NodeState.NONE else "",
    )


def full_change(cluster: ClusterMetadata, body: Body) -> Change:
    """The change with its tokens, when it may start as far as nodes and tokens tell; raises Rejected."""
    refuse_before_initialize(cluster)
    about, ring = body.about, ring_of(body)
    node = cluster.node(about.node)
    if node is None:
        raise Rejected(f"there is no node {about.node}")
    refuse_during(
        cluster,
        Wanted.RING,
        Held.REPLICATION,
        f"a {about.kind} cannot begin",
        WAIT_OR_CANCEL,
    )
    if len(cluster.operations) >= PARALLEL_OPERATIONS_MAX:
        holders = ", ".join(operation.title() for operation in cluster.operations)
        raise Rejected(f"at most {PARALLEL_OPERATIONS_MAX} operations run at once: {holders}")
    running = next((o for o in cluster.operations if about.node in o.about.nodes), None)
    if node.state is not ring.needs:
        by = f", by {running.title()}" if running is not None else ""
        raise unfit_state(about.kind, ring.needs, node, by)
    if running is not None:
        raise Rejected(f"node {node.id} takes part in {running.title()}", hint=WAIT_OR_CANCEL)
    return Change(body, ring.tokens(cluster, node, body))


def refuse_voter(cluster: ClusterMetadata, node: NodeInfo) -> None:
    """Raises Rejected when the node still votes on the metadata."""
    if node.id in cluster.service.members:
        raise Rejected(
            f"node {node.id} is a voter of the metadata group",
            hint="`lockstep topology decommission` has it substituted first; "
            "`lockstep cms reconfigure` does when it is dead",
        )


def circle_with(directory: Directory, changes: Sequence[Change]) -> Circle:
    """The token owners once these operations have finished."""
    owners: dict[NodeId, Owner | None] = {}
    for change in changes:
        if ring_of(change.body).is_refill:
            continue
        about = change.body.about
        assert not owners.keys() & {about.node, about.departing}, "a node is in one operation at a time"
        if about.departing:
            owners[about.departing] = None
        if about.departing != about.node:
            node = directory.by_id[about.node]
            owners[node.id] = Owner(node.id, node.dc, node.rack, change.tokens)
    return directory.circle.changed(owners)


def plan(cluster: ClusterMetadata, mine: Change) -> tuple[Transition, ...]:
    """The transitions of a new operation, by placement group and range.

    Raises Rejected when a range is held, when the outcome of a running operation would change the
    plan, when a step would let a read miss an acknowledged write, or when the node that is given up as
    dead has the only copies of some.
    """
    transitions: list[Transition] = []
    for ring in cluster.shared_rings:
        deltas = _deltas(cluster.directory, ring.replication, [], mine)
        _refuse_held(cluster, ring, deltas)
        for done in _outcomes(_touching(cluster, ring.id, deltas, mine)):
            others = _deltas(cluster.directory, ring.replication, done, mine)
            _refuse_held(cluster, ring, others)
            if others != deltas:
                holders = ", ".join(operation.title() for operation in cluster.operations)
                raise Rejected(
                    f"the ranges of this {mine.body.about.kind} depend on how {holders} ends",
                    hint="wait for its end",
                )
        transitions.extend(Transition(ring.id, d.range, d.old, d.new, ring.replication) for d in deltas)
    if ring_of(mine.body).is_refill:
        transitions.extend(_refilled_tablets(cluster, mine.body.about.node))
    refuse_excluded_targets(cluster, transitions)
    for transition in differently_shaped(cluster, transitions):
        refuse_unsafe(cluster, kind_of(mine.body).stages, transition)
    _refuse_lost_copies(cluster, mine, transitions)
    assert all(len(set(t.union)) == len(t.union) for t in transitions), "replicas are distinct"
    pairs = ((one, two) for one, two in itertools.pairwise(transitions) if one.group == two.group)
    assert all(one.range.right <= two.range.left for one, two in pairs), "a range moves once"
    refills = ring_of(mine.body).is_refill
    assert all((t.old == t.new) is refills for t in transitions), "replicas change, unless they are filled"
    return tuple(transitions)


def refuse_excluded_targets(cluster: ClusterMetadata, transitions: Sequence[Transition]) -> None:
    """Raises Rejected when a node that is shut out would get a range: nobody would hear that it has it."""
    if not cluster.excluded:
        return
    for transition in transitions:
        for node in transition.gained:
            if node in cluster.excluded_by_node:
                where = f"range ({transition.range.left}, {transition.range.right}]"
                why = TABLE[Wanted.RING, Held.EXCLUSION].why
                raise Rejected(
                    f"{EXCLUDED.format(node=node)} and would get {where}: {why}",
                    hint=f"take it back (`lockstep topology exclude {node} --undo`), or remove it first",
                )


def _refuse_lost_copies(cluster: ClusterMetadata, mine: Change, transitions: Sequence[Transition]) -> None:
    dead = mine.body.about.presumed_dead
    dc_of = cluster.directory.dc_by_id.__getitem__
    for transition in transitions:
        if dead and lost_copies(transition, dc_of, dead, cluster.degraded):
            range_ = transition.range
            raise Rejected(
                f"only node {dead} is sure to have all of range ({range_.left}, {range_.right}] of "
                f"{transition.replication.strategy} with factor {transition.replication.total}",
                hint=f"bring node {dead} back, or give that up: `lockstep topology remove {dead} --force`",
            )


def _touching(cluster: ClusterMetadata, group: int, deltas: Sequence[Delta], mine: Change) -> list[Operation]:
    """Running operations whose outcome may change the plan; one that is rolling back never finishes.

    The replicas of a range follow from its own token and the replicas of the next range. So the changes of
    two operations do not see each other where neither changes a token in, or at the end of, a range that the
    other changes; those of a running one are its transitions.
    """
    directory = cluster.directory
    if not cluster.operations:
        return []
    refilled_node = mine.body.about.node if ring_of(mine.body).is_refill else _NOBODY
    moved = directory.circle.changed_tokens(circle_with(directory, [mine]))
    mine_closed = [delta.range for delta in deltas]
    ring, transitions = cluster.placements.ring(group), cluster.transitions
    # The range that a token ends has a neighbour that begins there.
    near = [transitions.holder_at(ring, at) for token in moved for at in (token, token + 1)]
    met = {transition.operation_id for transition in near if transition is not None}
    found = []
    for operation in cluster.operations:
        if operation.stage is Stage.ROLLBACK_TO_NORMAL or ring_of(operation).is_refill:
            continue
        theirs = directory.circle.changed_tokens(circle_with(directory, [change_of(operation)]))
        refilled = refilled_node and any(
            refilled_node in t.new for t in transitions.of(operation.id) if t.group == group
        )
        if refilled or any_within(theirs, mine_closed) or operation.id in met:
            found.append(operation)
    return found


def _outcomes(operations: Sequence[Operation]) -> Iterator[list[Change]]:
    """Every set of these that may finish, but the empty one."""
    assert len(operations) <= PARALLEL_OPERATIONS_MAX, "there are few sets"
    for count in range(1, len(operations) + 1):
        for chosen in itertools.combinations(operations, count):
            yield [change_of(operation) for operation in chosen]


def _deltas(
    directory: Directory, replication: Replication, done: list[Change], mine: Change
) -> tuple[Delta, ...]:
    before = circle_with(directory, done)
    if ring_of(mine.body).is_refill:
        node = mine.body.about.node
        own = ((range_, nodes) for range_, nodes in plan_of(replication, before) if node in nodes)
        return tuple(Delta(range_, replicas, replicas) for range_, replicas in own)
    return changes(replication, before, circle_with(directory, [*done, mine]))


def _refilled_tablets(cluster: ClusterMetadata, node: NodeId) -> Iterator[Transition]:
    """Those of the tablets that a node has, by group and range; Rejected while one of them is on its way."""
    for group in sorted(cluster.tablets.by_group):
        ring = cluster.placements.ring(group)
        for placed in ring.ranges:
            held = cluster.transitions.at(group, placed.range.right) if cluster.transitions.count else None
            if held is not None and node in held.union:
                raise Rejected(
                    f"{PAUSED}{holder_of(cluster, held)} holds a tablet of node {node}",
                    hint="a request that may wait begins when its tablets are at rest",
                )
            if node in placed.group.reads:
                assert placed.group.reads == placed.group.writes, (
                    "a tablet at rest is written where it is read"
                )
                replicas = placed.group.reads
                yield Transition(group, placed.range, replicas, replicas, ring.replication)


def _refuse_held(cluster: ClusterMetadata, ring: RingPlacement, deltas: Sequence[Delta]) -> None:
    """Names the holder that began first of all that are in the way."""
    held = [found for delta in deltas for found in cluster.transitions.held(ring, delta.range)]
    if held:
        first = min(held, key=lambda transition: transition.operation_id)
        where = f"range ({first.range.left}, {first.range.right}] of {ring.replication.strategy}"
        raise Rejected(
            f"{holder_of(cluster, first)} holds {where}",
            hint="wait for it to finish (`lockstep topology watch`) or cancel it",
        )


def holder_of(cluster: ClusterMetadata, transition: Transition) -> str:
    """How people refer to whoever holds a range."""
    if transition.position is not None:
        return Lone(transition).title()
    return cluster.operations_by_id[transition.operation_id].title()


def differently_shaped(cluster: ClusterMetadata, transitions: Sequence[Transition]) -> list[Transition]:
    """One transition of each kind that a proof can tell apart."""
    dc_of = cluster.directory.dc_by_id.__getitem__
    found: dict[object, Transition] = {}
    for transition in transitions:
        shape = shape_of((transition.old, transition.new), dc_of)
        found.setdefault((transition.replication, transition.new_replication, shape), transition)
    assert bool(found) is bool(transitions), "each transition has a shape"
    return list(found.values())


def refuse_unsafe(cluster: ClusterMetadata, stages: Sequence[StageRow], transition: Transition) -> None:
    """Prove every pair of stages this transition can go through before it begins."""
    dc_of = cluster.directory.dc_by_id.__getitem__
    rows = {row.stage: row for row in stages}
    assert len(rows) == len(stages), "a stage has one row"
    for row in stages:
        for target in (row.next, row.on_failure):
            if target is not None:
                _refuse_step(transition, row, rows[target], dc_of)


def _refuse_step(
    transition: Transition, row: StageRow, target: StageRow, dc_of: Callable[[NodeId], str]
) -> None:
    before, after = (
        ReplicaGroup(*group_at(row, transition), 0),
        ReplicaGroup(*group_at(target, transition), 0),
    )
    counts = replication_at(row, transition), replication_at(target, transition)
    refuse_unsafe_change(before, after, transition, dc_of, counts)


def refuse_unsafe_change(
    before: ReplicaGroup,
    after: ReplicaGroup,
    transition: Transition,
    dc_of: Callable[[NodeId], str],
    counts: tuple[Replication, Replication],
) -> None:
    """Raises Rejected unless coordinators at either group see each other's writes and no reader is new.

    `counts`: the replications that coordinators count by before and after.
    """
    where = f"range ({transition.range.left}, {transition.range.right}]"
    for reader in after.reads:
        if reader not in before.writes:
            raise Rejected(f"{where}: node {reader} would be read before it was written")
    recounts = transition.new_replication is not None
    found = adjacent_safe(before, after, counts[0], dc_of, counts[1] if recounts else None)
    if found is not None:
        raise Rejected(f"{where}: {found.text()}")


#: Changes of groups that were proved: stages, settings, and how the replicas stand to each other.
Proved = set[object]


def regrouped_in(
    placed: PlacedRange,
    transition: Transition,
    rows: tuple[StageRow, StageRow],
    epoch: int,
    dc_of: Callable[[NodeId], str],
    proved: Proved,
) -> PlacedRange:
    """The range of a transition that goes from the stage of one row to that of the other; raises Rejected
    where the change is not safe."""
    left, row = rows
    assert placed.range == transition.range, "a transition covers one placed range"
    old, new = placed.group, ReplicaGroup(*group_at(row, transition), epoch)
    assert {*new.reads} <= {*new.writes} <= {*transition.union}, "replicas are those of before and after"
    counts = replication_at(left, transition), replication_at(row, transition)
    recounts = transition.new_replication is not None
    shape = counts, recounts, shape_of((old.reads, old.writes, new.reads, new.writes), dc_of)
    if shape not in proved:
        refuse_unsafe_change(old, new, transition, dc_of, counts)
        proved.add(shape)
    return PlacedRange(placed.range, new)


def by_group(transitions: Sequence[Transition]) -> Mapping[int, list[Transition]]:
    """Transitions by placement group, in their order."""
    grouped: dict[int, list[Transition]] = {}
    for transition in transitions:
        grouped.setdefault(transition.group, []).append(transition)
    assert sum(map(len, grouped.values())) == len(transitions), "each transition is of one group"
    return grouped


def laid_out(
    cluster: ClusterMetadata, operation_id: int, wanted: Sequence[Transition]
) -> tuple[Placements, Transitions]:
    """The rings cut at the ends of the wanted transitions, and those of each placed range as all that the
    operation has."""
    rings: list[RingPlacement] = []
    found: list[Transition] = []
    for group, transitions in by_group(wanted).items():
        ring = cut(cluster.placements.ring(group), _ends(transitions))
        rings.append(ring)
        for transition in transitions:
            for placed in ring.inside(transition.range):
                own = msgspec.structs.replace(transition, range=placed.range, operation_id=operation_id)
                found.append(own)
    assert sum(one.range.right - one.range.left for one in found) == sum(
        one.range.right - one.range.left for one in wanted
    ), "every token that is to move is on its way, once"
    return cluster.placements.with_rings(rings), cluster.transitions.begun(operation_id, found)


def merged_rings(placements: Placements, ended: Sequence[Transition], others: Transitions) -> Placements:
    """The rings without the cuts of what has ended, but those where another range begins or ends that is on
    its way."""
    rings = []
    for group, transitions in by_group(ended).items():
        ring = placements.ring(group)
        ends = _ends(transitions)
        keep = [end for end in ends if any(others.holder_at(ring, token) for token in (end, end + 1))]
        rings.append(merged(ring, keep, ends))
    return placements.with_rings(rings)


def _ends(transitions: Sequence[Transition]) -> list[int]:
    """Where the ranges begin and end within the ring, ascending."""
    ends = {end for t in transitions for end in (t.range.left, t.range.right)}
    return sorted(ends - {TOKEN_MIN, TOKEN_MAX})


def session_id_of(operation: Operation) -> str:
    """Of the operation's stage: deterministic, so that every node names the same session; empty when the
    stage has no work."""
    if stage_row(operation).work is Work.NONE:
        return ""
    assert operation.id > 0, "operations are counted from 1"
    step = f"-step-{operation.step}" if operation.step else ""
    return f"operation-{operation.id}{step}-{operation.stage}"


def streaming_session(operation: Operation) -> str:
    """The session whose streams the metadata does not count yet: that of the present stage, or of the one
    that was taken back; empty where nothing is streamed."""
    stage = operation.stage
    if stage is Stage.ROLLBACK_TO_NORMAL and len(operation.history) > 1:
        stage = operation.history[-2][0]
    if stage_row(operation, stage).work not in STREAMING:
        return ""
    return session_id_of(msgspec.structs.replace(operation, stage=stage))


def passing(cluster: ClusterMetadata, group: int, range_: Range) -> Passing | None:
    """Where a range of a placement group is going while replicas are filled for other counts; else None.

    Whoever has not heard that replicas are being filled is refused by those that have, as their groups'
    epochs say.
    """
    operation = cluster.recounting.get(group)
    if operation is None or stage_row(operation).work is not Work.STREAM:
        return None
    transition = cluster.transitions.at(group, range_.right)
    assert transition is not None, "a change of replication has a transition for every range"
    assert transition.range == range_, "a transition covers one placed range"
    return Passing(transition.new, transition.replication_after)
