"""Both sides of a node's conditional writes, made of its other parts.

Invariant: acceptors and proposers of one node share nothing but its parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.replication.ballots import BallotService
from lockstep.replication.conditional import Conditionals

if TYPE_CHECKING:
    from lockstep.node.parts import Parts


def conditionals_of(parts: Parts) -> Conditionals:
    """Answers ballots from now on, and takes some for clients."""
    runtime, internode, catch_up = parts.runtime, parts.internode, parts.catch_up.reach
    ballots = BallotService(
        runtime,
        internode,
        parts.engine,
        parts._cluster_now,
        catch_up,
        parts._own_id,
        parts.new_mutation_id,
        parts.replica.refusals,
    )
    ballots.require_held = parts.lacking.require
    return Conditionals(
        runtime,
        internode,
        parts.coordinator.plans,
        ballots,
        parts.coordinator.writes,
        catch_up,
        parts.liveness.alive,
        parts._own_id,
        parts.new_mutation_id,
        parts.stamps.next_us,
    )
