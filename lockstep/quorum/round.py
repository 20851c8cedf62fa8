"""One question to several replicas: a pure machine of events and effects that knows nothing of what is asked;
and the kinds of requests that it serves, as values: all in which they differ from each other.

Events are the methods that return effects. The contract of a driver (see `coordination.driving`):

1. Carry out the effects of an event in their order and before the next event, but for those that this causes.
2. `Ask`: send to these replicas; give `answered`, `refused` or `failed` once for each, at any time, also
   after the end. Whoever was asked is outstanding until then.
3. `Retry`: give `again` (or `planned`, of a round that follows) after so many milliseconds, once. `Learn`:
   catch up with that replica and give `learned` or `not_learned`. Neither is asked for twice at a time.
4. `Check`: enough have answered as far as the round knows. Give `confirmed` with the newest plan, or
   `withdrawn` for answers that turn out to say too little.
5. `Ended`: told once, and last. `stop` ends a round for a reason of its driver; nothing is told of that.

Invariant: A round ends once. It ends as ENOUGH only when the replicas that count satisfy its plan; an
acceptance counts for a plan only when it was given at or after the last change that matters to the plan.
Nobody is asked who is being asked. What a replica knows that matters is learned before anything else is
decided. Kinds of requests differ in their `Policy` alone. A change of a counter, which is to be added once,
goes to another replica only after an error that says that nothing was added.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from lockstep.placement.quorums import Requirement
from lockstep.values.errors import (
    CorruptFile,
    HandshakeRefused,
    LockstepError,
    NodeExcluded,
    NotReplica,
    Overloaded,
    PeerError,
    PeerTimeout,
    RangeLacking,
    StaleEpoch,
)
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPLICA_RETRY_MS, REQUEST_PLANS_MAX


class Target:
    """One replica as a request sees it."""

    __slots__ = ("address", "dc", "node", "shows")

    def __init__(self, node: NodeId, address: tuple[str, int], dc: str, shows: bool = True) -> None:
        self.node = node
        self.address = address
        self.dc = dc
        #: Whether it may be asked for data.
        self.shows = shows


class Quorum(Protocol):
    """Who may answer and when that is enough: a plan at an epoch, or a plain count of nodes.

    `needs_epoch` is the newest change that matters to it; `required` is how many answers may do at the least.
    """

    epoch: int
    needs_epoch: int
    targets: tuple[Target, ...]
    by_node: Mapping[NodeId, Target]
    #: The effects of a beginning at which all targets are asked; a driver may tell them by identity.
    everyone: tuple[Ask]
    needs: tuple[Requirement, ...]
    required: int
    #: One of these is to be among those that suffice; None: nobody in particular.
    readers: frozenset[NodeId] | None

    def satisfied_by(self, nodes: Iterable[NodeId]) -> bool: ...


class Count:
    """A quorum without a plan: `required` of these nodes, whichever."""

    __slots__ = ("by_node", "epoch", "everyone", "needs", "needs_epoch", "readers", "required", "targets")

    def __init__(self, targets: Sequence[Target], required: int) -> None:
        self.epoch = self.needs_epoch = 0
        self.targets = tuple(targets)
        self.everyone = asking(self.targets)
        self.required = required
        self.readers: frozenset[NodeId] | None = None
        self.needs: tuple[Requirement, ...] = (Requirement("", required),)
        self.by_node: Mapping[NodeId, Target] = {target.node: target for target in targets}
        assert required > 0, "nobody is asked for nothing"
        assert len(self.by_node) == len(self.targets), "a node counts once"

    def satisfied_by(self, nodes: Iterable[NodeId]) -> bool:
        return len(self.by_node.keys() & nodes) >= self.required


class First(enum.Enum):
    """Who is asked at the beginning."""

    EVERYONE = "everyone"
    #: The best that suffice; others as those fail or are slow.
    ENOUGH = "enough"


class Failure(enum.Enum):
    """What the error of a replica means for a round."""

    #: It knows a change that matters.
    AHEAD = "ahead"
    #: It may do better in a moment.
    PASSING = "passing"
    #: It will not do what is asked.
    FINAL = "final"
    #: Nobody else may be asked after this one.
    DECISIVE = "decisive"


class Policy(msgspec.Struct, frozen=True):
    """What a kind of request differs in; the kinds are below."""

    #: As logs and probes name it.
    name: str
    first: First
    #: The first row that has the class of an error says what the error means; else it is `otherwise`.
    failures: tuple[tuple[tuple[type[LockstepError], ...], Failure], ...]
    otherwise: Failure = Failure.FINAL
    #: Whether it keeps what was answered and goes on when its plan changes; else who is ahead ends it.
    follows: bool = False
    #: Whether the best one that was not asked yet is asked at once when another one fails.
    replaces: bool = False
    #: Whether a failure that may pass is forgotten when its replica is asked again, or told at the end.
    forgets: bool = False
    #: Whether an answer otherwise means that another request was first; then nobody dead is waited for.
    contends: bool = False

    def judge(self, error: LockstepError) -> Failure:
        for classes, failure in self.failures:
            if isinstance(error, classes):
                return failure
        return self.otherwise


class Why(enum.StrEnum):
    """Why replicas are asked, as probes name it."""

    BEGIN = "begun"
    #: It answered, or refused, an attempt from before the present plan.
    ANSWERED_BEFORE = "answered_before_plan"
    REFUSED_BEFORE = "refused_before_plan"
    #: In the place of, or beside, one that failed or is slow.
    ANOTHER = "asked_another"
    #: Its failure may have passed.
    RETRIED = "retried"
    REPLANNED = "replanned"
    #: Its answer said too little.
    CONTENT = "content"


class End(enum.Enum):
    ENOUGH = "enough"
    #: So many answered otherwise that the others cannot suffice.
    REFUSED = "refused"
    #: So many failed for good that the others cannot suffice, or one failed so that nobody else may be asked.
    FAILED = "failed"
    #: A replica knows of a change that matters: see `source`.
    STALE = "stale"
    LATE = "late"
    #: Its driver ended it.
    STOPPED = "stopped"


class Ask(msgspec.Struct, frozen=True, gc=False):
    targets: tuple[Target, ...]
    why: Why


class Retry(msgspec.Struct, frozen=True, gc=False):
    after_ms: int


class Learn(msgspec.Struct, frozen=True, gc=False):
    """Of `epoch`, which `source` knows."""

    epoch: int
    source: Target


class Check(msgspec.Struct, frozen=True, gc=False):
    pass


class Ended(msgspec.Struct, frozen=True, gc=False):
    end: End


Effect = Ask | Retry | Learn | Check | Ended
Effects = tuple[Effect, ...]

#: Members that each request names: to look one up in its class takes a tenth of a microsecond.
BEGIN: Final = Why.BEGIN
ENOUGH: Final = End.ENOUGH
_FIRST_ENOUGH: Final = First.ENOUGH

NOTHING: Final[Effects] = ()
#: Made once: the answers of most requests have these effects, and a driver may tell them by identity.
CHECK: Final[Effects] = (Check(),)
_RETRY: Final[Effects] = (Retry(REPLICA_RETRY_MS),)
_ENDED: Final[Mapping[End, Effects]] = {end: (Ended(end),) for end in End}
_ENOUGH: Final[Effects] = _ENDED[ENOUGH]


def asking(targets: tuple[Target, ...]) -> tuple[Ask]:
    """To ask these at the beginning."""
    return (Ask(targets, BEGIN),)


Q = TypeVar("Q", bound=Quorum)


class Round(Generic[Q]):
    """`order` is who may be asked, best first; the targets of the plan unless it is given. `holders` count
    without having been asked: each has what is asked for since an epoch. `suspects` seem dead."""

    __slots__ = (
        "accepted",
        "end",
        "failures",
        "is_learning",
        "is_waiting",
        "oldest",
        "order",
        "outstanding",
        "plan",
        "plans_made",
        "policy",
        "refusers",
        "source",
        "suspects",
    )

    def __init__(
        self,
        policy: Policy,
        plan: Q,
        order: Sequence[Target] | None = None,
        holders: Mapping[NodeId, int] | None = None,
        suspects: Collection[NodeId] = (),
    ) -> None:
        self.policy = policy
        self.plan = plan
        self.order: Sequence[Target] = plan.targets if order is None else order
        #: Node -> the newest epoch at which it accepted.
        self.accepted: dict[NodeId, int] = {} if holders is None else dict(holders)
        #: Nobody accepted at an older epoch than this.
        self.oldest: float = inf if not holders else min(holders.values())
        #: Nodes that were asked and have not ended.
        self.outstanding: dict[NodeId, None] = {}
        #: Node -> what it failed with.
        self.failures: dict[NodeId, LockstepError] = {}
        #: Nodes that answered otherwise.
        self.refusers: dict[NodeId, None] = {}
        self.suspects = suspects
        #: (epoch, replica) that is ahead, of a round that ended for that.
        self.source: tuple[int, Target] | None = None
        #: Whether a change that matters is being learned, and whether `again` will come.
        self.is_learning = self.is_waiting = False
        self.plans_made = 1
        self.end: End | None = None

    # -- what counts ------------------------------------------------------------------------------

    def counting(self) -> list[NodeId]:
        """Nodes whose acceptance counts for the present plan."""
        since = self.plan.needs_epoch
        if self.oldest >= since:
            return list(self.accepted)
        return [node for node, epoch in self.accepted.items() if epoch >= since]

    def lacking(self) -> list[Target]:
        """Replicas of the plan whose acceptance does not count."""
        plan, accepted = self.plan, self.accepted
        since = plan.needs_epoch
        is_fresh = len(accepted) >= len(plan.by_node) and self.oldest >= since
        if is_fresh and accepted.keys() >= plan.by_node.keys():
            return []
        return [target for target in plan.targets if accepted.get(target.node, -1) < since]

    def has_fresh(self) -> bool:
        """Whether there is somebody who was not asked."""
        assert self.policy.replaces, "others are asked at once"
        if not self.failures and not self.refusers:
            return len(self.outstanding) + len(self.accepted) < len(self.order)
        return any(self._is_fresh(target.node) for target in self.order)

    def asked(self) -> list[Target]:
        """Replicas that may have heard of this."""
        return [target for target in self.order if not self._is_fresh(target.node)]

    def failed_with(self, failure: Failure) -> dict[NodeId, LockstepError]:
        judge = self.policy.judge
        return {node: error for node, error in self.failures.items() if judge(error) is failure}

    # -- events -----------------------------------------------------------------------------------

    def begin(self, first: Sequence[Target] | None = None) -> Effects:
        """`first`: who is asked where others are to be asked only if those fail or are slow."""
        assert not self.outstanding and self.end is None, "a round begins once"
        if first is None:
            plan = self.plan
            if self.policy.first is _FIRST_ENOUGH:
                first = first_choice(plan.needs, self.order)
            elif self.accepted:
                first = self.lacking()
            elif self.order is plan.targets:
                self.outstanding = dict.fromkeys(plan.by_node)
                return plan.everyone
            else:
                first = self.order
        effects = self._ask(first, BEGIN)
        is_enough = self.accepted and self.plan.satisfied_by(self.counting())
        return (*effects, *CHECK) if is_enough else effects

    def answered(self, node: NodeId, epoch: int) -> Effects:
        """A replica did what was asked, at an epoch."""
        self.outstanding.pop(node, None)
        accepted = self.accepted
        if epoch > accepted.get(node, -1):
            accepted[node] = epoch
            if epoch < self.oldest:
                self.oldest = epoch
        if self.failures:
            self.failures.pop(node, None)
        if self.end is not None or self.is_learning:
            return NOTHING
        plan = self.plan
        if len(accepted) >= plan.required:
            # Without a change of plans all that was accepted counts.
            counts = self.oldest >= plan.needs_epoch or not self.policy.follows
            if plan.satisfied_by(accepted if counts else self.counting()):
                return CHECK
        return self._missing(Why.ANSWERED_BEFORE) if epoch < plan.needs_epoch else NOTHING

    def refused(self, node: NodeId) -> Effects:
        """A replica answered, and not what was wanted."""
        self.outstanding.pop(node, None)
        if self.end is not None:
            return NOTHING
        self.refusers[node] = None
        return self._replaced()

    def failed(self, target: Target, error: LockstepError) -> Effects:
        self.outstanding.pop(target.node, None)
        if self.end is not None:
            return NOTHING
        return _FAILED[self.policy.judge(error)](self, target, error)

    def withdrawn(self, targets: Sequence[Target]) -> Effects:
        """Answers of these replicas say too little: they are asked for more."""
        for target in targets:
            del self.accepted[target.node]
        return self._ask(targets, Why.CONTENT)

    def slow(self, count: int = 1) -> Effects:
        """Those asked take long: so many others are asked beside them, if there are any that help."""
        assert count > 0, "one that is slow is helped by one at least"
        if self.end is not None:
            return NOTHING
        more: list[Target] = []
        for target in self.order:
            if len(more) < count and self._is_fresh(target.node) and self._helps(target, self.accepted):
                more.append(target)
        return self._ask(more, Why.ANOTHER)

    def again(self) -> Effects:
        """The time of a `Retry` is over, of a round that keeps its plan."""
        self.is_waiting = False
        if self.end is not None or self.is_learning:
            return NOTHING
        passing = self.failed_with(Failure.PASSING).keys() - self.outstanding.keys()
        return self._ask([target for target in self.order if target.node in passing], Why.RETRIED)

    def planned(self, newest: Q, *, paused: bool = False) -> Effects:
        """Go on under the newest plan: what counts for it stays, all others are asked. `paused`: the time of
        a `Retry` is over, so that no number of changes is too much."""
        assert self.policy.follows, "only some rounds outlive their plan"
        assert newest.epoch >= self.plan.epoch, "a plan is followed by one of later metadata"
        if paused:
            self.is_waiting = False
        if self.end is not None or self.is_learning:
            return NOTHING
        plan, why = self.plan, Why.RETRIED
        if newest is not plan:
            if newest.needs_epoch > plan.epoch:
                if self.plans_made >= REQUEST_PLANS_MAX and not paused:
                    return self._retry()
                self.plans_made += 1
            self.plan, self.order, why = newest, newest.targets, Why.REPLANNED
        if newest.satisfied_by(self.counting()):
            return self._over(End.ENOUGH)
        return self._missing(why)

    def confirmed(self, newest: Q) -> Effects:
        """After a `Check`: `newest` is the plan by all that is known; the present one ends it as enough."""
        plan = self.plan
        if newest is plan or newest.needs_epoch <= plan.epoch:
            assert self.end is None, "a round ends once"
            self.end = ENOUGH
            return _ENOUGH
        return self.planned(newest)

    def learned(self, newest: Q) -> Effects:
        """The change that a replica knew is known here."""
        assert self.is_learning, "nobody learns unasked"
        self.is_learning = False
        return self.planned(newest)

    def not_learned(self) -> Effects:
        """The source did not deliver: all are asked again shortly, another one may tell more."""
        assert self.is_learning, "nobody learns unasked"
        self.is_learning = False
        return self._retry() if self.end is None else NOTHING

    def expired(self) -> Effects:
        return self._over(End.LATE) if self.end is None else NOTHING

    def waits(self) -> bool:
        """Have `again` come at a time of the driver's; False when it is to come anyway, or never."""
        if self.is_waiting or self.end is not None:
            return False
        self.is_waiting = True
        return True

    def stop(self) -> None:
        """Nothing is decided any more; answers are still noted."""
        if self.end is None:
            self.end = End.STOPPED

    # -- steps ------------------------------------------------------------------------------------

    def _ask(self, targets: Sequence[Target], why: Why) -> Effects:
        if not targets:
            return NOTHING
        outstanding, failures = self.outstanding, self.failures
        for target in targets:
            node = target.node
            assert node not in outstanding, "nobody is asked who is being asked"
            outstanding[node] = None
        if failures:
            for target in targets:
                self._forget(target.node)
        return (Ask(tuple(targets), why),)

    def _forget(self, node: NodeId) -> None:
        error, policy = self.failures.get(node), self.policy
        if error is not None and (policy.forgets or policy.judge(error) is Failure.FINAL):
            del self.failures[node]

    def _missing(self, why: Why) -> Effects:
        """Ask every replica of the plan whose acceptance does not count and that is not being asked."""
        return self._ask([target for target in self.lacking() if target.node not in self.outstanding], why)

    def _ahead(self, target: Target, error: LockstepError) -> Effects:
        assert isinstance(error, StaleEpoch), "only one refusal tells of a newer epoch"
        if not self.policy.follows:
            self.source = (error.epoch, target)
            return self._over(End.STALE)
        if error.epoch <= self.plan.epoch:
            return self._missing(Why.REFUSED_BEFORE)
        if self.is_learning:
            return NOTHING
        self.is_learning = True
        return (Learn(error.epoch, target),)

    def _passing(self, target: Target, error: LockstepError) -> Effects:
        self.failures[target.node] = error
        if self.policy.contends and self.refusers and (end := self._hopeless()):
            return end
        return (*(self._another() if self.policy.replaces else NOTHING), *self._retry())

    def _final(self, target: Target, error: LockstepError) -> Effects:
        self.failures[target.node] = error
        return self._replaced()

    def _decisive(self, target: Target, error: LockstepError) -> Effects:
        self.failures[target.node] = error
        return self._over(End.FAILED)

    def _retry(self) -> Effects:
        return _RETRY if self.waits() else NOTHING

    def _replaced(self) -> Effects:
        """Somebody will not do what is asked: the end, or another one is asked."""
        return self._hopeless() or (self._another() if self.policy.replaces else NOTHING)

    def _another(self) -> Effects:
        """The best one for a need that those who answered and those who are asked do not meet; else any."""
        known = self.accepted.keys() | self.outstanding.keys()
        for target in self.order:
            if self._is_fresh(target.node) and self._helps(target, known):
                return self._ask([target], Why.ANOTHER)
        return self.slow()

    def _hopeless(self) -> Effects:
        """The end, when those who may still do what is asked cannot suffice."""
        refusers, satisfied_by = self.refusers, self.plan.satisfied_by
        possible = {*self.accepted, *(target.node for target in self.order)}.difference(refusers)
        gone = {*self.failed_with(Failure.PASSING), *self.suspects} if self.policy.contends else set()
        if refusers and not satisfied_by(possible - (gone - self.accepted.keys())):
            return self._over(End.REFUSED)
        final = self.failed_with(Failure.FINAL)
        if final and not satisfied_by(possible.difference(final)):
            return self._over(End.FAILED)
        return NOTHING

    def _over(self, end: End) -> Effects:
        assert self.end is None, "a round ends once"
        self.end = end
        return _ENDED[end]

    def _is_fresh(self, node: NodeId) -> bool:
        known = (self.outstanding, self.accepted, self.failures, self.refusers)
        return all(node not in one for one in known)

    def _helps(self, target: Target, known: Container[NodeId]) -> bool:
        """Whether a need that `known` do not meet misses answers that this replica could give."""
        readers = self.plan.readers
        if readers is not None and not any(node in known for node in readers):
            return target.node in readers
        held = [one for one in self.order if one.node in known]
        return any(
            need.dc in ("", target.dc) and sum(1 for one in held if need.dc in ("", one.dc)) < need.count
            for need in self.plan.needs
        )

    def validate(self) -> None:
        """What holds between any two events."""
        counting = self.counting()
        assert all(epoch >= self.oldest for epoch in self.accepted.values()), "nobody accepted before that"
        assert self.end is not None or not self.plan.satisfied_by(()), "nobody is asked for nothing"
        assert self.policy.follows or not self.is_learning, "who does not follow ends where others learn"
        assert (self.end is End.STALE) == (self.source is not None), "who ends for a change names its source"
        assert self.plans_made == 1 or self.policy.follows, "a plan is kept unless the policy says otherwise"
        assert not (self.end is End.ENOUGH and not self.plan.satisfied_by(counting)), "enough is enough"
        assert not set(self.refusers) & set(counting), "who answered otherwise does not count"
        if self.policy.forgets:
            assert not set(self.failures) & set(self.outstanding), "who is asked again has not failed"


