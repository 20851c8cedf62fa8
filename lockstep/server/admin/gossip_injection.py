"""Putting what a node says of itself into gossip, in its place, over HTTP: a last means on the ring.

Invariant: only the node's own token lets somebody do it, it is in the audit before it is done, and nothing of
it is metadata: a node that lives says the truth again with its next round.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.status import GossipInjection, InjectedState
from lockstep.gossip.soft_state import SoftState
from lockstep.node.services import NodeServices
from lockstep.recovery.audit import Step, Told
from lockstep.server.admin.operations import Operation, later, read_body
from lockstep.server.admin.recovery import actor_of

INJECT_PATH: Final = "/v1/gossip/inject"
_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["node"],
    "properties": {
        "node": {"type": "integer", "description": "Of whom the state is"},
        "ready": {"type": "boolean", "description": "It serves clients"},
        "epoch": {"type": "integer"},
        "load_bytes": {"type": "integer"},
        "release": {"type": "string"},
        "dry_run": {"type": "boolean"},
    },
}


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: int
    ready: bool | None = None
    epoch: int | None = None
    load_bytes: int | None = None
    release: str | None = None
    dry_run: bool = False

    @property
    def changes(self) -> dict[str, Any]:
        fields = ("ready", "epoch", "load_bytes", "release")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


class GossipInjections:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    async def inject(self, body: Any, actor: str) -> GossipInjection:
        wanted = read_body(body, _Wanted, "the body names no node, or what no node says of itself")
        gossip = self._node.membership.gossip
        before, after, version = gossip.put(wanted.node, wanted.changes, dry_run=True)
        if not wanted.dry_run:
            text = f"gossip of node {wanted.node}: {', '.join(f'{k}={v}' for k, v in wanted.changes.items())}"
            audit = self._node.membership.recovery.audit
            cluster_id = self._node.log.cluster.identity.cluster_id
            await audit.note(Told(Step.INJECTED, actor, text, cluster_id=cluster_id))
            before, after, version = gossip.put(wanted.node, wanted.changes, dry_run=False)
        return GossipInjection(
            node=wanted.node,
            alive=self._node.membership.liveness.alive(wanted.node),
            generation=version.generation,
            version=version.version,
            before=_shown(before),
            after=_shown(after),
            dry_run=wanted.dry_run,
        )

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            Operation(
                "POST",
                INJECT_PATH,
                "Put a state of another node into gossip, on the ring without a log",
                later(lambda request, _: self.inject(request.body, actor_of(request))),
                "What is told of the node from now on, and what was",
                body=_BODY,
                breaks_glass=True,
            )
        ]


def _shown(state: SoftState) -> InjectedState:
    return InjectedState(state.ready, state.epoch, state.load_bytes, state.release)
