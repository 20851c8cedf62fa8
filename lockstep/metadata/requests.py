"""Requests for topology operations, as the metadata keeps them from the wish to the end.

Invariant: a node, and a keyspace, has at most one request that is queued or running; every running operation
belongs to exactly one running request; a request ends once, and what ended stays readable for a while. A
change of replication may go back into the queue between two of its steps, and no other request ever does.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec

from lockstep.metadata.operations import OPERATIONS, About, Body
from lockstep.metadata.part import Item, Part, collected, digest_of, digest_of_each
from lockstep.schema.model import Replication
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import REQUESTS_ENDED_KEPT_MAX


class RequestState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: States of requests that count: the others have ended.
LIVE_STATES = (RequestState.QUEUED, RequestState.RUNNING)


class Policy(enum.StrEnum):
    """What happens to a request that something holds up: it waits in the queue, or it is refused at once."""

    WAIT = "wait"
    REFUSE = "refuse"


class Request(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`body` says what is asked for, and never changes. `actor` says who asked.

    `operation_id` is set once it runs. `outcome` says in words why it failed or was cancelled.
    """

    id: int
    body: Body
    policy: Policy = Policy.WAIT
    actor: str = ""
    requested_epoch: int = 0
    state: RequestState = RequestState.QUEUED
    operation_id: int = 0
    began_epoch: int = 0
    ended_epoch: int = 0
    outcome: str = ""
    #: Its operation is taken back because its work failed.
    is_failing: bool = False
    #: What its keyspace had before, where an earlier part of the walk has ended; None elsewhere.
    original: Replication | None = None
    #: What its operations have moved, as far as it is counted: when a stage ends.
    moved_bytes: int = 0
    moved_fragments: int = 0

    @cached_property
    def about(self) -> About:
        return self.body.about

    @property
    def kind(self) -> str:
        return self.about.kind

    @property
    def node(self) -> NodeId:
        return self.about.node

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    def title(self) -> str:
        """How people refer to it: `request 7 (decommission of node 4)`."""
        about = self.about
        whom = f"keyspace {about.keyspace}" if about.keyspace else f"node {about.node}"
        return f"request {self.id} ({about.kind} of {whom})"


def rank(request: Request) -> tuple[int, int]:
    """Its place in the queue: requests run in ascending order of this."""
    return request.about.precedence, request.id


