"""How a node joins: phases, what is said in each, and the comparison of metadata between them.

    the joining node                       a member                        the leader
    how do I join?              ->         cluster, epoch, voters
    presents itself             ->         judges: passed | refused | later
    catches up, compares the metadata
    presents itself as validated ->        judges, submits the entry  ->   the entry judges again
                                <-         accepted(id, epoch) | refused | later

Invariant: each attempt has a number, later ones larger ones, also over restarts; an answer to another attempt
than the present one changes nothing; a node is accepted only by an entry of the log.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.joining import (
    JoinCode,
    JoinRefusal,
    joining_node,
    refusal_by_identity,
    refusal_of,
)
from lockstep.metadata.log.apply import part_digests
from lockstep.metadata.log.entries import ENTRY_ID_BYTES
from lockstep.metadata.transformations import Register
from lockstep.values import codec
from lockstep.values.ids import NodeId
from lockstep.values.limits import JOIN_ATTEMPTS_PER_START_MAX


class Phase(enum.StrEnum):
    ASKING = "asking"
    PRESENTED = "presented"
    BASICALLY_VALIDATED = "basically_validated"
    METADATA_VALIDATED = "metadata_validated"
    JOINED = "joined"
    REFUSED = "refused"


class Event(enum.StrEnum):
    """What the joining node hears, or finds out. LATER: no answer, or none that settles it."""

    TERMS = "told how to join"
    PASSED = "passed"
    COMPARED = "metadata is the same"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    LATER = "no answer, or later"


#: Where each event leads; an event without a row cannot happen in the phase.
TABLE: Mapping[tuple[Phase, Event], Phase] = {
    (Phase.ASKING, Event.TERMS): Phase.PRESENTED,
    (Phase.ASKING, Event.LATER): Phase.ASKING,
    (Phase.PRESENTED, Event.PASSED): Phase.BASICALLY_VALIDATED,
    (Phase.PRESENTED, Event.ACCEPTED): Phase.JOINED,
    (Phase.PRESENTED, Event.REFUSED): Phase.REFUSED,
    (Phase.PRESENTED, Event.LATER): Phase.ASKING,
    (Phase.BASICALLY_VALIDATED, Event.COMPARED): Phase.METADATA_VALIDATED,
    (Phase.BASICALLY_VALIDATED, Event.REFUSED): Phase.REFUSED,
    (Phase.BASICALLY_VALIDATED, Event.LATER): Phase.ASKING,
    (Phase.METADATA_VALIDATED, Event.ACCEPTED): Phase.JOINED,
    (Phase.METADATA_VALIDATED, Event.REFUSED): Phase.REFUSED,
    (Phase.METADATA_VALIDATED, Event.LATER): Phase.ASKING,
}
#: Phases that nothing leads out of.
ENDS = (Phase.JOINED, Phase.REFUSED)


class AskJoin(msgspec.Struct, frozen=True, array_like=True):
    """How does one join your cluster?"""

    cluster_name: str


class JoinTerms(msgspec.Struct, frozen=True, array_like=True):
    """`unfit`: why this member is not to be asked (it has left, it is shut out); empty when it is. `wall_us`:
    its wall clock; 0 from older versions."""

    cluster_id: str
    cluster_name: str
    epoch: int
    features_enabled: tuple[str, ...]
    #: (host, internode port) of the voters of the metadata group.
    voters: tuple[tuple[str, int], ...]
    unfit: str = ""
    wall_us: int = 0


class Basis(msgspec.Struct, frozen=True, array_like=True):
    """What two nodes compare of their metadata: the hash of the entry of `epoch`, and the digests of the
    value's parts there (none: they are not known any more)."""

    epoch: int = 0
    hash: bytes = b""
    parts: tuple[tuple[str, bytes], ...] = ()


class Presentation(msgspec.Struct, frozen=True, array_like=True):
    """A node that wants to join. `cluster_id` "": it belongs to none yet. `validated`: what it has compared;
    its epoch is 0 in the first presentation of an attempt, which is judged and not carried out."""

    register: Register
    cluster_name: str
    cluster_id: str = ""
    validated: Basis = Basis()

    @property
    def attempt(self) -> int:
        return self.register.attempt


class Verdict(enum.StrEnum):
    PASSED = "passed"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    LATER = "later"


class JoinAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`node`, `epoch`: of ACCEPTED. `basis`: of PASSED. `refusal`: of REFUSED. `reason`: of LATER."""

    attempt: int
    verdict: Verdict
    node: NodeId = NodeId(0)
    epoch: int = 0
    basis: Basis = Basis()
    refusal: JoinRefusal | None = None
    reason: str = ""


_EVENTS: Mapping[Verdict, Event] = {
    Verdict.PASSED: Event.PASSED,
    Verdict.ACCEPTED: Event.ACCEPTED,
    Verdict.REFUSED: Event.REFUSED,
    Verdict.LATER: Event.LATER,
}


class JoinState(msgspec.Struct, frozen=True):
    """Where a joining node is. `node`, `epoch` once it has joined; `refusal` once it is refused; `reason`:
    why the last attempt came to nothing."""

    attempt: int
    phase: Phase = Phase.ASKING
    basis: Basis = Basis()
    node: NodeId = NodeId(0)
    epoch: int = 0
    refusal: JoinRefusal | None = None
    reason: str = ""

    def validate(self) -> None:
        assert self.attempt > 0, "attempts have numbers"
        assert (self.phase is Phase.JOINED) == bool(self.node and self.epoch), "who joined has an id"
        assert (self.phase is Phase.REFUSED) == (self.refusal is not None), "a refusal has a reason"
        assert self.basis.epoch or self.phase not in (
            Phase.BASICALLY_VALIDATED,
            Phase.METADATA_VALIDATED,
        ), "what is compared is known"


def first_attempt(start: int) -> JoinState:
    """The first attempt of a node's `start`-th start: larger than all of earlier starts."""
    return JoinState(start * JOIN_ATTEMPTS_PER_START_MAX + 1)


