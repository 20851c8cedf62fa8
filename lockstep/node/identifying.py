"""Which node this is by the metadata, and the ids that only it gives.

Invariant: a mutation id is given once: its boot generation is durable before the first one.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.values.ids import mutation_id


class OwnId:
    """The id of the node with this host id, by the metadata of now; 0 until that gave it one."""

    def __init__(self, cluster: Callable[[], ClusterMetadata], host_id: Callable[[], str]) -> None:
        self._cluster = cluster
        self._host_id = host_id
        #: The metadata value that was looked at last: requests ask often.
        self._known_in: ClusterMetadata | None = None
        self._known = 0

    def __call__(self) -> int:
        cluster = self._cluster()
        if cluster is not self._known_in:
            info = cluster.directory.by_host_id.get(self._host_id())
            self._known = info.id if info is not None else 0
            self._known_in = cluster
        return self._known


class MutationIds:
    def __init__(self, own_id: Callable[[], int], generation: int) -> None:
        self._own_id = own_id
        self._generation = generation
        self._sequence = 0

    def new(self) -> bytes:
        self._sequence += 1
        return mutation_id(self._own_id(), self._generation, self._sequence)
