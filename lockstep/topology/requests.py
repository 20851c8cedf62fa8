"""Transformations of requests: into the queue, out of it, and the end of one that can never run.

Invariant: a request is accepted only when no other one is about its nodes or wants its tokens; whatever ends
it (its operation, a cancel, a failure) does so in one entry, together with all that goes with it.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import TABLE, Held, Wanted
from lockstep.metadata.exclusions import EXCLUDED
from lockstep.metadata.groups.membership import with_leaving, without_leaving, without_vote
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Body
from lockstep.metadata.requests import REQUESTS, Policy, Request, RequestState
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.topology.kind import kind_of
from lockstep.topology.queue import judged_anew, taking_part
from lockstep.topology.transformations import CancelOperation, preparation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import REQUESTS_LIVE_MAX, SERVICE_TEXT_CHARACTERS_MAX


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
        if not cluster.operations and not cluster.requests.queue:
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
    """End the queued request that goes first and can never run; refused while it may still."""

    request_id: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        request = _live(cluster, self.request_id)
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


def _begun_at_once(cluster: ClusterMetadata, request: Request, epoch: int) -> ClusterMetadata:
    shut_out = next((node for node in taking_part(request) if node in cluster.excluded_by_node), None)
    if shut_out is not None:
        raise Rejected(f"node {shut_out} is excluded: {TABLE[Wanted.RING, Held.EXCLUSION].why}")
    begun = preparation(request, 0).apply(cluster, epoch)
    running = begun.requests.by_id[request.id]
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