class Requests(msgspec.Struct, frozen=True, dict=True):
    """`live` by id; `ended`: the latest, in the order of their ends."""

    live: tuple[Request, ...] = ()
    ended: tuple[Request, ...] = ()
    next_id: int = 1

    @cached_property
    def by_id(self) -> dict[int, Request]:
        """Live and ended ones."""
        return {request.id: request for request in (*self.ended, *self.live)}

    @cached_property
    def by_node(self) -> dict[NodeId, Request]:
        """The live request of each node."""
        return {node: request for request in self.live for node in request.about.nodes}

    @cached_property
    def by_keyspace(self) -> dict[str, Request]:
        """The live request of each keyspace."""
        return {request.about.keyspace: request for request in self.live if request.about.keyspace}

    @cached_property
    def by_operation(self) -> dict[int, Request]:
        """The running request of each operation."""
        return {request.operation_id: request for request in self.live if request.operation_id}

    @cached_property
    def by_token(self) -> dict[int, Request]:
        """The live request that wants each token."""
        return {token: request for request in self.live for token in request.about.tokens}

    @cached_property
    def queue(self) -> tuple[Request, ...]:
        """Queued requests, the one that goes first first."""
        return tuple(sorted((r for r in self.live if r.state is RequestState.QUEUED), key=rank))

    def with_new(self, request: Request) -> Requests:
        assert request.id == self.next_id and request.is_live, "a new request gets the next id"
        return Requests((*self.live, request), self.ended, self.next_id + 1)

    def with_changed(self, changed: Request) -> Requests:
        """A live request that stays live."""
        assert changed.is_live and self.by_id[changed.id].is_live, "what ended does not change"
        assert self.by_id[changed.id].body == changed.body, "what is asked for never changes"
        assert changed.moved_bytes >= self.by_id[changed.id].moved_bytes, "what was moved only grows"
        live = tuple(changed if request.id == changed.id else request for request in self.live)
        return Requests(live, self.ended, self.next_id)

    def with_ended(self, request_id: int, state: RequestState, outcome: str, epoch: int) -> Requests:
        """End a live request; the oldest ended ones beyond the limit are forgotten."""
        request = self.by_id[request_id]
        assert request.is_live and state not in LIVE_STATES, "a request ends once"
        assert epoch >= request.began_epoch, "a request ends after it began"
        ended = msgspec.structs.replace(request, state=state, outcome=outcome, ended_epoch=epoch)
        live = tuple(other for other in self.live if other.id != request_id)
        return Requests(live, (*self.ended, ended)[-REQUESTS_ENDED_KEPT_MAX:], self.next_id)

    def validate(self, operation_ids: tuple[int, ...]) -> None:
        """`operation_ids` are those of the running operations."""
        ids = [request.id for request in self.live]
        assert ids == sorted(set(ids)), "live requests are sorted by id"
        assert all(request.is_live for request in self.live), "live requests are live"
        assert not any(request.is_live for request in self.ended), "ended requests have ended"
        known = [*ids, *(request.id for request in self.ended)]
        assert len(set(known)) == len(known), "a request is live or ended"
        assert not known or max(known) < self.next_id, "request ids are never reused"
        assert len(self.ended) <= REQUESTS_ENDED_KEPT_MAX, "the history is bounded"
        nodes = [node for request in self.live for node in request.about.nodes]
        assert len(set(nodes)) == len(nodes), "a node has one live request"
        keyspaces = [request.about.keyspace for request in self.live if request.about.keyspace]
        assert len(set(keyspaces)) == len(keyspaces), "a keyspace has one live request"
        running = sorted(r.operation_id for r in self.live if r.state is RequestState.RUNNING)
        assert tuple(running) == tuple(sorted(operation_ids)), "operations and running requests match"
        assert not any(r.operation_id for r in self.live if r.state is RequestState.QUEUED)
        for request in (*self.live, *self.ended):
            assert request.id > 0, "requests are counted from 1"
            assert not request.began_epoch or request.began_epoch >= request.requested_epoch, "then it begins"
            assert not (request.is_live and request.ended_epoch), "what is live has not ended"


NO_REQUESTS = Requests()


def begun(requests: Requests, wanted: Request, epoch: int) -> Requests:
    """The requests once the operation that `wanted` says has begun.

    `wanted.id` 0: it was asked for just now, and waited for nothing. Raises Rejected when the request is
    not queued, is for something else, or when one of the nodes, or the keyspace, has another one.
    """
    busy = requests.by_keyspace.get(wanted.about.keyspace)
    if busy is not None and busy.id != wanted.id:
        raise keyspace_busy(busy)
    for node in wanted.about.nodes:
        other = requests.by_node.get(node)
        if other is not None and other.id != wanted.id:
            raise Rejected(
                f"node {node} has {other.title()}, which is {other.state}",
                hint=f"`lockstep topology cancel {other.id}` takes it back",
            )
    if not wanted.id:
        fresh = msgspec.structs.replace(
            wanted, id=requests.next_id, policy=Policy.REFUSE, requested_epoch=epoch
        )
        return requests.with_new(_running(fresh, wanted.operation_id, epoch))
    known = requests.by_id.get(wanted.id)
    if known is None or known.state is not RequestState.QUEUED:
        raise Rejected(f"request {wanted.id} is {known.state if known is not None else 'not known'}")
    if known.body != wanted.body:
        raise Rejected(f"{known.title()} asks for something else")
    return requests.with_changed(_running(known, wanted.operation_id, epoch))


