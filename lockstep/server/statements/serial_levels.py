"""The levels of serial reads and conditional writes, where a request names its level.

Invariant: a read of a partition at a serial level reflects all that was decided on it before. A scan at one
is, as in Cassandra, a read at the quorum that it counts: no ballots are looked at.
"""

from __future__ import annotations

from typing import Final

from lockstep.coordination.ballot_rounds import COUNTED_AS, Patience
from lockstep.cql.compile.select import POINT, SelectPlan
from lockstep.node.services import NodeServices
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import Consistency
from lockstep.values.rows import ReadCommand, ReadResult

SERIAL_LEVELS: Final = (Consistency.SERIAL, Consistency.LOCAL_SERIAL)


def check_one_partition(plan: SelectPlan) -> None:
    """InvalidRequest for a serial read of several."""
    if plan.kind == POINT and len(plan.keys) > 1:
        raise InvalidRequest(
            "SERIAL/LOCAL_SERIAL consistency may only be requested for one partition at a time"
        )


async def read_at(
    node: NodeServices, command: ReadCommand, level: Consistency, timeout_ms: float
) -> ReadResult:
    """A read at any level."""
    if level in SERIAL_LEVELS and command.key is None:
        level = COUNTED_AS[level]
    elif level in SERIAL_LEVELS:
        # Whoever is beaten while reading has nothing at stake: it goes on while it has time.
        return await node.data.conditionals.read(command, level, Patience(timeout_ms, timeout_ms))
    return await node.data.coordinator.read(command, level, timeout_ms)


def serial_write(level: Consistency) -> InvalidRequest:
    """The refusal of a write without conditions at a serial level."""
    return InvalidRequest(
        f"You must use conditional updates for serializable writes: {level.name} is no level of a write"
    )
