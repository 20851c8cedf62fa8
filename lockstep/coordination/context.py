"""What all parts share that ask replicas on behalf of clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.quorum.plans import Opinions, PlanBook
from lockstep.replica.replica import ReplicaService
from lockstep.runtime.ports import Runtime


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
