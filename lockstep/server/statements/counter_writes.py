"""Changes of counters that clients ask for.

Invariant: as long as something may have been counted, the client hears of an unknown outcome and of nothing
else, for a change that is sent twice counts twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.modification import BatchPlan, ModificationPlan
from lockstep.cql.compile.prepared import Prepared
from lockstep.node.services import NodeServices
from lockstep.schema.model import Table
from lockstep.server.statements.statements import Statement
from lockstep.values.errors import LockstepError, WriteTimeout
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation


def counts(prepared: Prepared) -> bool:
    """Whether a modification or batch changes counters. Deleting them is like deleting anything."""
    return isinstance(prepared.plan, BatchPlan | ModificationPlan) and prepared.plan.counts


def tables_of(parts: Sequence[Statement]) -> list[Table]:
    """The tables that modifications of a batch change; what is no modification is refused later."""
    plans = (part.prepared.plan for part in parts)
    return [plan.shape.table for plan in plans if isinstance(plan, ModificationPlan)]


def at_server_time(context: Context) -> Context:
    """Counters go by the clocks of servers, whatever time the client names."""
    return msgspec.structs.replace(context, timestamp_us=context.stamp_us)


async def change_counters(
    node: NodeServices, mutations: Sequence[Mutation], consistency: Consistency, timeout_ms: float
) -> None:
    """Each mutation is of another partition. RequestError: the first one."""
    if len(mutations) == 1:
        await node.data.counters.change(mutations[0], consistency, timeout_ms)
        return
    tasks = [
        node.context.runtime.tasks.spawn(
            node.data.counters.change(mutation, consistency, timeout_ms), "cql.counter"
        )
        for mutation in mutations
    ]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [outcome for outcome in outcomes if outcome is not None]
    for error in errors:
        if not isinstance(error, LockstepError):
            raise error
    if not errors:
        return
    first = errors[0]
    assert isinstance(first, LockstepError), "others were raised"
    if len(errors) == len(outcomes) and all(isinstance(e, LockstepError) and e.outcome_known for e in errors):
        raise first
    failure = WriteTimeout(consistency, 0, 1, "COUNTER")
    failure.message = f"{failure.message} (part of the batch: {first.message})"
    raise failure
