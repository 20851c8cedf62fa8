"""A node's second connections, for raw bytes: no other message waits behind those.

Invariant: only requests whose replies raw bytes may follow go out on a lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.internode.connection import Connection
from lockstep.internode.handshake import Address
from lockstep.internode.peer import Peer
from lockstep.internode.raw_bytes import FileReply
from lockstep.internode.waiters import RawWaiter
from lockstep.values.codec import encode

if TYPE_CHECKING:
    from lockstep.internode.internode import Internode


class Lanes:
    def __init__(self, node: Internode) -> None:
        self._node = node
        self.peers: dict[Address, Peer] = {}

    def begin(
        self,
        address: Address,
        verb: int,
        request: Any,
        timeout_ms: float,
        take: Callable[[memoryview], None],
    ) -> asyncio.Future[Any]:
        """As the node's `begin`. The reply is told when `take`, in a thread, got all raw bytes behind it; the
        timeout ends where they begin."""
        node = self._node
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deadline_s = node.runtime.clock.monotonic_s() + timeout_ms / 1000
        waiter = RawWaiter(future, take)
        node.submit_by(self.peers, ((address, None),), verb, encode(request), deadline_s, waiter)
        return future

    def close(self, address: Address) -> None:
        """End the connection, if there is one."""
        lane = self.peers.pop(address, None)
        if lane is not None:
            lane.stop()


def answer_raw(node: Internode, connection: Connection, verb: int, stream: int, content: FileReply) -> None:
    """Send a reply and the part of a file behind it, unless the peer is gone or blocked."""
    peer = connection.peer
    if stream == 0 or connection.closed or peer is None or peer.endpoint in node.blocked_to:
        content.file.close()
    else:
        connection.reply_raw(verb, stream, encode(content.reply), content)
