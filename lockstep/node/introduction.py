"""How this node presents itself to another one, and whom it lets in."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.internode.handshake import PROTOCOL_VERSION, Address, Hello
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.configuration import Configuration
from lockstep.node.membership.identity import IdentityFile


class Introduction:
    def __init__(
        self,
        configuration: Configuration,
        identity: IdentityFile,
        cluster: Callable[[], ClusterMetadata],
        own_id: Callable[[], int],
        alive: Callable[[int], bool],
    ) -> None:
        self._configuration = configuration
        self._identity = identity
        self._cluster = cluster
        self._own_id = own_id
        self._alive = alive

    @property
    def address(self) -> Address:
        return (self._configuration.network.address, self._configuration.network.internode_port)

    def hello(self) -> Hello:
        settings, stored = self._configuration, self._identity.value
        identity = self._cluster().identity
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            cluster_id=identity.cluster_id or stored.cluster_id,
            cluster_name=settings.cluster.name,
            lineage=tuple(item.encode() for item in identity.lineage),
            host_id=stored.host_id,
            node_id=self._own_id(),
            address=settings.network.address,
            port=settings.network.internode_port,
            replaces=settings.cluster.replaces,
            takes_shared=True,
        )

    def refusal(self, hello: Hello) -> str | None:
        """Why whoever says this hello is not let in; None when it is."""
        known = self._cluster().directory.by_address.get((hello.address, hello.port))
        if known is None or not hello.host_id or known.host_id == hello.host_id:
            return None
        owned = f"{hello.address} belongs to node {known.id} (host {known.host_id}) of this cluster"
        if hello.replaces != known.id:
            return f"{owned}; to take a dead node's place, set [cluster] replaces"
        return f"{owned}, which seems alive" if self._alive(known.id) else None
