"""What only the metadata leader knows, for the admin API of every node: asked of it between the nodes.

Invariant: asking changes nothing, and needs no more than being a member; a question that nobody answers in
time has no answer, and whoever asks tells what it knows itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.metadata.directory import NodeInfo
from lockstep.replication import verbs
from lockstep.values.errors import ConfigurationError, LockstepError, PeerUnreachable
from lockstep.values.limits import ADMIN_FORWARD_TIMEOUT_MS

if TYPE_CHECKING:
    from lockstep.node.node import Node

Document = dict[str, Any]

#: The queued and running operations.
REQUESTS: Final = "requests"
#: The voters and a change of them.
VOTERS: Final = "voters"


class AskLive(msgspec.Struct, frozen=True, array_like=True):
    """What do you know of this by yourself?"""

    view: str


class LiveView(msgspec.Struct, frozen=True, array_like=True):
    """`document` is JSON."""

    document: bytes


def serve_live(node: Node, views: Callable[[], dict[str, Callable[[], Document]]]) -> None:
    """Answer other nodes with these views, which are made when they are asked for."""

    async def answer(_peer: object, question: AskLive) -> LiveView:
        view = views().get(question.view)
        if view is None:
            raise ConfigurationError(f"there is no view {question.view}")
        return LiveView(json.dumps(view()).encode())

    node.internode.register(verbs.LIVE_VIEW, AskLive, LiveView, answer)


async def ask_leaders(node: Node, view: str, fits: Callable[[Document], bool]) -> Document | None:
    """The view of the metadata leader: of the first voter that leads and whose answer fits; None."""
    for info in _leaders(node):
        try:
            document = await _asked(node, info, view)
        except LockstepError as error:
            node.log("admin.leader_waits", node=info.id, error=error.message)
            continue
        if document.get("leads") and fits(document):
            return document
    return None


async def _asked(node: Node, info: NodeInfo, view: str) -> Document:
    address = (info.address, info.internode_port)
    reply: LiveView = await node.internode.request(
        address, verbs.LIVE_VIEW, AskLive(view), ADMIN_FORWARD_TIMEOUT_MS
    )
    document = json.loads(reply.document)
    if not isinstance(document, dict):
        raise PeerUnreachable(f"node {info.id} answered {type(document).__name__}, not an object")
    return document


def _leaders(node: Node) -> Iterator[NodeInfo]:
    """Live voters, the likeliest leader first."""
    known = node.leader_id
    for voter in sorted(node.cluster.voters, key=lambda voter: voter != known):
        if voter != node.node_id and node.liveness.alive(voter):
            yield node.cluster.directory.by_id[voter]
