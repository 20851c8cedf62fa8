"""The statements of one request, planned: by text or id, long ones beside the loop.

Invariant: what a request began is ended under the statement that it has: its client is not sent away to
prepare it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lockstep.cql.wire.messages import Batch, BatchStatement, Query
from lockstep.server.planning_aside import PlanningAside, is_long
from lockstep.server.statements import Statement, Statements
from lockstep.values.request_limits import BATCH_STATEMENTS_A_TURN, STATEMENT_INLINE_CHARACTERS


def is_long_batch(parts: Sequence[Statement], batch: Batch) -> bool:
    """Whether the statements of a batch and their values are too much for the loop."""
    if len(parts) > BATCH_STATEMENTS_A_TURN:
        return True
    return any(is_long(part.text, entry.values) for part, entry in zip(parts, batch.statements, strict=True))


class RequestStatements:
    """Of one node."""

    def __init__(self, statements: Statements, aside: PlanningAside) -> None:
        self._statements = statements
        self._aside = aside

    async def of_query(self, request: Query, keyspace: str | None) -> Statement:
        if is_long(request.text):
            return await self._statements.by_long_text(request.text, keyspace, self._aside)
        return self._statements.by_text(request.text, keyspace)

    async def prepared(self, text: str, keyspace: str | None) -> Statement:
        """Of a text that is too long for the loop."""
        return await self._statements.prepare_long(text, keyspace, self._aside)

    def executed(self, statement_id: bytes, begun: bool) -> Statement:
        """`begun`: an earlier attempt may have written something."""
        statements = self._statements
        return statements.planned_anew(statement_id) if begun else statements.by_id(statement_id)

    async def of_batch(self, batch: Batch, keyspace: str | None, begun: bool) -> list[Statement]:
        """With turns for others between them."""
        found: list[Statement] = []
        characters = 0
        for at, entry in enumerate(batch.statements):
            text = entry.statement
            if at and not at % BATCH_STATEMENTS_A_TURN:
                await asyncio.sleep(0)
            if isinstance(text, str):
                characters += len(text)
                if is_long(text):
                    found.append(await self._statements.by_long_text(text, keyspace, self._aside))
                    continue
                if characters > STATEMENT_INLINE_CHARACTERS:
                    characters = 0
                    await asyncio.sleep(0)
            found.append(self._one(entry, keyspace, begun))
        return found

    def _one(self, entry: BatchStatement, keyspace: str | None, begun: bool) -> Statement:
        if isinstance(entry.statement, str):
            return self._statements.by_text(entry.statement, keyspace)
        return self.executed(entry.statement, begun)
