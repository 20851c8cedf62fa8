"""Telling other nodes of a new epoch, along the epoch's announcement tree.

A node passes an epoch on once it has applied it, so whoever it tells can fetch from it. Invariant: at most
one round of announcements for one epoch, of at most ANNOUNCEMENTS_MAX messages, among them up to
NODES_LET_GO_TOLD_MAX to nodes that the metadata just let go; all epochs of one turn of the loop make one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from lockstep.gossip.pulling import Tree, receivers
from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import Announce
from lockstep.node.log.metadata_state import MetadataState
from lockstep.values.ids import NodeId
from lockstep.values.limits import ANNOUNCEMENTS_MAX, NODES_LET_GO_TOLD_MAX

#: Between two greetings of a node whose new address the metadata does not have yet.
GREETING_MS: Final = 500


def announcement(cluster: ClusterMetadata) -> Announce:
    return Announce(cluster.epoch, cluster.hash)


async def greet(
    addresses: Sequence[Address],
    internode: Internode,
    cluster: Callable[[], ClusterMetadata],
    has_moved: Callable[[], bool],
) -> None:
    """After a move, tell the nodes that the configuration names where this one is now.

    So voters that moved together find each other although no metadata can be changed yet.
    """
    while has_moved():
        for address in addresses:
            internode.send(address, verbs.ANNOUNCE, announcement(cluster()))
        await asyncio.sleep(GREETING_MS / 1000)


class Announcer:
    """What a node applies that lacks many epochs is no news.

    `sent` counts messages of epochs that this node made as the leader, `forwarded` the others.
    """

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        leads: Callable[[], bool],
    ) -> None:
        self._state = state
        self._internode = context.internode
        self._own_id = context.own_id
        self._leads = leads
        self._alive = context.alive
        self._far_behind = context.catch_up.far_behind
        self._announced = 0
        self._due = False
        #: Told by the leader itself: they are in no tree any more.
        self._let_go: dict[NodeId, NodeInfo] = {}
        self.sent = 0
        self.forwarded = 0

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """An entry was applied: it is told of at the end of this turn of the loop."""
        if before.directory is not after.directory and self._leads():
            self._note_let_go(before, after)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _note_let_go(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        present = after.directory.by_address
        for node_id in before.directory.present_ids:
            node = after.directory.by_id[node_id]
            if node.state is NodeState.LEFT and (node.address, node.internode_port) not in present:
                self._let_go[node_id] = node
                if len(self._let_go) > NODES_LET_GO_TOLD_MAX:
                    del self._let_go[next(iter(self._let_go))]

    def _announce(self) -> None:
        self._due = False
        cluster, own, leads = self._state.current, self._own_id(), self._leads()
        let_go, self._let_go = self._let_go, {}
        if cluster.epoch <= self._announced or (not leads and self._far_behind()):
            return
        self._announced = cluster.epoch
        tree = Tree(cluster.directory.present_ids, cluster.epoch)
        chosen = receivers(tree, own, leads=leads, alive=self._alive)
        told = [node for node in let_go.values() if node.id != own]
        # The last ones chosen are below nodes that seem dead.
        for chosen_id in chosen[: ANNOUNCEMENTS_MAX - len(told)]:
            told.append(cluster.directory.by_id[NodeId(chosen_id)])
        message = announcement(cluster)
        for node in told:
            self._internode.send((node.address, node.internode_port), verbs.ANNOUNCE, message)
        if leads:
            self.sent += len(told)
        else:
            self.forwarded += len(told)
