"""Taking commands out of the log of the management group: what this node's member holds, and the plan that
the metadata group is to decide.

Invariant: nothing is changed before the metadata group has appended its entry; asked again, a member says the
same of its log, broken or not.
"""

from __future__ import annotations

import msgspec

from lockstep.consensus.raft import Raft
from lockstep.internode import verbs
from lockstep.metadata.groups.management import ManagementState, decode_state
from lockstep.node.context import NodeContext
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.management import Management
from lockstep.node.recovery.reset_service import SURVEY_TIMEOUT_MS, ResetService
from lockstep.recovery.management_cut import (
    ManagementCut,
    ManagementHeld,
    PlannedCut,
    described,
    held_of,
    plan_cut,
    state_before,
)
from lockstep.values.errors import CannotApply, LockstepError, PreconditionError
from lockstep.values.node_limits import RECOVERY_LISTED_ENTRIES_MAX


class AskManagement(msgspec.Struct, frozen=True, array_like=True):
    """What does your member of the management group hold from this index on? `shown`: so many commands."""

    index: int
    shown: int = RECOVERY_LISTED_ENTRIES_MAX


class CutPlan(msgspec.Struct, frozen=True):
    """`held`: what members said, by node. `silent`: why others did not."""

    planned: PlannedCut
    held: tuple[ManagementHeld, ...]
    silent: dict[int, str]


class ManagementCutting:
    def __init__(
        self, context: NodeContext, log: NodeLog, management: Management, desk: ResetService
    ) -> None:
        self._own_id = context.own_id
        self._log = log
        self._management = management
        self._desk = desk
        context.internode.register(verbs.RECOVERY_MANAGEMENT, AskManagement, ManagementHeld, self._serve)

    async def _serve(self, _peer: object, question: AskManagement) -> ManagementHeld:
        return self.held(question)

    def held(self, question: AskManagement) -> ManagementHeld:
        """PreconditionError on a node that has no member of the group."""
        group = self._management.group
        if group is None:
            raise PreconditionError(f"node {self._own_id()} is no member of the management group")
        raft, index = group.driver.raft, question.index
        count = min(question.shown, RECOVERY_LISTED_ENTRIES_MAX)
        entries = raft.entries(max(index, raft.first_index), raft.last_index)
        told = ManagementHeld(
            node=self._own_id(),
            broken=str(group.broken) if group.broken is not None else "",
            applied=group.state.index,
            committed=raft.commit_index,
            last=raft.last_index,
            snapshot=raft.snapshot.index if raft.snapshot is not None else 0,
            voters=raft.configuration.voters,
            commands=tuple(described(entry) for entry in entries[:count]),
            more=max(0, len(entries) - count),
        )
        return held_of(told, _before(raft, index), self._log.cluster.directory.by_host_id)

    async def plan(self, cut: ManagementCut) -> CutPlan:
        """What a truncation would do now. PreconditionError where there is nothing to take out, or no way
        to."""
        surveyed = await self._desk.survey()
        held, silent = dict[int, ManagementHeld](), dict(surveyed.silent)
        for one in surveyed.answers:
            node, question = one.node, AskManagement(cut.index)
            if node == self._own_id():
                answer = self._own(question)
            else:
                answer = await self._desk.ask(node, verbs.RECOVERY_MANAGEMENT, question, SURVEY_TIMEOUT_MS)
            if isinstance(answer, ManagementHeld):
                held[node] = answer
            else:
                silent[node] = answer
        told = tuple(held.values())
        planned = plan_cut(self._log.state.current, surveyed.answers, told, cut, self._desk.drawn())
        return CutPlan(planned, told, silent)

    def _own(self, question: AskManagement) -> ManagementHeld | str:
        try:
            return self.held(question)
        except LockstepError as error:
            return error.message


def _before(raft: Raft, index: int) -> ManagementState | None:
    """The state before the index, from what the log keeps; None where a snapshot has more than that, or a
    command cannot be read."""
    snapshot, first = raft.snapshot, raft.first_index
    base = None
    if snapshot is not None and snapshot.index < index:
        try:
            base = decode_state(snapshot.data)
        except CannotApply:
            return None
        first = max(first, snapshot.index + 1)
    elif first > 1:
        return None
    last = min(index - 1, raft.last_index)
    return state_before(base, raft.entries(first, last) if first <= last else (), index)
