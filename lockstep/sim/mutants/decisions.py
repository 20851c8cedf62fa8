"""Planted bugs of conditional writes."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, Acceptor, Ballot, Fate, Proposal
from lockstep.coordination import ballot_rounds as rounds_module
from lockstep.coordination import past_proposals
from lockstep.coordination.conditional import Conditionals, _Read
from lockstep.cql.compile.context import Context
from lockstep.internode import verbs
from lockstep.node.work import worker as work_module
from lockstep.replica.ballot_messages import PrepareRequest
from lockstep.replica.ballots import BallotService
from lockstep.sim.plant import Planted, replaced
from lockstep.values.ids import Consistency


def _promise_forgotten() -> contextlib.AbstractContextManager[None]:
    """An acceptor takes whatever is proposed, also under a ballot older than its promise."""

    def accept(state: Acceptor, proposal: Proposal) -> tuple[Acceptor, bool]:
        return msgspec.structs.replace(state, accepted=proposal), True

    return replaced((paxos, "accept", accept))


def _accepted_ignored() -> contextlib.AbstractContextManager[None]:
    """A proposer does not finish what others had accepted before it."""
    original = paxos.judge

    def judge(states: Any) -> Any:
        return msgspec.structs.replace(original(states), in_progress=None)

    return replaced((paxos, "judge", judge))


def _ballots_not_durable() -> contextlib.AbstractContextManager[None]:
    """An acceptor answers before the disk has its ballots."""
    original = BallotService._keep

    def keep(self: Any, place: Any, before: Any, after: Any) -> int:
        original(self, place, before, after)
        return 0

    return replaced((BallotService, "_keep", keep))


def _ballots_not_moved() -> contextlib.AbstractContextManager[None]:
    """A replica that gains a range gets its rows, and not its ballots."""
    return replaced((work_module, "ballots_of", lambda table_id: table_id))


def _fate_unheard() -> contextlib.AbstractContextManager[None]:
    """A proposer that lost sight of its proposal takes it for one that never takes effect."""
    return replaced((paxos, "fate", lambda own, committed: Fate.LOST))


def _past_finished() -> contextlib.AbstractContextManager[None]:
    """What was left in progress is finished as it is, however old."""

    async def finished(self: Any, plan: Any, left: Proposal) -> Proposal:
        return left

    return replaced((rounds_module.Rounds, "_finished", finished))


def _past_voided() -> contextlib.AbstractContextManager[None]:
    """An old proposal is ended without effect whoever knows it as decided."""

    async def ended(rounds: Any, plan: Any, left: Proposal, now_s: int) -> Proposal:
        return left.voided()

    return replaced((past_proposals, "ended", ended))


def _one_voter() -> contextlib.AbstractContextManager[None]:
    """One replica decides."""
    counted = {Consistency.SERIAL: Consistency.ONE, Consistency.LOCAL_SERIAL: Consistency.ONE}
    return replaced((rounds_module, "COUNTED_AS", counted))


def _read_looks_only() -> contextlib.AbstractContextManager[None]:
    """A serial read does not finish what a quorum has accepted and nobody that it asked knows as decided."""

    async def looked(self: Any, plan: Any, command: Any) -> Any:
        request = PrepareRequest(plan.epoch, plan.needs_epoch, self.place, NO_BALLOT, command)
        canvass = self.canvass(plan, verbs.CAS_PREPARE, request, rounds_module.promises)
        if not await self.won(plan, canvass) or self.changed(plan):
            return None
        found = paxos.judge({node: reply.state for node, reply in canvass.granted.items()})
        return None if found.lacking else [reply.result for reply in canvass.granted.values()]

    return replaced((_Read, "_looked", looked))


def _ballots_not_drawn() -> contextlib.AbstractContextManager[None]:
    """Two requests that choose one microsecond have one ballot."""
    original = Conditionals.next_ballot

    def next_ballot(self: Any, floor_us: int) -> Ballot:
        return Ballot(original(self, floor_us).time_us, 1)

    return replaced((Conditionals, "next_ballot", next_ballot))


def _lists_by_clock() -> contextlib.AbstractContextManager[None]:
    """Elements are ordered by the clock of the coordinator that a client happened to ask."""

    def decided_at(self: Context, time_us: int) -> Context:
        return msgspec.structs.replace(self, timestamp_us=time_us)

    return replaced((Context, "decided_at", decided_at))


def _one_local_voter() -> contextlib.AbstractContextManager[None]:
    """One replica of a data centre decides for it."""
    counted = {**rounds_module.COUNTED_AS, Consistency.LOCAL_SERIAL: Consistency.LOCAL_ONE}
    return replaced((rounds_module, "COUNTED_AS", counted))


DECISIONS = (
    Planted("promise_forgotten", "two proposals are decided at once", "lwt", _promise_forgotten),
    Planted("accepted_ignored", "what was decided is decided again", "lwt", _accepted_ignored),
    Planted("ballots_not_durable", "a power loss takes promises back", "lwt", _ballots_not_durable),
    Planted("fate_unheard", "not applied is said of what was applied", "lwt", _fate_unheard),
    Planted("one_voter", "two coordinators decide apart", "lwt", _one_voter),
    Planted("read_looks_only", "a serial read misses what was applied", "lwt", _read_looks_only),
    Planted("ballots_not_drawn", "two values are decided by one ballot", "lwt", _ballots_not_drawn),
    Planted("lists_by_clock", "a later append stands before an earlier one", "lwt", _lists_by_clock),
    Planted("one_local_voter", "a data centre decides against itself", "lwt_dcs", _one_local_voter),
)
#: Brought about by tests: they take proposals that are left open, and replicas that are down or gone.
DIRECTED = (
    Planted("ballots_not_moved", "new replicas do not know of ballots", "lwt", _ballots_not_moved),
    Planted("past_finished", "what was deleted and purged returns", "lwt", _past_finished),
    Planted("past_voided", "one lock is granted twice", "lwt", _past_voided),
)
