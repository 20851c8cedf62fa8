"""Tells clients that ask for it, with answers to prepared statements, where the tablet of the key lies.

A client asks by the name of the extension in STARTUP. It is told when its request reached a node without a
replica of the tablet, and once when the tablet changed its replicas after the connection began. Invariant: a
connection whose client did not ask has no TabletRouting, and pays for none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.wire.messages import Execute
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.placement.tablets.map import Tablet
from lockstep.schema.clustering import derived_key
from lockstep.schema.types import parse_uuid
from lockstep.values.errors import InvalidRequest
from lockstep.values.node_limits import TABLETS_TOLD_MAX
from lockstep.values.tokens import token_of

#: Option of SUPPORTED and of STARTUP.
TABLETS_ROUTING: Final = "TABLETS_ROUTING_V1"
#: Key of the payload.
PAYLOAD_KEY: Final = "tablets-routing-v1"

_LONG, _INT = 8, 4


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def encode_tablet(cluster: ClusterMetadata, tablet: Tablet) -> bytes:
    """tuple<bigint, bigint, list<tuple<uuid, int>>>: the token before the first, the last token, and
    replicas as host ids and shards."""
    hosts = cluster.directory.by_id
    replicas = [
        _sized(_sized(parse_uuid(hosts[node].host_id)) + _sized(shard.to_bytes(_INT, "big")))
        for node, shard in tablet.replicas
    ]
    left = _sized(tablet.range.left.to_bytes(_LONG, "big", signed=True))
    right = _sized(tablet.range.right.to_bytes(_LONG, "big", signed=True))
    return left + right + _sized(len(replicas).to_bytes(_INT, "big") + b"".join(replicas))


class TabletRouting:
    """Of one connection. `prepared(statement_id)` is None for a statement that is not known."""

    def __init__(
        self,
        cluster: Callable[[], ClusterMetadata],
        own_id: Callable[[], int],
        prepared: Callable[[bytes], Prepared | None],
    ) -> None:
        self._cluster = cluster
        self._own_id = own_id
        self._prepared = prepared
        #: Tablets as they were then may be known to the client from elsewhere.
        self._began_epoch = cluster().epoch
        #: (group, last token) -> epoch of the tablet that was told.
        self._told: dict[tuple[int, int], int] = {}

    def payload(self, request: Execute) -> Mapping[str, bytes | None] | None:
        """For the answer to a request that did not fail."""
        found = self._prepared(request.statement_id)
        if found is None or not found.partition_key_indexes:
            return None
        cluster = self._cluster()
        table = cluster.table(found.table_id)
        group = cluster.tablets.by_group.get(table.group) if table is not None else None
        if group is None:
            return None
        token = _token(found, request)
        if token is None:
            return None
        tablet = group.map(cluster.placements).at(token)
        if self._own_id() in tablet.nodes and not self._is_news(group.id, tablet):
            return None
        self._note(group.id, tablet)
        return {PAYLOAD_KEY: encode_tablet(cluster, tablet)}

    def _is_news(self, group: int, tablet: Tablet) -> bool:
        return tablet.epoch > self._told.get((group, tablet.right), self._began_epoch)

    def _note(self, group: int, tablet: Tablet) -> None:
        if len(self._told) >= TABLETS_TOLD_MAX:
            self._told.clear()  # What changed is told once more.
        self._told[group, tablet.right] = tablet.epoch


def _token(prepared: Prepared, request: Execute) -> int | None:
    """Of the partition key, as the client hashes it; None where a part of it is missing."""
    parameters = request.parameters
    values = parameters.values
    if parameters.names is not None:
        values = tuple(prepared.positional(dict(zip(parameters.names, values, strict=True))))
    parts = [values[index] for index in prepared.partition_key_indexes]
    if not all(isinstance(part, bytes) for part in parts):
        return None
    try:
        return token_of(derived_key([part for part in parts if isinstance(part, bytes)]))
    except InvalidRequest:
        return None
