"""The voters of the metadata group for the admin API: how they stand, what would change them, and wishes.

Invariant: a wish becomes an entry of the log and nothing else; what only the metadata leader knows (whom the
voters wait for) is asked of the leader, and without one the rest is still told.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.membership import CancelMembership, PrepareMembership, ServiceWish, SetService
from lockstep.metadata.groups.membership_step import Observed, plan
from lockstep.metadata.groups.service import MembershipChange
from lockstep.metadata.groups.voter_choice import choose_voters, target_size
from lockstep.node.services import NodeServices
from lockstep.server.admin.operations import read_body
from lockstep.server.reports.leader_views import VOTERS, ask_leaders
from lockstep.server.reports.request_plans import planned, waits_for
from lockstep.values.errors import ConfigurationError, Rejected
from lockstep.values.ids import NodeId

Document = dict[str, Any]

#: Where a node says what it knows by itself.
LIVE_PATH = "/v1/cms/reconfiguration/live"
_BY_OPERATOR = "asked for by an operator"


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of voters, or as many as suit the cluster's size, or exactly these nodes."""

    size: int | None = None
    automatic: bool = False
    nodes: tuple[int, ...] = ()
    dry_run: bool = False


class _Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""
    dry_run: bool = False


#: Wish -> (steps, way back), for plans.
_WISH_PLANS: Final = {
    ServiceWish.FREEZE: (
        (
            "an entry with the reason is appended",
            "changes of schema and topology are refused with it; reads, writes, snapshots and changes of the "
            "voters go on",
        ),
        "lockstep cms thaw",
    ),
    ServiceWish.THAW: (("changes of schema and topology are taken again",), "lockstep cms freeze REASON"),
    ServiceWish.RESUME: (
        ("the leader changes voters by itself again, when others suit the cluster",),
        "lockstep cms reconfigure --cancel while a change runs",
    ),
}


class ServiceRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    # -- reading -----------------------------------------------------------------------------------

    def live(self) -> Document:
        """The voters as this node alone sees them."""
        node, cluster = self._node, self._node.log.cluster
        service = cluster.service
        document = {
            "schema": "cms-reconfiguration/1",
            "epoch": cluster.epoch,
            "leads": node.log.is_leader,
            "voters": list(service.voters),
            "size": service.size,
            "target": target_size(cluster) if cluster.epoch else 0,
            "change": _change(service.change),
            "paused": service.paused,
            "frozen": service.frozen,
            "leaving": list(service.leaving),
            "waiting": waiting_for_voters(node),
        }
        # Without a log nobody votes on it.
        stays = cluster.is_on_ring or bool(service.paused)
        settled = service.change is None and (stays or service.voters == choose_voters(cluster))
        return {**document, "state": _state(cluster, settled), "settled": settled}

    async def status(self) -> Document:
        """The voters as the metadata leader sees them, or as this node does when it cannot ask."""
        node = self._node
        own = self.live()
        if node.log.is_leader:
            return own
        epoch = int(own["epoch"])
        found = await ask_leaders(node, VOTERS, lambda view: int(view.get("epoch", 0)) >= epoch)
        return found if found is not None else own

    # -- asking ------------------------------------------------------------------------------------

    async def reconfigure(self, body: Any) -> Document:
        """Have this many voters or exactly these, or say what that would do."""
        wanted = read_body(body or {}, _Wanted, "not a request")
        if (wanted.size is not None) + wanted.automatic + bool(wanted.nodes) != 1:
            raise ConfigurationError('give one of {"size": N}, {"automatic": true} and {"nodes": [ids]}')
        cluster = self._node.log.cluster
        if wanted.nodes:
            chosen = tuple(NodeId(node) for node in sorted(set(wanted.nodes)))
            down = tuple(node for node in chosen if not self._node.membership.liveness.alive(node))
            change = plan(cluster, chosen, Observed(down=down), _BY_OPERATOR, len(chosen))
            if wanted.dry_run:
                change.apply(cluster, cluster.epoch + 1)
                return self._plan(chosen, change)
            await self._node.log.submit(change)
            return await self.status()
        wish = SetService(ServiceWish.SIZE, size=wanted.size or 0)
        if wanted.size == 0:
            raise Rejected(
                "the metadata group needs one voter at least", hint="`auto` follows the size of the cluster"
            )
        if wanted.dry_run:
            after = wish.apply(cluster, cluster.epoch + 1)
            chosen = choose_voters(after, down=self._down())
            return self._plan(chosen, plan(after, chosen, Observed(down=self._down()), _BY_OPERATOR))
        await self._node.log.submit(wish)
        return await self.status()

    async def cancel(self, body: Any) -> Document:
        """Stop the running change: a half-added member is dropped, finished steps stay."""
        asked = read_body(body or {}, _Reason, "not a request")
        change = self._node.log.cluster.service.change
        if change is None:
            raise Rejected("no change of the voters is running", hint="lockstep cms reconfigure --status")
        cancel = CancelMembership(change.id, asked.reason or "cancelled by an operator")
        if asked.dry_run:
            steps = (f"{change.title()} ends after {change.index} of {change.steps} steps; those stay",)
            return planned(self._node, cancel, steps, "lockstep cms reconfigure --resume")
        await self._node.log.submit(cancel)
        return await self.status()

    async def wish(self, wish: ServiceWish, body: Any) -> Document:
        """Resume, freeze or thaw."""
        asked = read_body(body or {}, _Reason, "not a request")
        change = SetService(wish, text=asked.reason)
        if asked.dry_run:
            steps, way_back = _WISH_PLANS[wish]
            return planned(self._node, change, steps, way_back)
        await self._node.log.submit(change)
        return await self.status()

    def _down(self) -> tuple[NodeId, ...]:
        node = self._node
        return tuple(
            n.id for n in node.log.cluster.directory.nodes if not node.membership.liveness.alive(n.id)
        )

    def _plan(self, after: tuple[NodeId, ...], change: PrepareMembership) -> Document:
        steps = [f"node {node} gets the log, then a vote" for node in change.additions]
        steps += [f"node {node} loses its vote" for node in change.removals]
        cluster = self._node.log.cluster
        return {
            "schema": "cms-plan/1",
            "epoch": cluster.epoch,
            "voters": list(cluster.voters),
            "voters_after": list(after),
            "additions": list(change.additions),
            "removals": list(change.removals),
            "steps": steps,
            "waits_for": waits_for(self._node),
            "way_back": "lockstep cms reconfigure --cancel, or ask for the former number again",
        }


def waiting_for_voters(node: NodeServices) -> list[Document]:
    """For whom the voters wait, as the leader knows it; empty elsewhere."""
    blocked = node.work.service.blocked
    if blocked is None:
        return []
    since_s = max(0.0, (node.context.runtime.clock.wall_us() - blocked.since_us) / 1e6)
    return [{"node": blocked.node, "reason": blocked.reason, "since_s": round(since_s, 3)}]


def _state(cluster: ClusterMetadata, settled: bool) -> str:
    service = cluster.service
    if service.change is not None:
        return "cancelling" if service.change.cancelled else "changing"
    if service.paused:
        return "paused"
    return "settled" if settled else "waiting"


def _change(change: MembershipChange | None) -> Document | None:
    if change is None:
        return None
    return {
        "id": change.id,
        "additions": list(change.additions),
        "removals": list(change.removals),
        "done": change.index,
        "steps": change.steps,
        "cancelled": change.cancelled,
        "reason": change.reason,
    }
