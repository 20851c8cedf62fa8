"""What a read is cut into: token ranges of the ring, or partition keys that filters name.

Invariant: partitions name tokens and keys only, never hosts, so a plan that Spark keeps is right whatever
the ring looks like when it runs; together they cover every row exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import EqualTo, Filter, In, InputPartition

from lockstep.spark.encoding import encoder
from lockstep.spark.ring import Ring, TableColumn, TableShape
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import SPARK_POINT_READS_MAX
from lockstep.values.tokens import Range

#: Tasks a host gets when the user names no number: enough to balance, few enough that the fixed cost of a
#: task (some 40 ms) does not show.
TASKS_PER_HOST: Final = 4
#: Types whose equality in Spark and in CQL is the same; others are read by key, then compared by Spark.
_SAME_EQUALITY: Final = frozenset(
    ("tinyint", "smallint", "int", "bigint", "text", "ascii", "blob", "boolean", "date", "time")
)
_COMPARED_AGAIN: Final = frozenset(("uuid", "timeuuid", "timestamp", "inet"))


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """Token ranges (left, right]; `turn` spreads first requests over replicas."""

    turn: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class KeyPartition(InputPartition):
    """Partition keys, each a tuple of serialised columns."""

    turn: int
    keys: tuple[tuple[bytes, ...], ...]


def range_partitions(ring: Ring, splits_per_range: int) -> list[RangePartition]:
    """One partition a sub-range; with `splits_per_range` 0, TASKS_PER_HOST groups of ranges a host."""
    if splits_per_range:
        pieces = [piece for part, _ in ring.ranges for piece in split_range(part, splits_per_range)]
        groups = [[piece] for piece in pieces]
    else:
        groups = _grouped(ring)
    return [
        RangePartition(turn, tuple((piece.left, piece.right) for piece in group))
        for turn, group in enumerate(groups)
    ]


def split_range(whole: Range, parts: int) -> list[Range]:
    """At most `parts` adjacent ranges of equal width that cover `whole`."""
    width = whole.right - whole.left
    cuts = dict.fromkeys(whole.left + width * step // parts for step in range(parts + 1))
    return [Range(left, right) for left, right in itertools.pairwise(cuts)]


def key_partitions(keys: Sequence[tuple[bytes, ...]], hosts: int) -> list[KeyPartition]:
    """The keys, dealt to at most TASKS_PER_HOST partitions a host; none for no keys."""
    count = min(len(keys), TASKS_PER_HOST * max(hosts, 1))
    return [KeyPartition(turn, tuple(keys[turn::count])) for turn in range(count)]


def _grouped(ring: Ring) -> list[list[Range]]:
    """Ranges by primary replica, each replica's in TASKS_PER_HOST runs of similar width."""
    wanted = TASKS_PER_HOST * max(len(ring.hosts), 1)
    splits = -(-wanted // len(ring.ranges))
    by_primary: dict[str, list[Range]] = {}
    for part, replicas in ring.ranges:
        by_primary.setdefault(replicas[0] if replicas else "", []).extend(split_range(part, splits))
    groups: list[list[Range]] = []
    for pieces in by_primary.values():
        dealt: list[list[Range]] = [[] for _ in range(min(TASKS_PER_HOST, len(pieces)))]
        for piece in sorted(pieces, key=lambda piece: piece.left - piece.right):
            min(dealt, key=_width).append(piece)
        groups += [sorted(group) for group in dealt]
    return groups


def _width(group: Iterable[Range]) -> int:
    return sum(piece.right - piece.left for piece in group)


def keys_of_filters(
    shape: TableShape, filters: Sequence[Filter]
) -> tuple[list[tuple[bytes, ...]] | None, list[Filter]]:
    """(partition keys that the filters name, filters Spark must still apply).

    The keys are None when the filters do not fix every column of the partition key by = or IN.
    """
    chosen: dict[str, Filter] = {}
    for one in filters:
        if isinstance(one, EqualTo | In) and len(one.attribute) == 1:
            chosen.setdefault(one.attribute[0], one)
    values: list[list[bytes]] = []
    applied: list[Filter] = []
    count = 1
    for column in shape.partition_key:
        found = chosen.get(column.name)
        name = column.cql_type.name
        if found is None or name not in _SAME_EQUALITY | _COMPARED_AGAIN:
            return None, list(filters)
        wanted = _serialised(column, found)
        count *= len(wanted)
        if count > SPARK_POINT_READS_MAX:
            return None, list(filters)
        values.append(wanted)
        if name in _SAME_EQUALITY:
            applied.append(found)
    left = [one for one in filters if not any(one is done for done in applied)]
    # The server refuses to be asked for a row of the empty key rather than to answer that there is none.
    return [key for key in itertools.product(*values) if key != (b"",)], left


def _serialised(column: TableColumn, found: Filter) -> list[bytes]:
    """The values, each once; those that the type cannot hold equal nothing and are left out."""
    encode = encoder(column.cql_type)
    wanted = found.value if isinstance(found, In) else (found.value,)  # type: ignore[attr-defined]
    values: dict[bytes, None] = {}
    for value in wanted:
        if value is None:
            continue
        try:
            values[encode(value)] = None
        except InvalidRequest:
            continue
    return list(values)
