"""Answering nodes that want to join: a member judges them, and submits the entry that admits them.

Invariant: who is refused here was refused by the rules of `metadata.joining`, at an epoch that this node has
applied; nobody is accepted but by a committed entry.
"""

from __future__ import annotations

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.joining import JoinCode, JoinRefusal
from lockstep.node.context import NodeContext
from lockstep.node.log.histories import Histories
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.topology.joining import (
    AskJoin,
    JoinAnswer,
    JoinTerms,
    Presentation,
    Verdict,
    entry_id,
    judge,
    unfit,
)
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import NodeId

#: One submission of a newcomer's entry; it waits a little longer for the answer.
SUBMIT_TIMEOUT_MS = 8000
#: A refusal is looked at again once this node has what it has heard of: then it is definite.
NEWEST_TIMEOUT_MS = 2000


class JoinService:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        histories: Histories,
        submitter: Submitter,
    ) -> None:
        self._state = state
        self._catch_up = context.catch_up
        self._histories = histories
        self._submitter = submitter
        self._host_id = context.host_id
        self._wall_us = context.runtime.clock.wall_us
        self._log = context.log
        context.internode.register(verbs.JOIN_ASK, AskJoin, JoinTerms, self._tell)
        context.internode.register(verbs.JOIN_PRESENT, Presentation, JoinAnswer, self.judge)

    async def _tell(self, _peer: PeerInfo, _question: AskJoin) -> JoinTerms:
        cluster = self._state.current
        voters = [cluster.directory.by_id[voter] for voter in cluster.voters]
        return JoinTerms(
            cluster.identity.cluster_id,
            cluster.identity.cluster_name,
            cluster.epoch,
            cluster.features_enabled,
            tuple((voter.address, voter.internode_port) for voter in voters),
            unfit(cluster, self._host_id()),
            self._wall_us(),
        )

    async def judge(self, peer: PeerInfo, presented: Presentation) -> JoinAnswer:
        """The answer to a presentation; it is carried out when the newcomer has validated the metadata."""
        attempt = presented.attempt
        problem = unfit(self._state.current, self._host_id())
        if problem:
            return JoinAnswer(attempt, Verdict.LATER, reason=problem)
        answer = await self._judged(peer, presented)
        if answer.verdict is Verdict.REFUSED and answer.refusal is not None:
            self._log("join.refused", peer=peer.address, code=answer.refusal.code, why=answer.refusal.reason)
        if answer.verdict is not Verdict.PASSED or not presented.validated.epoch:
            return answer
        validated = presented.validated
        if self._histories.contradicts(validated.epoch, validated.hash):
            refusal = JoinRefusal(
                JoinCode.METADATA, f"the cluster holds another entry of epoch {validated.epoch}"
            )
            return JoinAnswer(attempt, Verdict.REFUSED, refusal=refusal)
        return await self._submit(presented)

    async def _judged(self, peer: PeerInfo, presented: Presentation) -> JoinAnswer:
        answer = judge(self._state.current, presented)
        if answer.verdict is not Verdict.REFUSED or not self._catch_up.behind():
            return answer
        try:
            await self._catch_up.reach(self._catch_up.newest_heard, peer.endpoint, NEWEST_TIMEOUT_MS)
        except LockstepError as error:
            return JoinAnswer(presented.attempt, Verdict.LATER, reason=error.message)
        return judge(self._state.current, presented)

    async def _submit(self, presented: Presentation) -> JoinAnswer:
        """The leader's word."""
        attempt, register = presented.attempt, presented.register
        try:
            epoch = await self._submitter.submit(register, SUBMIT_TIMEOUT_MS, entry_id=entry_id(register))
        except Rejected as refusal:
            found = judge(self._state.current, presented)
            if found.verdict is Verdict.ACCEPTED:
                return found
            code = found.refusal.code if found.refusal is not None else JoinCode.REJECTED
            told = JoinRefusal(code, refusal.message, refusal.hint)
            return JoinAnswer(attempt, Verdict.REFUSED, refusal=told)
        except LockstepError as error:
            # Not known, or not by this member: it may itself be shut out by now.
            return JoinAnswer(attempt, Verdict.LATER, reason=error.message)
        known = self._state.current.directory.by_host_id.get(register.host_id)
        node = known.id if known is not None else NodeId(0)
        return JoinAnswer(attempt, Verdict.ACCEPTED, node, epoch)