_FAILED: Final[Mapping[Failure, Callable[[Round[Any], Target, LockstepError], Effects]]] = {
    Failure.AHEAD: Round._ahead,
    Failure.PASSING: Round._passing,
    Failure.FINAL: Round._final,
    Failure.DECISIVE: Round._decisive,
}


def first_choice(needs: Iterable[Requirement], ordered: Iterable[Target]) -> list[Target]:
    """The shortest prefix choice of `ordered` that meets every need; all useful ones when none does."""
    missing = {need.dc: need.count for need in needs}
    chosen: list[Target] = []
    for target in ordered:
        for dc in (target.dc, ""):
            if missing.get(dc, 0) > 0:
                missing[dc] -= 1
                chosen.append(target)
                break
    return chosen


#: A replica that answered with one of these may do better in a moment.
_TRANSIENT: Final = ((PeerError, NotReplica, Overloaded), Failure.PASSING)
_AHEAD: Final = ((StaleEpoch,), Failure.AHEAD)

#: Writes of clients, what is owed to replicas, and what reads repair: each replica has to have them.
WRITE: Final = Policy("write", First.EVERYONE, (_AHEAD, _TRANSIENT), follows=True)
#: Questions for rows; their answers are of one plan.
READ: Final = Policy("read", First.ENOUGH, (_AHEAD, _TRANSIENT), replaces=True, forgets=True)
#: Promises and proposals of ballots: a majority decides, whichever it is.
VOTE: Final = Policy("votes", First.ENOUGH, (_AHEAD, _TRANSIENT), replaces=True, forgets=True, contends=True)
#: Decisions of ballots: each replica has to have them.
BALLOT: Final = Policy("conditional", First.EVERYONE, (_AHEAD, _TRANSIENT), forgets=True)
#: Who keeps a logged batch, which knows no plan.
BATCH: Final = Policy("batches", First.ENOUGH, (_TRANSIENT,), replaces=True)
#: Who counts a change of a counter: one after the other.
COUNTER: Final = Policy(
    "counter",
    First.ENOUGH,
    (
        ((PeerTimeout,), Failure.DECISIVE),
        _AHEAD,
        _TRANSIENT,
        ((NodeExcluded, HandshakeRefused, RangeLacking, CorruptFile), Failure.PASSING),
    ),
    otherwise=Failure.DECISIVE,
    replaces=True,
)
