"""What all parts share that ask replicas on behalf of clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import msgspec

from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.quorum.plans import Plan, PlanBook
from lockstep.replica.replica import ReplicaService
from lockstep.runtime.ports import Runtime


class Opinions(msgspec.Struct, frozen=True, eq=False):
    """Of other nodes. `alive` orders replicas and refuses hopeless requests; by `prefers` reads go to some of
    those alive before others; a node seems alive for certain until `alive_until_s`."""

    alive: Callable[[int], bool]
    prefers: Callable[[int], bool]
    alive_until_s: Callable[[int], float] = lambda _node: -inf


class CoordinationContext(msgspec.Struct, frozen=True, eq=False):
    """`plans` are for all who plan requests on this node. `catch_up(epoch, source)` returns when the epoch is
    applied here; `new_mutation_id` names what is written on this node's own account, as read repairs."""

    runtime: Runtime
    internode: Internode
    replica: ReplicaService
    plans: PlanBook
    catch_up: Callable[[int, Address], Awaitable[None]]
    own_id: Callable[[], int]
    new_mutation_id: Callable[[], bytes]
    opinions: Opinions

    @property
    def alive(self) -> Callable[[int], bool]:
        return self.opinions.alive

    def require_alive(self, plan: Plan) -> None:
        """Unavailable when the replicas that seem alive could not satisfy the plan."""
        alive = self.opinions.alive
        seeming = [target.node for target in plan.targets if alive(target.node)]
        if plan.attainable and (len(seeming) == len(plan.targets) or plan.satisfied_by(seeming)):
            return
        raise plan.shortage(seeming)

    def note_alive(self, plan: Plan) -> None:
        """Ask no more who seems alive while all targets of a plan certainly do."""
        alive_until_s = self.opinions.alive_until_s
        plan.alive_until_s = min((alive_until_s(target.node) for target in plan.targets), default=-inf)
