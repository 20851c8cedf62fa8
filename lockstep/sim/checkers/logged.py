"""CDC-5: a replica of a row and of its stream has a change in the table and in the log, or in neither.

Both are one batch where both lie in one range, so this holds at every moment, of what is durable. Where they
do not, each comes by an id of its own: then it holds once replicas are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.schema.clustering import encode_prefix
from lockstep.schema.model import Table
from lockstep.schema.types import parse_type
from lockstep.sim.checkers.captured import ROW_DELETE
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.streams import HeldChange
from lockstep.sim.checkers.violation import Violation
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_row
from lockstep.values.ids import NodeId
from lockstep.values.tokens import stream_token, token_of

_INT: Final = parse_type("int")
#: (partition key, value that no other write has, or the time of a deletion, whether it is one).
_Effect = tuple[int, int, bool]


def check_alike(
    base: Table,
    held: Sequence[HeldChange],
    contents: Mapping[NodeId, DurableContent],
    readers: Callable[[int], Sequence[NodeId]],
    number: Callable[[bytes | None], int | None],
) -> int:
    """Raise the first Violation; how many changes on how many replicas were judged otherwise. `base` has the
    columns pk, ck and v, and `held` what its log tells on the same disks; `readers`: who answers reads of a
    token."""
    judged = 0
    told: dict[_Effect, HeldChange] = {}
    for change in held:
        one, pk = change.told, change.told.place[0]
        is_gone = one.operation == ROW_DELETE
        effect = (pk, one.at_us if is_gone else one.value or 0, is_gone)
        told[effect] = change
        key, row = _key(pk), encode_prefix([_INT], [False], [_key(one.place[1])])
        for node in sorted(change.nodes.intersection(readers(token_of(key)), contents)):
            judged += 1
            if contents[node].state(base.id, key, row)[0] < one.at_us:
                raise Violation("CDC-5", f"node {node} has {one} in the log, and not in the table")
    value_id = base.by_name["v"].id
    for node, content in sorted(contents.items()):
        for store_key, value in content.pairs((base.id,)):
            token, key, prefix = keys.split_partition(store_key)
            if node not in readers(token):
                continue
            found = decode_row(store_key, value, keys.clustering_of(store_key, prefix))
            effects = [(number(cell.value), False) for cell in found.cells if cell.column == value_id]
            if found.deletion is not None:
                effects.append((found.deletion.timestamp_us, True))
            for what, is_gone in effects:
                place = (number(key) or 0, what or 0, is_gone)
                change_of = told.get(place)
                if change_of is None:
                    raise Violation("CDC-5", f"node {node} has {place} in the table, and no log tells of it")
                judged += 1
                if node in readers(stream_token(change_of.told.stream)) and node not in change_of.nodes:
                    raise Violation(
                        "CDC-5", f"node {node} has {place} in the table, and not {change_of.told} in the log"
                    )
    return judged


def bounds_of(cluster: ClusterMetadata, group: int) -> list[int]:
    """Where the ranges of a placement group end."""
    return [placed.range.right for placed in cluster.placements.ring(group).ranges]


def _key(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)
