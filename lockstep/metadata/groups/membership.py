"""Entries that change who votes in the metadata group, and the rules the service keeps.

Invariant: one change runs at a time; its sub-steps are recorded one by one, each naming its change and
position, so that a second copy of an entry is refused. While the service is frozen only entries about the
service itself and facts about nodes are accepted.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import TABLE, Held, Scope, Wanted, refuse_during, wanted_of
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.ringed import RINGED
from lockstep.metadata.groups.service import SERVICE, MembershipChange, Service
from lockstep.metadata.groups.voter_choice import crowded_dc, eligible, has_place, size_problem
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.requests import REQUESTS, RequestState
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import METADATA_VOTERS_MAX, SERVICE_TEXT_CHARACTERS_MAX

#: Raft takes one more voter than the group may have, for additions come before removals.
_VOTERS_BETWEEN_MAX = METADATA_VOTERS_MAX + 1
_STATUS_HINT = "`lockstep cms reconfigure --status` shows it, `--cancel` takes it back"


def refuse_while_frozen(cluster: ClusterMetadata, kind: int) -> None:
    """Raises Rejected with the operator's reason for kinds that must wait for the thaw."""
    reason, upgrading = cluster.service.frozen, cluster.parts[RINGED].upgrading
    if not (reason or upgrading) or TABLE[wanted_of(kind), Held.FREEZE].scope is not Scope.ALWAYS:
        return
    if upgrading is not None:
        raise Rejected(
            f"the cluster is on its way to a log since epoch {upgrading.begun_epoch}, and changes nothing "
            "else until that has ended",
            hint="lockstep upgrade status; `lockstep upgrade abort` gives it up",
        )
    raise Rejected(f"the metadata is frozen: {reason}", hint="`lockstep cms thaw` ends it")


class PrepareMembership(msgspec.Struct, frozen=True, array_like=True):
    """Begin a change of voters. `size` is given when an operator named the voters: their number, which is
    kept from then on; 0 when the leader chose them.

    `down`: nodes that the submitter saw down, or given up lately; none of them is added.
    """

    additions: tuple[NodeId, ...]
    removals: tuple[NodeId, ...]
    reason: str = ""
    size: int = 0
    down: tuple[NodeId, ...] = ()

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        service = cluster.service
        _refuse_running(cluster)
        _check_text(self.reason)
        for node in self.additions:
            self._check_addition(cluster, node)
        for node in self.removals:
            if node not in service.voters:
                raise Rejected(f"node {node} is no voter")
        self._check_result(cluster)
        change = MembershipChange(epoch, self.additions, self.removals, reason=self.reason)
        assert {*self.additions}.isdisjoint(service.voters), "who comes did not vote"
        assert change.steps > 0, "a change takes a step"
        paused = service.paused if not self.size else ""
        return _with(
            cluster,
            msgspec.structs.replace(service, change=change, size=self.size or service.size, paused=paused),
        )

    def _check_addition(self, cluster: ClusterMetadata, node: NodeId) -> None:
        info = cluster.node(node)
        if info is None:
            raise Rejected(f"there is no node {node}")
        if node in cluster.service.voters:
            raise Rejected(f"node {node} is a voter already")
        if not has_place(cluster, info):
            raise Rejected(f"only nodes of the cluster can vote; node {node} is {info.state}")
        if not info.may_vote:
            raise Rejected(f"node {node} is configured never to vote")
        if node in cluster.service.leaving or any(node == o.about.departing for o in cluster.operations):
            raise Rejected(f"node {node} is to leave the cluster")
        if node in self.down:
            raise Rejected(f"node {node} is down")
        if node in cluster.excluded_by_node:
            raise Rejected(f"node {node} is excluded: {TABLE[Wanted.VOTERS, Held.EXCLUSION].why}")

    def _check_result(self, cluster: ClusterMetadata) -> None:
        voters = cluster.service.voters
        named = (*self.additions, *self.removals)
        if not named:
            raise Rejected("these are the voters already")
        if len(set(named)) != len(named):
            raise Rejected("a change of voters names each node once")
        after = tuple(sorted({*voters, *self.additions} - {*self.removals}))
        if self.size not in (0, len(after)):
            raise Rejected(f"the change leads to {len(after)} voters, not {self.size}")
        if not after:
            raise Rejected("the metadata group needs one voter at least")
        if len(after) % 2 == 0 or len(after) > METADATA_VOTERS_MAX:
            raise Rejected(
                f"the group has an odd number of voters up to {METADATA_VOTERS_MAX}, not {len(after)}"
            )
        if len(voters) + len(self.additions) > _VOTERS_BETWEEN_MAX:
            raise Rejected(
                f"{len(voters)} voters and {len(self.additions)} more are too many at once",
                hint=f"at most {_VOTERS_BETWEEN_MAX} vote during a change: replace them in several steps",
            )
        crowded = crowded_dc(cluster, after) if self.size else ""
        if crowded:
            raise Rejected(f"data centre {crowded} would hold half of the votes or more")