def keyspace_busy(request: Request) -> Rejected:
    """The refusal of what would change the replication, or the existence, of the keyspace of `request`."""
    name = request.about.keyspace
    return Rejected(
        f"the replication of keyspace {name} is being changed by {request.title()}, which is {request.state}",
        cql_code=0x2300,
        keyspace=name,
        hint=f"`lockstep topology watch {request.id}` follows it, `lockstep topology cancel {request.id}` "
        "takes it back",
    )


def _running(request: Request, operation_id: int, epoch: int) -> Request:
    assert request.state is RequestState.QUEUED and operation_id > 0, "a request begins once at a time"
    assert epoch >= request.requested_epoch, "a request is asked for before it begins"
    return msgspec.structs.replace(
        request, state=RequestState.RUNNING, operation_id=operation_id, began_epoch=epoch
    )


def rested(requests: Requests, operation_id: int, original: Replication) -> Requests:
    """The requests once a change of replication gives way between two of its steps: it is queued again."""
    request = requests.by_operation[operation_id]
    assert request.state is RequestState.RUNNING, "what gives way has begun"
    return requests.with_changed(
        msgspec.structs.replace(request, state=RequestState.QUEUED, operation_id=0, original=original)
    )


def without_node(requests: Requests, node: NodeId, outcome: str, epoch: int) -> Requests:
    """The requests once a node is gone for good: a queued one about it fails, with this outcome."""
    request = requests.by_node.get(node)
    if request is None or request.state is not RequestState.QUEUED:
        return requests
    return requests.with_ended(request.id, RequestState.FAILED, outcome, epoch)


def with_moved(requests: Requests, operation_id: int, moved_bytes: int, fragments: int) -> Requests:
    """The requests once so much more is counted as moved by a running operation."""
    assert moved_bytes >= 0 and fragments >= 0, "what was moved only grows"
    request = requests.by_operation[operation_id]
    return requests.with_changed(
        msgspec.structs.replace(
            request,
            moved_bytes=request.moved_bytes + moved_bytes,
            moved_fragments=request.moved_fragments + fragments,
        )
    )


def failing(requests: Requests, operation_id: int) -> Requests:
    """The requests once the work of an operation has failed for good: it is on its way back."""
    return requests.with_changed(
        msgspec.structs.replace(requests.by_operation[operation_id], is_failing=True)
    )


def finished(
    requests: Requests, operation_id: int, cancel_reason: str, rolled_back: bool, epoch: int
) -> Requests:
    """The requests once an operation has ended, in the entry that ends it."""
    request = requests.by_operation[operation_id]
    assert request.state is RequestState.RUNNING, "what ends has run"
    state = RequestState.DONE
    if rolled_back:
        state = RequestState.FAILED if request.is_failing else RequestState.CANCELLED
    return requests.with_ended(request.id, state, cancel_reason if rolled_back else "", epoch)


def _of_items(items: Sequence[Item]) -> Requests:
    requests = [value for kind, value in items if kind == 0]
    return Requests(
        tuple(request for request in requests if request.is_live),
        tuple(request for request in requests if not request.is_live),
        *(value for kind, value in items if kind == 1),
    )


def _digest(requests: Requests) -> bytes:
    live, ended = digest_of_each(requests.live, requests.next_id), digest_of_each(requests.ended)
    return digest_of((live, ended, len(requests.ended)))


#: Requests that run have an operation each, and no operation is without one.
REQUESTS: Final[Part[Requests]] = Part(
    name="requests",
    number=8,
    empty=NO_REQUESTS,
    items=lambda value: (*((0, request) for request in (*value.live, *value.ended)), (1, value.next_id)),
    kinds=(Request, int),
    builder=collected(_of_items),
    digest=_digest,
    validate=lambda now, before: now[REQUESTS].validate(tuple(now[OPERATIONS].by_id)),
    needs=(OPERATIONS,),
)
