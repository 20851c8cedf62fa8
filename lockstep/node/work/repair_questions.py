"""Asking participants of a repair, this node among them, again for a while when they cannot be reached.

Invariant: who cannot be reached through all attempts, or refuses, makes the question fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lockstep.internode import verbs
from lockstep.node.context import NodeContext
from lockstep.replica.repair_messages import AskRows, AskTree, Mend, Mended, Note, Noted, Tree
from lockstep.replica.repair_participant import RepairParticipant
from lockstep.replica.session_guards import SessionGuards
from lockstep.values.errors import Overloaded, PeerError, PeerUnreachable
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPAIR_ATTEMPTS_MAX, REPAIR_TIMEOUT_MS, REPLICA_RETRY_MS
from lockstep.values.rows import ReadResult


class RepairQuestions:
    def __init__(
        self,
        context: NodeContext,
        participant: RepairParticipant,
        guards: SessionGuards,
    ) -> None:
        self._runtime = context.runtime
        self._internode = context.internode
        self._participant = participant
        self._guards = guards
        self._metadata = context.cluster
        self._own_id = context.own_id

    async def tree(self, node: NodeId, ask: AskTree) -> bytes:
        """The digests of the leaves; they may take long to build."""
        while True:
            tree: Tree = await self._ask(node, verbs.REPAIR_TREE, ask, self._participant.tree)
            if tree.ready:
                return tree.leaves

    async def rows(self, node: NodeId, ask: AskRows) -> ReadResult:
        found: ReadResult = await self._ask(node, verbs.REPAIR_READ, ask, self._participant.rows)
        return found

    async def mend(self, node: NodeId, mend: Mend) -> None:
        taken: Mended = await self._ask(node, verbs.REPAIR_WRITE, mend, self._participant.mend)
        assert taken.applied == len(mend.mutations), "what is acknowledged was taken whole"

    async def note(self, node: NodeId, note: Note) -> Noted:
        noted: Noted = await self._ask(node, verbs.REPAIR_NOTE, note, self._participant.note)
        return noted

    async def _ask(self, node: NodeId, verb: int, question: Any, here: Callable[[Any], Any]) -> Any:
        attempt = 0
        while True:
            self._guards.require(question.session_id)
            try:
                if node == self._own_id():
                    return await here(question)
                info = self._metadata().directory.by_id.get(node)
                if info is None:
                    raise PeerUnreachable(f"node {node} is gone")
                address = (info.address, info.internode_port)
                return await self._internode.request(address, verb, question, REPAIR_TIMEOUT_MS)
            except (PeerError, Overloaded):
                attempt += 1
                if attempt >= REPAIR_ATTEMPTS_MAX:
                    raise
            await self._runtime.probes.linger("repair.question.again")
            await asyncio.sleep(attempt * 4 * REPLICA_RETRY_MS / 1000)
