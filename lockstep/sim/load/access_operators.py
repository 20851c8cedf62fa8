"""Operators who make roles, grant, revoke and drop them, and who ask for what can never be in order.

Invariant (REF-1): what is wrong at every epoch is never acknowledged. ACC-1: at the epoch of a dropped role
nothing names it, what was granted is there, and memberships have no circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lockstep.metadata.access.permissions import ChangePermissions
from lockstep.metadata.access.role_changes import (
    AlterRole,
    ChangeMembership,
    ChangeRole,
    CreateRole,
    DropRole,
)
from lockstep.metadata.access.roles import Access
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import SetExtension
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.log import Submitted
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.wrong_wishes import Wish, wrong_wishes
from lockstep.sim.runtime.streams import Stream

_OPERATORS = 8
_PATIENCE_S = 3.0
#: Few names, so that operators meet.
_ROLES = ("reader", "writer", "owner", "all")
_RESOURCES = ("data", f"data/{KEYSPACE}", f"data/{KEYSPACE}/t1", f"data/{KEYSPACE}/r1", "data/none", "mbean")
_RESOURCES_OF_ROLES = ("roles", *(f"roles/{name}" for name in _ROLES), f"functions/{KEYSPACE}")
_PERMISSIONS = (("SELECT",), ("MODIFY", "SELECT"), ("ALTER",), ("EXECUTE",), ("DROP", "AUTHORIZE"))
#: Share of submissions that are wrong on purpose.
_WRONG = 0.6


class AccessOperators:
    """`pause_ms`: mean pause of each operator."""

    def __init__(self, operators: Operators, pause_ms: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_ms = pause_ms
        self._draw: Stream = operators.cluster.world.stream("access operators")
        self._told: list[tuple[Wish, Submitted]] = []
        #: Wrong ones come in turn, from a drawn one on.
        self._turn: int = self._draw.randrange(100)

    def start(self, runtime: Runtime) -> None:
        for _ in range(_OPERATORS):
            runtime.tasks.spawn(self._run(runtime), "access operator")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1000 / self._pause_ms))
            is_wrong = self._draw.random() < _WRONG
            wish = self._wrong() if is_wrong else self._access()
            submitted = await self._operators.submit(runtime, *wish, patience_s=_PATIENCE_S)
            self._cluster.fact(f"{'wrong' if is_wrong else 'access'} wish {submitted.outcome}")
            if is_wrong and submitted.outcome == "ok":
                raise Violation("REF-1", f"{wish[1]} was accepted at epoch {submitted.epoch}")
            self._told.append((wish, submitted))

    def _wrong(self) -> Wish:
        wishes = wrong_wishes(self._cluster.newest)
        self._turn += 1
        return wishes[self._turn % len(wishes)]

    def _access(self) -> Wish:
        draw = self._draw
        name, other = draw.choice(_ROLES), draw.choice(_ROLES)
        chosen = draw.randrange(12)
        if chosen < 4:
            made = CreateRole(
                name,
                superuser=draw.random() < 0.2,
                data_centers=tuple(self._cluster.dcs()) if draw.random() < 0.2 else (),
                if_not_exists=draw.random() < 0.5,
                creator=draw.choice(("", other)),
                only_first=draw.random() < 0.1,
            )
            return EntryKind.ROLE_CHANGE, ChangeRole(made)
        if chosen == 4:
            altered = AlterRole(name, login=draw.random() < 0.5, if_exists=draw.random() < 0.5)
            return EntryKind.ROLE_CHANGE, ChangeRole(altered)
        if chosen == 5:
            return EntryKind.ROLE_CHANGE, ChangeRole(DropRole(name, if_exists=draw.random() < 0.5))
        if chosen < 8:
            return EntryKind.ROLE_MEMBERSHIP, ChangeMembership(name, other, draw.random() < 0.7)
        if chosen == 8:
            # Without a value it is forgotten.
            return EntryKind.SET_EXTENSION, SetExtension(f"e{draw.randrange(2)}", draw.choice((b"", b"v")))
        resource = draw.choice((*_RESOURCES, *_RESOURCES_OF_ROLES))
        change = ChangePermissions(name, resource, draw.choice(_PERMISSIONS), draw.random() < 0.7)
        return EntryKind.PERMISSIONS, change

    def judge(self, values: Sequence[ClusterMetadata]) -> int:
        """ACC-1 of what was acknowledged; `values[e]` is the value of epoch e. How many were judged."""
        judged = 0
        for (_, wish), submitted in self._told:
            if submitted.outcome == "ok":
                access = values[submitted.epoch].access
                _check(access, wish, submitted.epoch)
                judged += 1
        return judged


def _check(access: Access, wish: object, epoch: int) -> None:
    for role in access.listed_roles():
        if any(role.name in access.closure(other) for other in role.member_of):
            raise Violation("ACC-1", f"{role.name} is a member of itself at epoch {epoch}")
    if isinstance(wish, ChangeRole):
        _check_role(access, wish, epoch)
    elif isinstance(wish, ChangeMembership):
        inside = wish.role in access.closure(wish.grantee)
        if wish.member and not inside:
            raise Violation("ACC-1", f"{wish.grantee} is no member of {wish.role} at epoch {epoch}")
    elif isinstance(wish, ChangePermissions):
        held = access.permissions(wish.role, wish.resource)
        granted = set(access.granted(wish.role, wish.resource)).intersection(wish.permissions)
        if (wish.granted and not granted) or (not wish.granted and granted) or not held.issuperset(granted):
            raise Violation("ACC-1", f"{wish} left {sorted(granted)} at epoch {epoch}")


def _check_role(access: Access, wish: ChangeRole, epoch: int) -> None:
    name = wish.change.name
    if not isinstance(wish.change, DropRole):
        if access.role(name) is None and not (isinstance(wish.change, AlterRole) and wish.change.if_exists):
            raise Violation("ACC-1", f"there is no role {name} at epoch {epoch}")
        return
    grants = [
        one for one in access.listed_grants() if name in (one.role, one.resource.removeprefix("roles/"))
    ]
    members = [one.name for one in access.listed_roles() if name in (one.name, *one.member_of)]
    if grants or members:
        raise Violation("ACC-1", f"role {name} was dropped at epoch {epoch}: {grants} and {members} name it")
