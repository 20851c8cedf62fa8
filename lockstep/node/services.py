"""The services of one node, as the doors of its server take them."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from lockstep.node.context import NodeContext
from lockstep.node.data_service import NodeData
from lockstep.node.log_service import NodeLog
from lockstep.node.membership_service import NodeMembership
from lockstep.node.work_service import NodeWork
from lockstep.values.errors import LockstepError


class Life(Protocol):
    """Whether the node serves clients, and what keeps it from going on once something does."""

    @property
    def ready(self) -> bool: ...

    @property
    def broken(self) -> asyncio.Future[LockstepError] | None: ...


class NodeServices(msgspec.Struct, frozen=True, eq=False):
    """Of one life of a node: another one has others."""

    context: NodeContext
    log: NodeLog
    membership: NodeMembership
    data: NodeData
    work: NodeWork
    life: Life