def told_terms(state: JoinState) -> JoinState:
    return _moved(state, Event.TERMS)


def answered(state: JoinState, answer: JoinAnswer) -> JoinState:
    """After an answer. One to another attempt, or that does not fit the phase, changes nothing."""
    if answer.attempt != state.attempt or (state.phase, _EVENTS[answer.verdict]) not in TABLE:
        return state
    if state.phase in (Phase.ASKING, Phase.BASICALLY_VALIDATED):
        return state  # Nothing was asked that this could answer.
    if answer.verdict is Verdict.LATER:
        return given_up(state, answer.reason)
    if answer.verdict is Verdict.REFUSED and answer.refusal is None:
        return given_up(state, "refused without a reason")
    if answer.verdict is Verdict.ACCEPTED and not (answer.node and answer.epoch):
        return given_up(state, "accepted without an id")
    return _moved(
        state,
        _EVENTS[answer.verdict],
        basis=answer.basis if answer.verdict is Verdict.PASSED else state.basis,
        node=answer.node,
        epoch=answer.epoch,
        refusal=answer.refusal,
    )


def compared(state: JoinState, own: Basis) -> JoinState:
    """After the comparison of this node's metadata with that of the member that passed it."""
    problem = difference(own, state.basis)
    if problem:
        hint = "start it with an empty data directory; if that does not help: `lockstep metadata verify`"
        return _moved(state, Event.REFUSED, refusal=JoinRefusal(JoinCode.METADATA, problem, hint))
    return _moved(state, Event.COMPARED, basis=own)


def given_up(state: JoinState, reason: str) -> JoinState:
    """Nothing came of this attempt: the next one has the next number."""
    assert state.phase not in ENDS, "what has ended is not tried again"
    assert (state.attempt + 1) % JOIN_ATTEMPTS_PER_START_MAX, "a start has a limited number of attempts"
    return JoinState(state.attempt + 1, reason=reason)


def _moved(state: JoinState, event: Event, **changes: object) -> JoinState:
    moved: JoinState = msgspec.structs.replace(state, phase=TABLE[state.phase, event], reason="", **changes)
    moved.validate()
    return moved


# -- the comparison ----------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True):
    """One thing that two nodes compare; `compare(own, theirs)` says what differs, or nothing."""

    name: str
    compare: Callable[[Basis, Basis], str]


def _same_history(own: Basis, theirs: Basis) -> str:
    if own.hash == theirs.hash:
        return ""
    return f"this node holds another entry of epoch {own.epoch} than the cluster"


def _same_parts(own: Basis, theirs: Basis) -> str:
    held = dict(theirs.parts)
    differ = [name for name, digest in own.parts if name in held and held[name] != digest]
    return f"the metadata of epoch {own.epoch} differs here in {', '.join(differ)}" if differ else ""


#: What is compared before a node joins; others may be added.
COMPARISONS = (Comparison("history", _same_history), Comparison("parts", _same_parts))


def basis_of(cluster: ClusterMetadata) -> Basis:
    return Basis(cluster.epoch, cluster.hash, part_digests(cluster))


def difference(own: Basis, theirs: Basis) -> str:
    """What differs between the metadata of two nodes at one epoch; empty when nothing does."""
    assert own.epoch == theirs.epoch, "values of one epoch are compared"
    for comparison in COMPARISONS:
        found = comparison.compare(own, theirs)
        if found:
            return found
    return ""


# -- the member that is asked ------------------------------------------------------------------------


def unfit(cluster: ClusterMetadata, own_host: str) -> str:
    """Why this node must not be asked by newcomers; empty when it may be."""
    if not cluster.epoch:
        return "it has no cluster yet"
    own = cluster.directory.by_host_id.get(own_host)
    if own is None:
        return "it is no member"
    if own.state is NodeState.LEFT:
        return f"node {own.id} has left the cluster"
    if own.id in cluster.excluded_by_node:
        return f"node {own.id} is excluded from the cluster"
    return ""


def judge(cluster: ClusterMetadata, presented: Presentation) -> JoinAnswer:
    """What a member says that has applied `cluster`: PASSED when the entry may be submitted."""
    attempt = presented.attempt
    known = joining_node(cluster, presented.register.host_id)
    refusal = refusal_by_identity(cluster, presented.cluster_name, presented.cluster_id)
    if refusal is None and known is not None and known.attempt == attempt:
        return JoinAnswer(attempt, Verdict.ACCEPTED, known.id, known.accepted_epoch)
    if refusal is None:
        refusal = refusal_of(cluster, presented.register.entry(cluster, cluster.epoch + 1))
    if refusal is not None:
        return JoinAnswer(attempt, Verdict.REFUSED, refusal=refusal)
    return JoinAnswer(attempt, Verdict.PASSED, basis=basis_of(cluster))


def entry_id(register: Register) -> bytes:
    """Id of the entry of an attempt: whoever submits it, it is in the log once."""
    text = codec.encode(("join", register.host_id, register.attempt))
    return hashlib.blake2b(text, digest_size=ENTRY_ID_BYTES).digest()


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"  [*] --> {Phase.ASKING}"]
    for (phase, event), target in TABLE.items():
        lines.append(f"  {phase} --> {target} : {event}")
    lines.extend(f"  {phase} --> [*]" for phase in ENDS)
    return "\n".join(lines) + "\n"
