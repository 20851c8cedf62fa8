"""What a client is told of a replication that the cluster accepts and cannot satisfy now."""

from __future__ import annotations

from lockstep.metadata.directory import Directory
from lockstep.placement.quorums import dc_factors
from lockstep.schema.model import Replication


def too_high(keyspace: str, replication: Replication, directory: Directory) -> tuple[str, ...]:
    """One sentence, in Cassandra's words, for each factor above the number of nodes that own tokens."""
    owners: dict[str, int] = {}
    for owner in directory.owners:
        owners[owner.dc] = owners.get(owner.dc, 0) + 1
    begin = f"Your replication factor {{}} for keyspace {keyspace} is higher than the number of nodes {{}}"
    per_dc = dc_factors(replication)
    if not per_dc:
        nodes = sum(owners.values())
        return (begin.format(replication.total, nodes),) if replication.total > nodes else ()
    return tuple(
        f"{begin.format(factor, owners.get(dc, 0))} for datacenter {dc}"
        for dc, factor in per_dc
        if factor > owners.get(dc, 0)
    )