class AdvanceMembership(msgspec.Struct, frozen=True, array_like=True):
    """Record a finished sub-step: `voters` are those of the Raft configuration now in force.

    The last one ends the change; so does any one of a cancelled change.
    """

    change: int
    index: int
    voters: tuple[NodeId, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        service = cluster.service
        change = _running(service, self.change)
        if self.index != change.index:
            done = "was already applied" if self.index < change.index else "is not due"
            raise Rejected(f"sub-step {self.index} of {change.title()} {done}; it is at {change.index}")
        after = voters_after(service)
        allowed = (after, service.voters) if change.cancelled else (after,)
        if self.voters not in allowed:
            raise Rejected(f"sub-step {self.index} leads to voters {list(after)}, not {list(self.voters)}")
        assert self.voters, "a group without voters decides nothing, also not on new ones"
        assert len({*self.voters} ^ {*service.voters}) <= 1, "one voter comes or goes at a time"
        ended = change.cancelled or self.index + 1 == change.steps
        moved = None if ended else msgspec.structs.replace(change, index=self.index + 1)
        assert moved is None or moved.index < moved.steps, "a change that goes on has a step left"
        return _with(cluster, msgspec.structs.replace(service, voters=self.voters, change=moved))


class CancelMembership(msgspec.Struct, frozen=True, array_like=True):
    """Stop a change: a half-added member is dropped, finished sub-steps stay, and voters are not changed
    automatically until someone asks for it, but for one that would make their number even. Nodes that waited
    to leave stay.

    `unreached`: whom the leader gives up, for the present sub-step waits for it in vain: the one that is to
    vote, or one that was to stay; 0 when an operator cancels. The wish behind the change is not over then:
    other nodes are chosen at once, whoever is to leave still is.
    """

    change: int
    reason: str = ""
    unreached: NodeId = NodeId(0)

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        service = cluster.service
        change = _running(service, self.change)
        if change.cancelled:
            raise Rejected(f"{change.title()} is being cancelled already")
        _check_text(self.reason)
        if self.unreached:
            awaited = (change.member,) if change.adds else voters_after(service)
            if self.unreached not in awaited:
                raise Rejected(f"{change.title()} does not wait for node {self.unreached}")
            return _with(cluster, _taken_back(service, change))
        paused = self.reason or f"change {change.id} was cancelled"
        staying = tuple(
            node for node in service.leaving if node in service.members or not _asked(cluster, node)
        )
        changed = msgspec.structs.replace(
            _taken_back(service, change),
            leaving=tuple(node for node in service.leaving if node not in staying),
            paused=paused,
        )
        return _without_requests(_with(cluster, changed), staying, paused, epoch)


class ServiceWish(enum.StrEnum):
    """What an operator asks of the service: SIZE with `size` (0: follow the cluster), FREEZE with `text`,
    THAW, RESUME automatic changes, STAY with `node`; LEAVE is only in old logs."""

    SIZE = "size"
    FREEZE = "freeze"
    THAW = "thaw"
    RESUME = "resume"
    LEAVE = "leave"
    STAY = "stay"


class SetService(msgspec.Struct, frozen=True, array_like=True):
    """One wish of an operator."""

    wish: ServiceWish
    size: int = 0
    node: NodeId = NodeId(0)
    text: str = ""

    def prepared(self, cluster: ClusterMetadata) -> SetService:
        """A leader makes no entry that nobody would carry out."""
        if self.wish is ServiceWish.LEAVE:
            raise Rejected(
                "a node leaves by a request", hint=f"`lockstep topology decommission {self.node}` makes it"
            )
        return self

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        _check_text(self.text)
        service = cluster.service
        if self.wish is ServiceWish.SIZE:
            changed = self._sized(cluster)
        elif self.wish is ServiceWish.FREEZE:
            changed = msgspec.structs.replace(service, frozen=self.text or "by an operator")
        elif self.wish is ServiceWish.THAW:
            changed = msgspec.structs.replace(service, frozen="")
        elif self.wish is ServiceWish.RESUME:
            changed = msgspec.structs.replace(service, paused="")
        elif self.wish is ServiceWish.LEAVE:
            changed = with_leaving(cluster, self.node)
        else:
            changed = self._staying(cluster)
            cluster = _without_requests(cluster, (self.node,), self.text or "it is to stay", epoch)
        return _with(cluster, changed)

    def _sized(self, cluster: ClusterMetadata) -> Service:
        _refuse_running(cluster)
        problem = size_problem(cluster, self.size) if self.size else ""
        if problem:
            raise Rejected(problem, hint="an odd number that the nodes can hold, or `auto`")
        return msgspec.structs.replace(cluster.service, size=self.size, paused="")

    def _staying(self, cluster: ClusterMetadata) -> Service:
        service = cluster.service
        if self.node not in service.leaving:
            raise Rejected(f"node {self.node} does not wait to leave")
        leaving = tuple(node for node in service.leaving if node != self.node)
        return msgspec.structs.replace(service, leaving=leaving)


def with_leaving(cluster: ClusterMetadata, node: NodeId) -> Service:
    """The service once `node` is to leave: it loses its vote before it is gone. A change that was to give it
    one ends, and others are chosen."""
    service = cluster.service
    # Its decommission would be refused until the thaw, so the wish is refused now and not left waiting.
    refuse_while_frozen(cluster, EntryKind.PREPARE_OPERATION)
    info = cluster.node(node)
    if info is None:
        raise Rejected(f"there is no node {node}")
    if node in service.leaving:
        raise Rejected(f"node {node} waits to leave already")
    if info.state is not NodeState.NORMAL:
        raise Rejected(f"only a normal node can leave; node {node} is {info.state}")
    if [one.id for one in eligible(cluster)] == [node]:
        raise Rejected(f"node {node} is the last node that can vote")
    change = service.change
    if change is not None and node in change.additions[change.index :] and not change.cancelled:
        # Nobody waits for its vote any more; should it have it by now, it loses it as any voter does.
        service = _taken_back(service, change)
    leaving = tuple(sorted((*service.leaving, node)))
    assert len(leaving) == len(service.leaving) + 1, "one more waits to leave"
    return msgspec.structs.replace(service, leaving=leaving, paused="")


def voters_after(service: Service) -> tuple[NodeId, ...]:
    """The voters once the present sub-step of the running change is done."""
    change = service.change
    assert change is not None, "a change is running"
    assert 0 <= change.index < change.steps, "a change is at one of its steps"
    if change.adds:
        return tuple(sorted({*service.voters, change.member}))
    return tuple(voter for voter in service.voters if voter != change.member)


def without_vote(cluster: ClusterMetadata, node: NodeId) -> ClusterMetadata:
    """What a plan is made on when `node` is to be no voter by then: nothing else about the voters holds."""
    voters = tuple(voter for voter in cluster.service.voters if voter != node)
    return _with(cluster, msgspec.structs.replace(cluster.service, voters=voters, change=None))


def without_leaving(service: Service, node: NodeId) -> Service:
    """The service once the decommission of `node` has begun: its wish is granted."""
    if node not in service.leaving:
        return service
    return msgspec.structs.replace(service, leaving=tuple(n for n in service.leaving if n != node))


def _taken_back(service: Service, change: MembershipChange) -> Service:
    """The sub-step under way is finished or undone, no other one begins."""
    return msgspec.structs.replace(service, change=msgspec.structs.replace(change, cancelled=True))


def _asked(cluster: ClusterMetadata, node: NodeId) -> bool:
    """Whether a queued request is about the node."""
    request = cluster.requests.by_node.get(node)
    return request is not None and request.state is RequestState.QUEUED


def _without_requests(
    cluster: ClusterMetadata, nodes: tuple[NodeId, ...], reason: str, epoch: int
) -> ClusterMetadata:
    """Cancel the queued requests of nodes that are to stay."""
    requests = cluster.requests
    for node in nodes:
        if _asked(cluster, node):
            request = cluster.requests.by_node[node]
            requests = requests.with_ended(request.id, RequestState.CANCELLED, reason, epoch)
    return cluster.changed(REQUESTS.set(requests)) if nodes else cluster


def _running(service: Service, change_id: int) -> MembershipChange:
    change = service.change
    if change is None:
        raise Rejected(
            f"change {change_id} of the voters has ended", hint="lockstep cms reconfigure --status"
        )
    if change.id != change_id:
        raise Rejected(f"change {change_id} of the voters has ended; {change.title()} is running")
    return change


def _refuse_running(cluster: ClusterMetadata) -> None:
    what = "the voters cannot be changed"
    refuse_during(cluster, Wanted.VOTERS, Held.VOTERS, what, _STATUS_HINT)


def _check_text(text: str) -> None:
    if len(text) > SERVICE_TEXT_CHARACTERS_MAX:
        raise Rejected(f"a reason has at most {SERVICE_TEXT_CHARACTERS_MAX} characters")


def _with(cluster: ClusterMetadata, service: Service) -> ClusterMetadata:
    assert service.voters == tuple(sorted(set(service.voters))), "a voter votes once"
    assert service.leaving == tuple(sorted(set(service.leaving))), "a node waits to leave once"
    return cluster.changed(SERVICE.set(service))


KINDS: dict[int, type] = {
    EntryKind.PREPARE_MEMBERSHIP: PrepareMembership,
    EntryKind.ADVANCE_MEMBERSHIP: AdvanceMembership,
    EntryKind.CANCEL_MEMBERSHIP: CancelMembership,
    EntryKind.SET_SERVICE: SetService,
}
