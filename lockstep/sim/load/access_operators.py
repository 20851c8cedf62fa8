"""Operators who make roles, grant, revoke and drop them, and who ask for what can never be in order.

Invariant (REF-1): what is wrong at every epoch after the first is refused by any leader, whatever else is
under way, and what it names is never made by anybody else: an acknowledgement is a violation. ACC-1: at the
epoch of a dropped role nothing names it, what was granted is there, and memberships have no circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from lockstep.metadata.access.role_changes import (
    AlterRole,
    ChangeMembership,
    ChangePermissions,
    ChangeRole,
    CreateRole,
    DropRole,
    RoleChange,
)
from lockstep.metadata.access.roles import Access
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import EnableFeatures, ExcludeNodes, IncludeNodes
from lockstep.metadata.groups.membership import (
    AdvanceMembership,
    CancelMembership,
    PrepareMembership,
    ServiceWish,
    SetService,
)
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.operations import Stage
from lockstep.metadata.repairs import RepairPart, RepairState
from lockstep.metadata.requests import Policy
from lockstep.metadata.transformations import Founder, Initialize, Register, SetExtension, UpdateNode
from lockstep.runtime.ports import Runtime
from lockstep.schema.model import Replication
from lockstep.sim.checkers.log import Submitted
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.topology.force_remove import ForceRemove, MarkRepaired
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.repairs import BeginRepair, EndRepair
from lockstep.topology.requests import CancelRequest, EnqueueRequest, FailRequest
from lockstep.topology.transformations import (
    AdvanceOperation,
    CancelOperation,
    CountMoved,
    PrepareOperation,
)
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    EXTENSION_NAME_CHARACTERS_MAX,
    METADATA_VOTERS_MAX,
    ROLE_NAME_CHARACTERS_MAX,
    SERVICE_TEXT_CHARACTERS_MAX,
    TOKENS_PER_NODE_MAX,
)
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN

Wish = tuple[EntryKind, Any]

#: Ids that no run reaches.
_NOBODY: Final = NodeId(60_000)
_NEVER: Final = 1 << 40
_NO_KEYSPACE: Final = "nowhere"
_NO_ROLE: Final = "nobody"
_FEATURE: Final = "of_another_time"
_LONG: Final = "x" * (SERVICE_TEXT_CHARACTERS_MAX + 1)
_ONE_REPLICA: Final = Replication("SimpleStrategy", (("replication_factor", 1),))


def wrong_wishes(cluster: ClusterMetadata) -> tuple[Wish, ...]:
    """All of them, about the nodes of this value."""
    return (
        *_of_nodes(cluster),
        *_of_voters(cluster),
        *_of_roles(),
        *_of_the_log(cluster),
        *_of_repairs(cluster),
        *_of_operations(cluster),
        *_of_requests(cluster),
    )


def _of_nodes(cluster: ClusterMetadata) -> list[Wish]:
    """A second founding, newcomers that do not fit, and facts about nodes that are not there."""
    nodes = cluster.directory.nodes
    known = nodes[0]
    founder = Founder("h", "127.0.9.9", 1, 2, 3, known.dc, known.rack, (1,))
    new = ("a host of its own", "127.0.9.9", 7000, 9042, 7080, known.dc, known.rack)
    ports = ("127.0.9.9", 7000, 9042, 7080, "1")
    registers = [
        Register(known.host_id, *new[1:]),
        Register(new[0], new[1], 7000, 7000, *new[4:]),
        Register(*new[:5], "", new[6]),
        Register(*new, num_tokens=-1),
        Register(*new, log_version=0),
        Register(*new, features=()),
        Register(*new, replaces=_NOBODY),
        Register(*new[:6], "another rack", replaces=known.id),
        Register(*new, replaces=known.id, num_tokens=0),
    ]
    updates = [UpdateNode(_NOBODY, *ports), UpdateNode(known.id, *ports, features=())]
    updates += [UpdateNode(known.id, *ports, log_version=0)]
    updates += [UpdateNode(node.id, *ports) for node in nodes if node.state.value == "left"][:1]
    return [
        (EntryKind.INITIALIZE, Initialize("another cluster", "other", (founder,))),
        *((EntryKind.REGISTER, one) for one in registers),
        *((EntryKind.UPDATE_NODE, one) for one in updates),
        (EntryKind.EXCLUDE_NODES, ExcludeNodes(())),
        (EntryKind.EXCLUDE_NODES, ExcludeNodes((known.id,), _LONG)),
        (EntryKind.EXCLUDE_NODES, ExcludeNodes((_NOBODY,))),
        *(
            (EntryKind.EXCLUDE_NODES, ExcludeNodes((node.id,)))
            for node in nodes
            if node.state.value == "left"
        ),
        (EntryKind.INCLUDE_NODES, IncludeNodes((_NOBODY, _NOBODY), (1, 1))),
        (EntryKind.INCLUDE_NODES, IncludeNodes((_NOBODY,), ())),
        (EntryKind.INCLUDE_NODES, IncludeNodes((_NOBODY,), (_NEVER,))),
        (EntryKind.INCLUDE_NODES, IncludeNodes((known.id,), (0,))),
    ]


def _of_voters(cluster: ClusterMetadata) -> list[Wish]:
    """Changes that lead nowhere, or to a group that must not be."""
    nodes = tuple(node.id for node in cluster.directory.nodes)
    gone = [node.id for node in cluster.directory.nodes if node.state.value == "left"][:1]
    prepared = [
        PrepareMembership((_NOBODY,), ()),
        PrepareMembership((), (_NOBODY,)),
        PrepareMembership((), ()),
        PrepareMembership((), (), _LONG),
        PrepareMembership((), cluster.voters),
        PrepareMembership(cluster.voters[:1], cluster.voters[:1]),
        PrepareMembership((), cluster.voters[:1] * 2),
        PrepareMembership(nodes, (), down=nodes),
        *(PrepareMembership((node,), cluster.voters[:1]) for node in gone),
    ]
    sizes = (-1, 2, METADATA_VOTERS_MAX + 2)
    return [
        *((EntryKind.PREPARE_MEMBERSHIP, one) for one in prepared),
        *((EntryKind.SET_SERVICE, SetService(ServiceWish.SIZE, size=size)) for size in sizes),
        (EntryKind.SET_SERVICE, SetService(ServiceWish.STAY, node=_NOBODY)),
        (EntryKind.SET_SERVICE, SetService(ServiceWish.LEAVE, node=cluster.voters[0])),
        (EntryKind.SET_SERVICE, SetService(ServiceWish.THAW, text=_LONG)),
        (EntryKind.ADVANCE_MEMBERSHIP, AdvanceMembership(_NEVER, 0, cluster.voters)),
        (EntryKind.CANCEL_MEMBERSHIP, CancelMembership(_NEVER)),
    ]


def _of_roles() -> list[Wish]:
    """Roles without a name or that are not there, and grants on nothing."""
    roles: list[RoleChange] = [
        CreateRole(""),
        CreateRole("x" * (ROLE_NAME_CHARACTERS_MAX + 1)),
        CreateRole(_NO_ROLE, data_centers=("nowhere",)),
        AlterRole(_NO_ROLE),
        DropRole(_NO_ROLE),
    ]
    return [
        *((EntryKind.ROLE_CHANGE, ChangeRole(one)) for one in roles),
        (EntryKind.ROLE_MEMBERSHIP, ChangeMembership(_NO_ROLE, _NO_ROLE, True)),
        (EntryKind.PERMISSIONS, ChangePermissions(_NO_ROLE, "data", ("SELECT",), True)),
    ]


def _of_the_log(cluster: ClusterMetadata) -> list[Wish]:
    """Truncation beyond any snapshot or behind the last, extensions without a name, features of nobody."""
    return [
        (EntryKind.TRUNCATE_LOG, TruncateLog(_NEVER)),
        (EntryKind.TRUNCATE_LOG, TruncateLog(0)),
        (EntryKind.SNAPSHOT, TakeSnapshot("a second one", after=_NEVER)),
        (EntryKind.SET_EXTENSION, SetExtension("", b"v")),
        (EntryKind.SET_EXTENSION, SetExtension("x" * (EXTENSION_NAME_CHARACTERS_MAX + 1), b"v")),
        (EntryKind.ENABLE_FEATURES, EnableFeatures(())),
        (EntryKind.ENABLE_FEATURES, EnableFeatures((_FEATURE,))),
        (EntryKind.ENABLE_FEATURES, EnableFeatures(cluster.features.enabled[:1])),
    ]


def _of_repairs(cluster: ClusterMetadata) -> list[Wish]:
    """Repairs of nothing, by nobody, of keyspaces that are not there or not so, and ends of none."""
    node = cluster.directory.nodes[0].id
    space = cluster.schema.by_name[KEYSPACE]
    tables, here = tuple(table.id for table in space.tables), space.group
    part = RepairPart(KEYSPACE, here, tables, (FULL_RING,))
    strange = (
        RepairPart(_NO_KEYSPACE, here, tables, (FULL_RING,)),
        RepairPart(KEYSPACE, _NEVER, tables, (FULL_RING,)),
        RepairPart(KEYSPACE, here, (*tables, _NEVER), (FULL_RING,)),
    )
    left = [one.id for one in cluster.directory.nodes if one.state.value == "left"][:1]
    begun = [BeginRepair(_NOBODY, (part,), 1), BeginRepair(node, (), 1)]
    begun += [BeginRepair(node, (part,), 1, purpose="fun")]
    begun += [BeginRepair(node, (one,), 1) for one in strange]
    begun += [BeginRepair(node, (part,), 1, nodes=(node, other)) for other in (_NOBODY, *left)]
    return [
        *((EntryKind.BEGIN_REPAIR, one) for one in begun),
        (EntryKind.END_REPAIR, EndRepair(_NEVER, RepairState.DONE)),
        *((EntryKind.END_REPAIR, EndRepair(one.id, RepairState.RUNNING)) for one in cluster.repairs.running),
        (EntryKind.MARK_REPAIRED, MarkRepaired(_NEVER, FULL_RING)),
    ]


def _of_operations(cluster: ClusterMetadata) -> list[Wish]:
    """Steps of operations that do not run, or not there, and operations that nobody may begin."""
    nodes = cluster.directory.nodes
    some, last = nodes[0], nodes[-1]
    begun = [
        # Not to its own tokens: another move may have changed them by then.
        PrepareOperation(Move(some.id, (TOKEN_MIN, 1))),
        PrepareOperation(Move(some.id, (TOKEN_MIN,))),
        PrepareOperation(Move(some.id, (TOKEN_MAX + 1,))),
        PrepareOperation(Move(some.id, (5, 5))),
        PrepareOperation(Move(some.id, tuple(range(TOKENS_PER_NODE_MAX + 1)))),
        PrepareOperation(Move(some.id)),
        PrepareOperation(Rebuild(some.id, source_dc="nowhere")),
        PrepareOperation(Remove(_NOBODY)),
        PrepareOperation(Replace(last.id, _NOBODY)),
        PrepareOperation(Bootstrap(some.id, (11,))),
        PrepareOperation(Decommission(some.id), request_id=_NEVER),
        PrepareOperation(ReplicationChange(_NO_KEYSPACE, _ONE_REPLICA)),
    ]
    return [
        *((EntryKind.PREPARE_OPERATION, one) for one in begun),
        (EntryKind.ADVANCE_OPERATION, AdvanceOperation(_NEVER, Stage.WRITE_BOTH_READ_OLD)),
        *(
            (
                EntryKind.ADVANCE_OPERATION,
                AdvanceOperation(operation.id, operation.stage, step=operation.step + 99),
            )
            for operation in cluster.operations
        ),
        (EntryKind.CANCEL_OPERATION, CancelOperation(_NEVER)),
        (EntryKind.COUNT_MOVED, CountMoved(_NEVER, "operation-0-nothing", 1, 1)),
        (EntryKind.FORCE_REMOVE, ForceRemove(_NOBODY)),
        (EntryKind.FORCE_REMOVE, ForceRemove(some.id, _LONG)),
        *((EntryKind.FORCE_REMOVE, ForceRemove(one.id)) for one in nodes if one.state.value == "left"),
    ]


def _of_requests(cluster: ClusterMetadata) -> list[Wish]:
    """Requests that could never run, and ends of requests that are not there or over."""
    node = cluster.directory.nodes[0]
    here = cluster.schema.by_name[KEYSPACE].replication
    wanted = [
        EnqueueRequest(Move(_NOBODY, (1,))),
        EnqueueRequest(Move(node.id, (TOKEN_MIN, 1)), policy=Policy.REFUSE),
        EnqueueRequest(Move(node.id, (1,)), actor=_LONG),
        EnqueueRequest(Move(node.id, tuple(range(TOKENS_PER_NODE_MAX + 1)))),
        EnqueueRequest(Bootstrap(node.id, (1,))),
        EnqueueRequest(ReplicationChange(KEYSPACE, here)),
        EnqueueRequest(ReplicationChange(KEYSPACE)),
        EnqueueRequest(ReplicationChange(_NO_KEYSPACE, here)),
        EnqueueRequest(ReplicationChange(KEYSPACE, Replication(here.strategy, ()))),
        EnqueueRequest(ReplicationChange(KEYSPACE, Replication("Strategy", here.factors))),
    ]
    wanted += [EnqueueRequest(Remove(one.id)) for one in cluster.directory.nodes if one.state.value == "left"]
    return [
        *((EntryKind.ENQUEUE_REQUEST, one) for one in wanted),
        (EntryKind.CANCEL_REQUEST, CancelRequest(_NEVER)),
        (EntryKind.FAIL_REQUEST, FailRequest(_NEVER)),
        *((EntryKind.CANCEL_REQUEST, CancelRequest(one.id)) for one in cluster.requests.ended[-1:]),
        *((EntryKind.FAIL_REQUEST, FailRequest(one.id)) for one in cluster.requests.ended[-1:]),
        *((EntryKind.CANCEL_REQUEST, CancelRequest(one.id, _LONG)) for one in cluster.requests.live[:1]),
    ]


_OPERATORS = 12
_PATIENCE_S = 3.0
#: Few names, so that operators meet.
_ROLES = ("reader", "writer", "owner", "all")
_RESOURCES = ("data", f"data/{KEYSPACE}", f"data/{KEYSPACE}/t1", f"data/{KEYSPACE}/r1", "data/none", "mbean")
_RESOURCES_OF_ROLES = ("roles", *(f"roles/{name}" for name in _ROLES), f"functions/{KEYSPACE}")
_PERMISSIONS = (("SELECT",), ("MODIFY", "SELECT"), ("ALTER",), ("EXECUTE",), ("DROP", "AUTHORIZE"))
#: Share of changes of permissions that take back something that is granted.
_REVOKES = 0.5
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
        chosen = draw.randrange(14)
        if chosen < 3:
            made = CreateRole(
                name,
                superuser=draw.random() < 0.2,
                data_centers=tuple(self._cluster.dcs()) if draw.random() < 0.2 else (),
                if_not_exists=draw.random() < 0.5,
                creator=draw.choice(("", other)),
                only_first=draw.random() < 0.1,
            )
            return EntryKind.ROLE_CHANGE, ChangeRole(made)
        if chosen == 3:
            altered = AlterRole(name, login=draw.random() < 0.5, if_exists=draw.random() < 0.5)
            return EntryKind.ROLE_CHANGE, ChangeRole(altered)
        if chosen == 4:
            return EntryKind.ROLE_CHANGE, ChangeRole(DropRole(name, if_exists=draw.random() < 0.5))
        if chosen < 7:
            return EntryKind.ROLE_MEMBERSHIP, ChangeMembership(name, other, draw.random() < 0.7)
        if chosen == 7:
            # Without a value it is forgotten.
            return EntryKind.SET_EXTENSION, SetExtension(f"e{draw.randrange(2)}", draw.choice((b"", b"v")))
        grants = self._cluster.newest.access.listed_grants()
        if grants and draw.random() < _REVOKES:
            held = draw.choice(grants)
            some = tuple(sorted(draw.sample(held.permissions, draw.randint(1, len(held.permissions)))))
            return EntryKind.PERMISSIONS, ChangePermissions(held.role, held.resource, some, False)
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
