"""What the metadata says about this node itself: that it votes, has moved, has left, or must not go on."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.internode.exclusion import ExcludedNodes
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import refuse_lacking
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.log.announcing import greet
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.decommission_handoff import DecommissionHandoff
from lockstep.node.membership_service import NodeMembership
from lockstep.values.errors import LockstepError, PreconditionError


class Standing:
    """`end(error)` tells that the node must not go on; False when that was told before. `withdraw()` ends
    what it serves to clients."""

    def __init__(
        self,
        log: NodeLog,
        membership: NodeMembership,
        farewell: DecommissionHandoff,
        end: Callable[[LockstepError], bool],
        withdraw: Callable[[], None],
    ) -> None:
        self._context = log.context
        self._node_log = log
        self._membership = membership
        self._farewell = farewell
        self._end = end
        self._withdraw = withdraw

    def start(self) -> None:
        self._node_log.state.listen(self._applied)
        self._shut_out(self._context.cluster())

    def greet(self) -> None:
        """Tell the nodes that the configuration names where this one is, as long as the metadata does not."""
        context = self._context
        others = [address for address in self._membership.configured if address != context.address]
        greeting = greet(others, context.internode, context.cluster, self.has_moved)
        context.runtime.tasks.spawn(greeting, "node.greet")

    async def refuse_copy(self) -> None:
        """PreconditionError when this node runs already, where the metadata says that it stands.

        Asked before it takes part in consensus: two processes with one directory would vote twice.
        """
        info = self._context.info
        if info is None or not self.has_moved():
            return
        if await self._membership.liveness.answers(info.id):
            raise PreconditionError(
                f"node {info.id} runs at {info.address}:{info.internode_port} with this data directory",
                hint="a data directory serves one node: stop that one to move it, and never start a copy",
            )

    def has_moved(self) -> bool:
        info = self._context.info
        return info is not None and (info.address, info.internode_port) != self._context.address

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        if before.excluded is not after.excluded or (
            after.excluded and before.directory is not after.directory
        ):
            self._shut_out(after)
        if before.service is not after.service:
            self._membership.voting.follow()
        if before.features is not after.features:
            self._check_features()
        context = self._context
        if context.own_id() and context.host_id() not in before.directory.by_host_id:
            context.internode.introduce()
        elif context.has_left:
            # No new requests; peers and requests in flight are served until this node is stopped.
            self._withdraw()
            self._farewell.begin(self._gone)
        elif before.directory is not after.directory:
            self._moved_away(before)
        self._node_log.announcer.applied(before, after)

    def _shut_out(self, cluster: ClusterMetadata) -> None:
        """Have the others on the exclude list heard no more, and told nothing, but what they lack."""
        excluded = [cluster.directory.by_id[node] for node in cluster.excluded_by_node]
        others = [info for info in excluded if info.host_id != self._context.host_id()]
        # Who has taken over the address of a dead node is not that node.
        there = [info for info in others if info.id not in cluster.directory.shadowed]
        self._context.internode.shut_out = ExcludedNodes(
            frozenset(info.host_id for info in others),
            frozenset((info.address, info.internode_port) for info in there),
        )

    def _check_features(self) -> None:
        """A node that learns late of a feature that it lacks must not go on."""
        context = self._context
        try:
            refuse_lacking(context.cluster().features_enabled, context.configuration.features)
        except PreconditionError as error:
            if self._end(error):
                context.log("node.lacks_features", error=error.message)

    def _moved_away(self, before: ClusterMetadata) -> None:
        """Another process with this node's directory has said where it is: this one is the node no more."""
        context = self._context
        was, info = before.directory.by_host_id.get(context.host_id()), context.info
        if was is None or info is None or (was.address, was.internode_port) != context.address:
            return
        if self.has_moved():
            where = f"{info.address}:{info.internode_port}"
            error = PreconditionError(
                f"another process took this node's place, at {where}, with a copy of its data directory",
                hint="a data directory serves one node: see which of the two has the newer data",
            )
            if self._end(error):
                context.log("node.moved_away", node=info.id, to=where)

    def _gone(self) -> None:
        context = self._context
        error = PreconditionError(
            "this node has left the cluster",
            hint="start it with an empty data directory to join as a new node",
        )
        if self._end(error):
            context.log("node.left", node=context.own_id(), epoch=context.cluster().epoch)
