"""What this node lacks of its own data, and the refusal of whoever asks for it.

Invariant: what is lacking is known before the first request is answered, and forgotten only when it was
filled from other replicas, or when an operator gives up what no other replica has; meanwhile nothing is
answered from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rows import keys
from lockstep.storage.rows.keys import table_of, with_ballots
from lockstep.storage.store_position import FACT, Lack, lacked, lacking_record, lacks_in, tokens_between
from lockstep.values.errors import RangeLacking
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class Lacking:
    def __init__(self, engine: StorageEngine) -> None:
        """CorruptFile when the store cannot say what it lacks."""
        self._engine = engine
        self.current: tuple[Lack, ...] = lacks_in(engine.local_fact(FACT))

    @property
    def fillable(self) -> tuple[Lack, ...]:
        """What other replicas may have."""
        return tuple(lack for lack in self.current if not lack.sole)

    async def filled(self, lacks: Sequence[Lack], cluster: ClusterMetadata, own: NodeId) -> None:
        """They were filled from all other replicas that there are; durable on return."""
        left = tuple(lack for lack in self.current if lack not in lacks)
        await self._keep((*left, *(sole for lack in lacks for sole in of_sole_replica(lack, cluster, own))))

    async def _keep(self, lacks: tuple[Lack, ...]) -> None:
        if lacks != self.current:
            self.current = lacks
            await self._engine.synced(self._engine.keep_local_fact(FACT, lacking_record(lacks)[2]))

    def require(self, table_id: int, tokens: Range) -> None:
        """RangeLacking when something of a table's range, or of its ballots, may be lacking here."""
        if not self.current:
            return
        found = lacked(self.current, table_of(table_id), tokens)
        if found is not None:
            raise RangeLacking(
                f"this node lost what it stored of ({found.left}, {found.right}] of table {table_id}",
                hint="it is filled from other replicas: `lockstep topology requests`",
            )


def of_sole_replica(lack: Lack, cluster: ClusterMetadata, own: NodeId) -> Iterator[Lack]:
    """What of a lack only this node was to have, by table and range; nothing where that was given up."""
    if lack.given_up:
        return
    for keyspace in cluster.schema.keyspaces:
        ranges = [
            placed.range
            for placed in cluster.placements.ring(keyspace.group).ranges
            if placed.group.reads == (own,)
        ]
        for stored_id in with_ballots(table.id for table in keyspace.tables):
            between = tokens_between(lack.first_key, lack.last_key, stored_id)
            for range_ in ranges if between is not None else ():
                shared = range_.intersection(between) if between is not None else None
                if shared is not None:
                    first_key, above = keys.token_bounds(stored_id, shared)
                    yield replace(lack, first_key=first_key, last_key=above, sole=True)
