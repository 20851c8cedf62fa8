"""What all parts share that ask replicas on behalf of clients, and the kinds of writes to replicas: what a
client asks for, what is owed, and what reads repair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.quorum.plans import Opinions, PlanBook
from lockstep.replica.replica import ReplicaService
from lockstep.replica.tracked import TrackedReplica
from lockstep.runtime.ports import Runtime
from lockstep.tracking.held import MutationId


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
    #: This node among the replicas of tracked tables; None where there are none.
    tracked: TrackedReplica | None = None

    @property
    def alive(self) -> Callable[[int], bool]:
        return self.opinions.alive


class Terms(msgspec.Struct, frozen=True, gc=False):
    """`name` is that of notes and logs."""

    name: str = "write"
    verb: int = verbs.WRITE
    #: Whether hints are left for replicas that do not acknowledge.
    leaves_hints: bool = True
    #: Whether they are left whatever the settings and windows say.
    is_owed: bool = False
    #: When it was made that hints are left for late; 0: it is made now.
    made_us: int = 0
    #: Whether it ends when the table has lost columns that are written; else nobody sees their cells.
    needs_columns: bool = True
    #: Whether it keeps a plan that it was given, of one replica, until that does not hold any more.
    is_paired: bool = False
    #: The id that the mutation was given, of a tracked table.
    tracking: MutationId | None = None


CLIENT: Final = Terms()
OWED: Final = Terms(is_owed=True, needs_columns=False)
PAIRED: Final = Terms(is_owed=True, needs_columns=False, is_paired=True)
#: What a quorum is to hold before a client is told of it.
SHOWN: Final = Terms(needs_columns=False)
#: What a read saw to be lacking is no write of a client: the next read sees it again.
REPAIR: Final = Terms("read-repair", verbs.READ_REPAIR, leaves_hints=False, needs_columns=False)
