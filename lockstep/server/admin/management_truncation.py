"""Taking commands out of the log of the management group, over HTTP: the plan, and carrying it out.

Invariant: without the digest of the plan that is made now, nothing is changed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.documents.recovery import Absent, DroppedCommand, ManagementMember, ManagementTruncation
from lockstep.node.recovery.management_cutting import CutPlan
from lockstep.node.services import NodeServices
from lockstep.recovery.management_cut import HeldCommand, ManagementCut
from lockstep.values.errors import PreconditionError
from lockstep.values.node_limits import RECOVERY_LISTED_ENTRIES_MAX

#: A member's command by its index and content.
_Key = tuple[int, bytes]
_LISTED: Final = RECOVERY_LISTED_ENTRIES_MAX


async def truncate_management(node: NodeServices, cut: ManagementCut, digest: str) -> ManagementTruncation:
    """The plan; carried out where `digest` is the plan's. PreconditionError where another one is made now."""
    told = await node.membership.cutting.plan(cut)
    shown = _shown(node, told, cut)
    if not digest:
        return shown
    if digest != told.planned.digest:
        raise PreconditionError(
            "the management group is not as it was when this was planned", hint="look at a new dry run"
        )
    await node.membership.recovery.reset(told.planned.plan)
    return msgspec.structs.replace(shown, decided=True)


def _shown(node: NodeServices, told: CutPlan, cut: ManagementCut) -> ManagementTruncation:
    directory = node.log.cluster.directory.by_id
    planned = told.planned
    commands: dict[_Key, tuple[HeldCommand, list[int]]] = {}
    for member in told.held:
        for one in member.commands:
            commands.setdefault((one.index, one.digest), (one, []))[1].append(member.node)
    listed = [commands[key] for key in sorted(commands)]
    first = min((one.index for one, _ in listed), default=planned.last + 1)
    newest = max((one.index for one, _ in listed), default=cut.index - 1)
    admitted = {host.host_id: host for one in told.held for host in one.admitted}
    return ManagementTruncation(
        former_id=planned.plan.former_id,
        cluster_id=planned.plan.cluster_id,
        digest=planned.digest,
        index=cut.index,
        last=planned.last,
        source=planned.source,
        dropped=tuple(
            DroppedCommand(
                one.index, one.term, one.kind, one.actor, one.index <= planned.committed, tuple(nodes),
                one.summary,
            )
            for one, nodes in listed[:_LISTED]
        ),
        inside=max(0, first - cut.index),
        more=max(0, planned.last - newest) + max(0, len(listed) - _LISTED),
        members=tuple(
            ManagementMember(
                one.node, one.applied, one.committed, one.last, one.snapshot, one.has_before, one.broken
            )
            for one in told.held
        ),
        silent=tuple(
            Absent(
                silent,
                directory[silent].address,
                silent in node.log.cluster.voters,
                told.silent.get(silent, ""),
            )
            for silent in planned.plan.absent
        ),
        admitted=tuple(f"{host.host_id} at {host.address}:{host.port}" for host in admitted.values()),
        voters=planned.plan.voters,
        management=planned.plan.management,
        absent=planned.plan.absent,
        lost=planned.plan.lost,
    )  # fmt: skip
