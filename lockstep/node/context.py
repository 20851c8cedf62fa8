"""What every part of a node may know of its node, handed to each of them once, and whom something is told, in
the order in which they began to listen.

Invariant: it holds no state of its own: what changes is asked for, and is then as of now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

import msgspec

from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.groups.ringed import RINGED
from lockstep.node.configuration import Configuration
from lockstep.node.log.catch_up import CatchUp
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Runtime


class NodeContext(msgspec.Struct, frozen=True, eq=False):
    """`log` takes an event and its facts. `own_id()` is 0 until the metadata gave one. `alive(node)` is an
    opinion: it orders and refuses, and never decides who owns what."""

    runtime: Runtime
    configuration: Configuration
    log: Callable[..., None]
    identity: IdentityFile
    conditions: Conditions
    internode: Internode
    catch_up: CatchUp
    cluster: Callable[[], ClusterMetadata]
    own_id: Callable[[], int]
    alive: Callable[[int], bool]

    @property
    def address(self) -> Address:
        """Where other nodes reach this one, by its configuration."""
        network = self.configuration.network
        return (network.address, network.internode_port)

    def host_id(self) -> str:
        return self.identity.value.host_id

    @property
    def follows_repair(self) -> bool:
        """Whether this node was brought to a repaired cluster and has not that part of its log yet: what the
        metadata says of voters is of the cluster before."""
        stored, identity = self.identity.value.cluster_id, self.cluster().identity
        return bool(stored and identity.cluster_id) and stored != identity.cluster_id

    @property
    def is_on_ring(self) -> bool:
        """Whether nodes agree on the ring, without a log: the metadata says it, and before there is any the
        configuration."""
        cluster = self.cluster()
        return cluster.is_on_ring if cluster.epoch else self.configuration.cluster.is_on_ring

    @property
    def awaits_log(self) -> bool:
        """Whether members of the ring agreed on a log, and this node, one of them, has not begun its part of
        it."""
        built, info = self.cluster().parts[RINGED].built_epoch, self.info
        begun = self.identity.value.log_epoch
        return begun < built and info is not None and info.accepted_epoch <= built

    @property
    def info(self) -> NodeInfo | None:
        """What the metadata says of this node; None before it says anything."""
        return self.cluster().directory.by_host_id.get(self.identity.value.host_id)

    @property
    def has_left(self) -> bool:
        info = self.info
        return info is not None and info.state is NodeState.LEFT


P = ParamSpec("P")


class Listeners(Generic[P]):
    def __init__(self) -> None:
        self._all: list[Callable[P, object]] = []

    def add(self, listener: Callable[P, object]) -> None:
        self._all.append(listener)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._all:
            listener(*args, **kwargs)
