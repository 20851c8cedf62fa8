"""Requests: into the queue, out of it, the end of one that can never run; which one runs next, and for each
other one why it waits.

Invariant: a request is accepted only when no other one is about its nodes or wants its tokens; whatever ends
it (its operation, a cancel, a failure) does so in one entry, together with all that goes with it. A pure
function of the metadata and of what the group that follows the voters says. A request is judged by the very
transformation that would begin it. The first in the order of the queue that may begin does; one that is
refused although nothing runs that could change that can never run, and fails. Sound, not complete. The owner
of a token is a replica of the range that ends there, wherever its data centre has replicas at all; so who
joins with it, leaves, replaces or rebuilds it changes that range. What is not found here, a plan finds.
Nothing that runs is ever interrupted for something that waits: only an operator's cancel, or its own work
that cannot succeed, sends it back. Between two of its steps a change of replication rests in the queue for
what mends a dead node and may begin then. What waits is passed by what its kind lets go before it, and by
what may begin while it may not; but not for ever: a kind that `is_held_back` does not begin while an earlier
request has been passed too often.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import TABLE, Held, Wanted, excluded_by
from lockstep.metadata.directory import EXCLUDED
from lockstep.metadata.groups.membership import with_leaving, without_leaving, without_vote
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Body, Operation, Stage
from lockstep.metadata.requests import REQUESTS, Policy, Request, RequestState
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import Transition
from lockstep.placement.quorums import dc_factors
from lockstep.schema.model import Replication
from lockstep.topology.kind import kind_of
from lockstep.topology.planning import EXCLUDED as PLANNING_EXCLUDED
from lockstep.topology.planning import PAUSED, holder_of
from lockstep.topology.tablets import drains
from lockstep.topology.tablets.recount import refuse_emptied_rack
from lockstep.topology.transformations import CancelOperation, preparation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    PARALLEL_OPERATIONS_MAX,
    REQUESTS_LIVE_MAX,
    REQUESTS_LOOKED_AT_MAX,
    REQUESTS_PASSED_MAX,
    REQUESTS_PLANNED_MAX,
    SERVICE_TEXT_CHARACTERS_MAX,
)
from lockstep.values.memo import keep, kept


def is_passed_over(cluster: ClusterMetadata, waiting: Request) -> bool:
    """Whether so many requests that were asked for later have begun before it that it is its turn now."""
    assert waiting.state is RequestState.QUEUED, "nobody goes before one that has begun"
    requests = cluster.requests
    passed = sum(1 for other in requests.live if other.id > waiting.id and other.began_epoch)
    passed += sum(1 for other in requests.ended if other.id > waiting.id and other.began_epoch)
    return passed >= REQUESTS_PASSED_MAX


def holder(cluster: ClusterMetadata, request: Request) -> tuple[Operation | None, str] | None:
    """An operation that holds a range the request wants, the first that began, and the refusal a plan would
    end with; without an operation where the range moves by itself."""
    ring = kind_of(request).ring
    if ring is None or not cluster.transitions.count:
        return None
    node, tokens = ring.surely(cluster.directory, request.body)
    dc = cluster.directory.dc_by_id.get(NodeId(node), "")
    held: list[tuple[Transition, Replication]] = []
    for placement in cluster.shared_rings:
        factors = dict(dc_factors(placement.replication))
        if not factors or factors.get(dc):
            found = (cluster.transitions.holder_at(placement, token) for token in tokens)
            held.extend((one, placement.replication) for one in found if one is not None)
    if not held:
        return None
    first, replication = min(held, key=lambda one: one[0].operation_id)
    assert all(one.range.left < one.range.right for one, _ in held), "what is held is a range"
    where = f"range ({first.range.left}, {first.range.right}] of {replication.strategy}"
    return cluster.operations_by_id.get(first.operation_id), f"{holder_of(cluster, first)} holds {where}"


_KEPT = "_choice"
_REFUSALS = "_refusals"


class Rule(enum.StrEnum):
    """Which rule holds a request up."""

    FREEZE = "freeze"
    TABLETS = "tablets"
    PARALLEL = "parallel"
    VOTE = "vote"
    EXCLUSION = "exclusion"
    OPERATION = "operation"
    CLUSTER = "cluster"
    TURN = "turn"


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """`operation_id`, `node`: who holds it up, where that is one (else 0); `reason` a sentence."""

    request_id: int
    rule: Rule
    reason: str
    operation_id: int = 0
    node: NodeId = NodeId(0)


class Choice(msgspec.Struct, frozen=True):
    """`run`: the request that begins now. `fails`: one that never can, and why. At most one of the two.

    `waiting` has the requests that were looked at; `everyone` is what all queued ones wait for alike.
    """

    run: Request | None = None
    fails: tuple[Request, str] | None = None
    waiting: tuple[Waiting, ...] = ()
    everyone: Waiting | None = None


NOTHING = Choice()


def choose(cluster: ClusterMetadata, follows: str = "") -> Choice:
    """What becomes of the queue now. `follows`: why the other group still needs nodes that vote no more.

    Asked again about the same parts of the metadata it answers from memory, which the queue itself keeps.
    """
    if not cluster.requests.queue:
        return NOTHING
    looked_at = (
        follows,
        _running(cluster),
        cluster.directory,
        cluster.placements,
        cluster.transitions,
        cluster.tablets,
        cluster.service,
        cluster.excluded,
        cluster.degraded,
    )
    known = kept(cluster.requests, _KEPT)
    if known is not None and known[0][:2] == looked_at[:2] and _identical(known[0][2:], looked_at[2:]):
        choice = known[1]
    else:
        choice = _choose(cluster, follows, _refusal)
        keep(cluster.requests, _KEPT, (looked_at, choice))
    assert isinstance(choice, Choice)
    return choice


def judged_anew(cluster: ClusterMetadata) -> Choice:
    """What `choose` says, from nothing but the value: an entry must come to the same words on every node."""
    return _choose(cluster, "", _judged)


def _identical(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return all(mine is theirs for mine, theirs in zip(one, other, strict=True))


class Verdict(msgspec.Struct, frozen=True):
    """Why a request cannot begin now. `is_planned`: it took a plan to find out."""

    refusal: str
    is_planned: bool


#: None: it may begin.
Judge = Callable[[ClusterMetadata, Request], Verdict | None]


def _choose(cluster: ClusterMetadata, follows: str, judge: Judge) -> Choice:
    everyone = _holds_all(cluster)
    if everyone is not None:
        return Choice(everyone=everyone)
    waiting: list[Waiting] = []
    planned = 0
    may_change = bool(cluster.operations or cluster.transitions.count)
    passed_over: Request | None = None
    assert not cluster.service.frozen, "nothing begins while the metadata is frozen"
    for request in cluster.requests.queue[:REQUESTS_LOOKED_AT_MAX]:
        held = _held(cluster, request, follows)
        if held is not None:
            waiting.append(held)
            may_change = True
            continue
        if passed_over is not None and kind_of(request).is_held_back:
            waiting.append(_held_back(request, passed_over))
            continue
        in_the_way = holder(cluster, request)
        if in_the_way is not None:
            operation, refusal = in_the_way
            named = (operation.id, operation.node) if operation is not None else (0, NodeId(0))
            waiting.append(Waiting(request.id, Rule.OPERATION, refusal, *named))
            passed_over = passed_over or (request if is_passed_over(cluster, request) else None)
            continue
        if planned == REQUESTS_PLANNED_MAX:
            break
        verdict = judge(cluster, request)
        if verdict is None:
            assert len(cluster.operations) < PARALLEL_OPERATIONS_MAX, "there is room for one more"
            return Choice(run=request, waiting=tuple(waiting))
        planned += verdict.is_planned
        waits = _refused(cluster, request, verdict.refusal)
        if not may_change and waits.rule not in (Rule.EXCLUSION, Rule.TABLETS):
            return Choice(fails=(request, verdict.refusal))
        may_change = True
        waiting.append(waits)
        if waits.rule is Rule.OPERATION:
            passed_over = passed_over or (request if is_passed_over(cluster, request) else None)
    return Choice(waiting=tuple(waiting))


def _held_back(request: Request, passed_over: Request) -> Waiting:
    reason = f"{passed_over.title()} goes first: {REQUESTS_PASSED_MAX} later ones have begun before it"
    return Waiting(request.id, Rule.TURN, reason, 0, passed_over.node)


def _holds_all(cluster: ClusterMetadata) -> Waiting | None:
    if cluster.service.frozen:
        return Waiting(0, Rule.FREEZE, f"the metadata is frozen: {cluster.service.frozen}")
    if len(cluster.operations) >= PARALLEL_OPERATIONS_MAX:
        first = cluster.operations[0]
        holders = ", ".join(operation.title() for operation in cluster.operations)
        reason = f"at most {PARALLEL_OPERATIONS_MAX} operations run at once: {holders}"
        return Waiting(0, Rule.PARALLEL, reason, first.id, first.node)
    return None


def _held(cluster: ClusterMetadata, request: Request, follows: str) -> Waiting | None:
    """What holds the request up whatever ranges it is about."""
    assert request.is_live and not request.operation_id, "what is queued has not begun"
    for node in taking_part(request):
        if node in cluster.excluded_by_node:
            why = TABLE[Wanted.RING, Held.EXCLUSION].why
            return Waiting(request.id, Rule.EXCLUSION, f"node {node} is excluded: {why}", 0, node)
    leaving = request.about.departing
    if not leaving:
        return None
    paused = drains.paused(cluster, request)
    if paused:
        return Waiting(request.id, Rule.TABLETS, paused, 0, leaving)
    if any(held is Held.VOTE for held, _ in excluded_by(cluster, Wanted.RING, (leaving,))):
        reason = f"node {leaving} votes on the metadata: another node gets its vote first"
        return Waiting(request.id, Rule.VOTE, reason, 0, leaving)
    if follows:
        return Waiting(request.id, Rule.VOTE, follows, 0, leaving)
    return None


def taking_part(request: Request) -> tuple[NodeId, ...]:
    """Its nodes without the one that is said to be dead."""
    return tuple(node for node in request.about.nodes if node != request.about.presumed_dead)


def _running(cluster: ClusterMetadata) -> tuple[tuple[int, bool], ...]:
    """The running operations, and whether each may still succeed: what a plan depends on."""
    return tuple((o.id, o.stage is not Stage.ROLLBACK_TO_NORMAL) for o in cluster.operations)


def _refusal(cluster: ClusterMetadata, request: Request) -> Verdict | None:
    """Why the request cannot begin now; None when it can.

    A plan is made anew only when nodes, running operations or degraded ranges are others than when it was
    refused: the directory keeps the refusals of the latest. That one may begin is never taken from memory. Of
    a refusal only the names of keyspaces may be old.
    """
    groups = tuple((ring.id, ring.replication) for ring in cluster.placements.rings)
    alone = cluster.transitions if cluster.transitions.lone_count else None
    # Where tablets lie, and which nodes they are to leave, no other part of this tells.
    lie = (cluster.placements.digest, tuple(drains.drains(cluster))) if cluster.tablets.by_group else None
    state = (_running(cluster), groups, alone, lie, cluster.service, cluster.excluded, cluster.degraded)
    known = kept(cluster.directory, _REFUSALS)
    if known is None or known[0] != state:
        known = (state, {})
        keep(cluster.directory, _REFUSALS, known)
    refusals: dict[Request, Verdict] = known[1]
    if request in refusals:
        return refusals[request]
    verdict = _judged(cluster, request)
    if verdict is not None:
        refusals[request] = verdict
    return verdict


def _judged(cluster: ClusterMetadata, request: Request) -> Verdict | None:
    """By the entry that would begin it; nodes and tokens are looked at first, for that costs no plan."""
    entry = preparation(request, request.id)
    is_planned = False
    try:
        kind_of(request).refuse_early(cluster, request.body)
        is_planned = True
        entry.apply(cluster, cluster.epoch + 1)
    except Rejected as refusal:
        return Verdict(refusal.message, is_planned)
    return None


def _refused(cluster: ClusterMetadata, request: Request, refusal: str) -> Waiting:
    """A refusal names the operation that is in the way by its title, or the node that is excluded."""
    for operation in cluster.operations:
        if operation.title() in refusal:
            return Waiting(request.id, Rule.OPERATION, refusal, operation.id, operation.node)
    for node in cluster.excluded_by_node:
        if PLANNING_EXCLUDED.format(node=node) in refusal:
            return Waiting(request.id, Rule.EXCLUSION, refusal, 0, node)
    rule = Rule.TABLETS if refusal.startswith(PAUSED) else Rule.CLUSTER
    return Waiting(request.id, rule, refusal)


def why(cluster: ClusterMetadata, request: Request, follows: str = "") -> Waiting | None:
    """Why a queued request does not run yet; None when it is about to begin, or to fail."""
    choice = choose(cluster, follows)
    if choice.everyone is not None:
        return msgspec.structs.replace(choice.everyone, request_id=request.id)
    for waiting in choice.waiting:
        if waiting.request_id == request.id:
            return waiting
    ahead = choice.run or (choice.fails[0] if choice.fails is not None else None)
    assert ahead is None or ahead in cluster.requests.queue, "who goes first is in the queue"
    if ahead is not None and ahead.id == request.id:
        return None
    if ahead is not None:
        return Waiting(request.id, Rule.TURN, f"{ahead.title()} goes first", 0, ahead.node)
    reason = f"{len(choice.waiting)} requests that go first wait too"
    return Waiting(request.id, Rule.TURN, reason)


class EnqueueRequest(msgspec.Struct, frozen=True, array_like=True):
    """Ask for the operation that `body` says. With policy `wait` it is queued; with `refuse` it begins in
    this entry or not at all. `actor` says who asks.
    """

    body: Body
    policy: Policy = Policy.WAIT
    actor: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        request = Request(cluster.requests.next_id, self.body, self.policy, self.actor, epoch)
        _refuse_unfit(cluster, request)
        if self.policy is Policy.REFUSE:
            return _begun_at_once(cluster, request, epoch)
        if not (cluster.operations or cluster.transitions.count or cluster.requests.queue):
            # Nothing that is under way could change the answer.
            judged, leaving = cluster, request.about.departing
            if leaving:
                judged = without_vote(cluster, leaving)
            if judged.excluded:
                # It waits until they are taken back.
                judged = judged.changed(EXCLUDED.set(()))
            preparation(request, 0).apply(judged, epoch)
        queued = cluster.changed(REQUESTS.set(cluster.requests.with_new(request)))
        return _with_wish(queued, request.about.departing)


class CancelRequest(msgspec.Struct, frozen=True, array_like=True):
    """Take a queued request out of the queue, or send the operation of a running one back."""

    request_id: int
    reason: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        request = _live(cluster, self.request_id)
        if len(self.reason) > SERVICE_TEXT_CHARACTERS_MAX:
            raise Rejected(f"a reason has at most {SERVICE_TEXT_CHARACTERS_MAX} characters")
        if request.state is RequestState.RUNNING:
            return CancelOperation(request.operation_id, self.reason).apply(cluster, epoch)
        return _ended(cluster, request, RequestState.CANCELLED, self.reason or "by an operator", epoch)


class FailRequest(msgspec.Struct, frozen=True, array_like=True):
    """End the queued request that goes first and can never run; refused while it may still. With `reason`,
    one whose node cannot be emptied of tablets, as the coordinator knows by what nodes told of their load."""

    request_id: int
    reason: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        request = _live(cluster, self.request_id)
        if self.reason:
            if request.state is not RequestState.QUEUED or not drains.paused(cluster, request):
                raise Rejected(f"{request.title()} does not wait for tablets")
            if len(self.reason) > SERVICE_TEXT_CHARACTERS_MAX:
                raise Rejected(f"a reason has at most {SERVICE_TEXT_CHARACTERS_MAX} characters")
            return _ended(cluster, request, RequestState.FAILED, self.reason, epoch)
        fails = judged_anew(cluster).fails
        if fails is None or fails[0].id != request.id:
            raise Rejected(f"{request.title()} may still run")
        return _ended(cluster, request, RequestState.FAILED, fails[1], epoch)


def _live(cluster: ClusterMetadata, request_id: int) -> Request:
    request = cluster.requests.by_id.get(request_id)
    if request is None:
        raise Rejected(f"there is no request {request_id}", hint="`lockstep topology requests` lists them")
    if not request.is_live:
        raise Rejected(f"{request.title()} has ended: {request.state} at epoch {request.ended_epoch}")
    return request


def _refuse_unfit(cluster: ClusterMetadata, request: Request) -> None:
    """Raises Rejected for what no wait would mend."""
    requests = cluster.requests
    if len(requests.live) >= REQUESTS_LIVE_MAX:
        raise Rejected(f"{REQUESTS_LIVE_MAX} requests wait or run already", hint="cancel some, or wait")
    if len(request.actor) > SERVICE_TEXT_CHARACTERS_MAX:
        raise Rejected(f"an actor has at most {SERVICE_TEXT_CHARACTERS_MAX} characters")
    kind_of(request).refuse_unfit(cluster, request)
    leaving = drains.drained_by(request)
    if leaving:
        refuse_emptied_rack(cluster, leaving)


def _begun_at_once(cluster: ClusterMetadata, request: Request, epoch: int) -> ClusterMetadata:
    excluded = next((node for node in taking_part(request) if node in cluster.excluded_by_node), None)
    if excluded is not None:
        raise Rejected(f"node {excluded} is excluded: {TABLE[Wanted.RING, Held.EXCLUSION].why}")
    drains.refuse_holding(cluster, request.body)
    begun = preparation(request, 0).apply(cluster, epoch)
    running = begun.requests.by_id[request.id]
    assert running.operation_id in begun.operations_by_id, "what begins has an operation"
    named = msgspec.structs.replace(running, actor=request.actor)
    return begun.changed(REQUESTS.set(begun.requests.with_changed(named)))


def _with_wish(cluster: ClusterMetadata, node: NodeId) -> ClusterMetadata:
    """A node that is to be gone gets no vote from now on, and loses the one that it has."""
    service = cluster.service
    if not node or node in service.leaving:
        return cluster
    if node in service.members:
        service = with_leaving(cluster, node)
    else:
        service = msgspec.structs.replace(service, leaving=tuple(sorted((*service.leaving, node))))
    return cluster.changed(SERVICE.set(service))


def _ended(
    cluster: ClusterMetadata, request: Request, state: RequestState, outcome: str, epoch: int
) -> ClusterMetadata:
    assert request.state is RequestState.QUEUED, "what runs ends with its operation"
    if request.original is not None:
        outcome = (
            f"{outcome}; it stopped at {cluster.schema.by_name[request.about.keyspace].replication.text()}"
        )
    return cluster.changed(
        REQUESTS.set(cluster.requests.with_ended(request.id, state, outcome, epoch)),
        SERVICE.set(without_leaving(cluster.service, request.about.departing)),
    )


KINDS: dict[int, type] = {
    EntryKind.ENQUEUE_REQUEST: EnqueueRequest,
    EntryKind.CANCEL_REQUEST: CancelRequest,
    EntryKind.FAIL_REQUEST: FailRequest,
}
