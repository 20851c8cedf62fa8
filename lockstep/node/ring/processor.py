"""What judges changes of the metadata where there is no log: they wait in a queue, and one after another is
agreed on among the members of the ring.

One node is designated: the member with the lowest id that seems alive. Changes of the schema, of nodes and of
roles go through it, from whichever node they come. Invariant: an opinion of who is alive decides only who
proposes; two that do at once are told apart by the ring, of which one proposal is agreed on. A submission is
settled once; one that may have been agreed on is never said to have failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ring_entries import refuse_needing_a_log
from lockstep.metadata.groups.ringed import RINGED
from lockstep.node.configuration import ClusterSection
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import Submit
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.voters import Voters, designated
from lockstep.node.processors.base import Processor, Settle
from lockstep.node.ring.carrying import name_of, ring_of
from lockstep.ring.ring import Mode, Ring
from lockstep.values.errors import (
    ConfigurationError,
    InvalidRequest,
    LockstepError,
    NotLeader,
    Overloaded,
    PeerUnreachable,
    Rejected,
)
from lockstep.values.ids import NodeId
from lockstep.values.limits import ENTRY_BODY_BYTES_MAX, REFUSED_IDS_MAX
from lockstep.values.node_limits import RING_SUBMISSIONS_MAX

#: In a term: below them is the life of the node. No group of a log gets to terms of so many bits.
TURN_BITS: Final = 32


def silent(cluster: ClusterMetadata, own: int, alive: Callable[[int], bool]) -> tuple[str, ...]:
    """Members whose word a change needs, and that seem dead; of who is shut out that is not known."""
    return tuple(
        name
        for name in ring_of(cluster).voters
        if int(name) != own and not alive(int(name)) and int(name) not in cluster.excluded_by_node
    )


def blocked(ring: Ring, dead: tuple[str, ...]) -> str:
    """Why nothing can be agreed on while these members are dead; "" when it can."""
    if not dead or (ring.mode is Mode.QUORUM and 2 * len(dead) < len(ring.voters)):
        return ""
    needed = "all members" if ring.mode is Mode.UNANIMOUS else "a majority of the members"
    return f"{needed} must accept, and {', '.join(dead)} of {len(ring.voters)} seem dead"


def refuse_other_membership(cluster: ClusterMetadata, settings: ClusterSection) -> None:
    """Raises ConfigurationError when the node is told to run on a ring that the cluster does not have. What
    is not told is learned from the cluster."""
    if not cluster.epoch or not settings.is_on_ring or cluster.ring_mode == settings.ring_mode:
        return
    if cluster.parts[RINGED].built_epoch:
        return  # It ran on the ring, and got a log.
    if not cluster.is_on_ring:
        has, hint = "has a log", 'set [cluster] membership = "log"'
    else:
        has = f"runs on the ring without a log, in the mode {cluster.ring_mode}"
        hint = f'set [cluster] membership = "ring" and ring_mode = "{cluster.ring_mode}"'
    raise ConfigurationError(f"this cluster {has}, and this node is configured otherwise", hint=hint)


class Waiting(msgspec.Struct):
    """A submission, and whom to tell how it ends."""

    submit: Submit
    settles: list[Settle]

    def settle(self, outcome: int | LockstepError) -> None:
        for settle in self.settles:
            settle(outcome)


class RingProcessor(Processor):
    """`wake()` is called when something waits."""

    def __init__(
        self, context: NodeContext, state: MetadataState, voters: Voters, wake: Callable[[], None]
    ) -> None:
        self._state = state
        self._voters = voters
        self._own_id = context.own_id
        self._host_id = context.host_id
        self._alive = context.alive
        self._founds_ring = context.configuration.cluster.is_on_ring
        self._wake = wake
        self._by_id: dict[bytes, Waiting] = {}
        self._queue: deque[Waiting] = deque()
        #: What was refused lately: an attempt that arrives late gets the same answer, whatever changed.
        self._refusals: dict[bytes, Rejected] = {}
        self._identity = context.identity
        #: How often changes began to go through this node in this life, and whether they do.
        self._turn = 0
        self._has_turn = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def leading_term(self) -> int:
        """Of this turn of this life: a copy of a question that was asked before comes too late then."""
        if not self.leads:
            raise NotLeader(None)
        return (self._identity.value.generation << TURN_BITS) + self._turn

    @property
    def leads(self) -> bool:
        leads = self._is_designated()
        if leads and not self._has_turn:
            self._turn += 1
        self._has_turn = leads
        return leads

    def _is_designated(self) -> bool:
        if self._state.broken is not None:
            return False
        cluster = self._state.current
        if not cluster.epoch:
            return self._founds_ring and self._voters.is_first(self._host_id())
        if not cluster.is_on_ring:
            return False
        own = self._own_id()
        return bool(own) and designated(cluster, own, self._alive) == own

    def take(self, submit: Submit, settle: Settle) -> None:
        try:
            self._refuse(submit)
        except LockstepError as error:
            settle(error)
            return
        known, refused = self._by_id.get(submit.entry_id), self._refusals.get(submit.entry_id)
        if refused is not None:
            settle(refused)
        elif known is not None:
            known.settles.append(settle)
        elif len(self._queue) >= RING_SUBMISSIONS_MAX:
            settle(Overloaded("too many metadata changes wait to be agreed on"))
        else:
            waiting = self._by_id[submit.entry_id] = Waiting(submit, [settle])
            self._queue.append(waiting)
            self._wake()

    def _refuse(self, submit: Submit) -> None:
        self.leading_term()
        if len(submit.body) > ENTRY_BODY_BYTES_MAX:
            raise InvalidRequest(f"a metadata entry holds at most {ENTRY_BODY_BYTES_MAX} bytes")
        try:
            refuse_needing_a_log(submit.kind)
        except Rejected as error:
            # It is so at every epoch.
            error.epoch = max(self._state.epoch, submit.base_epoch)
            raise
        cluster = self._state.current
        if cluster.epoch:
            ring, own = ring_of(cluster), self._own_id()
            why = blocked(ring, silent(cluster, own, self._alive))
            if why:
                hint = "start them again, or in the mode of majorities remove them: docs/operate/ring.md"
                raise PeerUnreachable(why, hint=hint)

    def next(self) -> Waiting | None:
        """The submission to see to now; it is told by `settled` how it ended."""
        return self._queue.popleft() if self._queue else None

    def settled(self, waiting: Waiting, outcome: int | LockstepError) -> None:
        del self._by_id[waiting.submit.entry_id]
        if isinstance(outcome, Rejected):
            self._refusals[waiting.submit.entry_id] = outcome
            if len(self._refusals) > REFUSED_IDS_MAX:
                del self._refusals[next(iter(self._refusals))]
        waiting.settle(outcome)


def own_name(own: int) -> str:
    """What this node is called in the ring."""
    return name_of(NodeId(own))
