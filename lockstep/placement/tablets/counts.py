"""How many tablets a table is to have: what was asked for, what it weighs, and what all tables together make.

Invariant: a wish is as many as there are or a power of two, below the least maximum that somebody gave; a
table that nobody has measured is never wished smaller than it is, unless by such a maximum. All tables that
touch a rack are scaled alike where it would have more replicas on a shard than the goal; others are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.placement.tablets.load import GIB
from lockstep.schema.tablet_options import TABLET_COUNT_MAX, TabletHints, power_at_least, power_at_most
from lockstep.values.node_limits import TARGET_TABLET_BYTES

#: Tablet replicas of all tables on one shard that are aimed at: each costs a shard little, but not nothing.
PER_SHARD_GOAL: Final = 100
#: Tablets of a table on each shard of its data centres when nobody says anything: enough to spread evenly.
PER_SHARD_INITIAL: Final = 10.0

#: (data centre, rack).
Rack = tuple[str, str]


class CountSettings(msgspec.Struct, frozen=True):
    target_bytes: int = TARGET_TABLET_BYTES
    per_shard_goal: int = PER_SHARD_GOAL
    per_shard_initial: float = PER_SHARD_INITIAL


class CountedTable(msgspec.Struct, frozen=True):
    """One placement group: what was said of its tables, its replicas in each rack, how many tablets it has
    (0: it is new) and their average bytes (None: not known), over all tables that lie together."""

    group: int
    replicas: Mapping[Rack, float]
    hints: tuple[TabletHints, ...] = ()
    initial: int = 0
    current: int = 0
    average_bytes: float | None = None

    @property
    def members(self) -> int:
        """Tables that lie together; each takes its share of a tablet's bytes."""
        return max(1, len(self.hints))


class CountWish(msgspec.Struct, frozen=True):
    """`rule` says what the count comes from, `unscaled` what it was for the table alone."""

    count: int
    rule: str
    unscaled: float


def racks_of(
    factors: Sequence[tuple[str, int]],
    racks: Mapping[Rack, int],
    lists: Mapping[str, Sequence[str]],
) -> dict[Rack, float]:
    """Replicas of each tablet in each rack that has shards, on average: one in each rack of a list, else the
    factor shared among the racks of the data centre."""
    found: dict[Rack, float] = {}
    for dc, factor in factors:
        if dc in lists:
            found.update({(dc, rack): 1.0 for rack in lists[dc]})
            continue
        there = [rack for rack in sorted(racks) if rack[0] == dc and racks[rack]]
        found.update({rack: factor / len(there) for rack in there})
    return {rack: replicas for rack, replicas in found.items() if replicas}


def wanted(table: CountedTable, racks: Mapping[Rack, int], settings: CountSettings) -> tuple[float, str]:
    """What a table wants when it is alone, and by which rule: the largest of all, below the least maximum."""
    target = settings.target_bytes / table.members
    asks: list[tuple[float, str]] = [(1.0, "one tablet")]
    if table.initial:
        asks.append((float(table.initial), "initial of the keyspace"))
    for hints in table.hints:
        if hints.min_tablet_count:
            asks.append((float(hints.min_tablet_count), "min_tablet_count"))
        if hints.expected_data_size_in_gb:
            asks.append((hints.expected_data_size_in_gb * GIB / target, "expected_data_size_in_gb"))
        if hints.min_per_shard_tablet_count:
            count = _per_shard(table, racks, hints.min_per_shard_tablet_count)
            asks.append((count, "min_per_shard_tablet_count"))
    is_told = table.initial or any(h.min_tablet_count or h.min_per_shard_tablet_count for h in table.hints)
    if not is_told:
        asks.append((_per_shard(table, racks, settings.per_shard_initial), "tablets on each shard"))
    if table.current:
        asks.append(by_size(table, settings))
    count, rule = max(asks, key=lambda ask: ask[0])
    assert count >= 1, "a table has a tablet"
    caps = [hints.max_tablet_count for hints in table.hints if hints.max_tablet_count]
    if caps and min(caps) < count:
        return float(min(caps)), "max_tablet_count"
    return (count, rule) if count <= TABLET_COUNT_MAX else (float(TABLET_COUNT_MAX), "the bound of a table")


def by_size(table: CountedTable, settings: CountSettings) -> tuple[float, str]:
    """Twice as many above twice the target, half as many below half of it, else as many as there are."""
    assert table.current > 0, "a table that is there has a tablet"
    if table.average_bytes is None:
        return float(table.current), "as many as there are: its size is not known"
    target = settings.target_bytes / table.members
    if table.average_bytes > 2 * target:
        return table.current * table.average_bytes / target, "average size"
    if table.average_bytes < target / 2:
        return table.current * table.average_bytes / target, "average size"
    return float(table.current), "as many as there are: their size is right"


def _per_shard(table: CountedTable, racks: Mapping[Rack, int], each: float) -> float:
    """Tablets that give every shard of a data centre `each` replicas, in the one that needs most."""
    shards: dict[str, int] = {}
    factors: dict[str, float] = {}
    for rack, replicas in sorted(table.replicas.items()):
        shards[rack[0]] = shards.get(rack[0], 0) + racks.get(rack, 0)
        factors[rack[0]] = factors.get(rack[0], 0.0) + replicas
    assert all(factor > 0 for factor in factors.values()), (
        "where there are shards to fill, there are replicas"
    )
    return max((each * shards[dc] / factors[dc] for dc in shards), default=1.0)


def counts(
    tables: Sequence[CountedTable], racks: Mapping[Rack, int], settings: CountSettings
) -> dict[int, CountWish]:
    """By group, what each table is to have. `racks`: the shards of each."""
    alone = {table.group: wanted(table, racks, settings) for table in tables}
    assert len(alone) == len(tables), "a group is counted once"
    scales: dict[Rack, float] = {}
    for rack, shards in racks.items():
        replicas = sum(alone[table.group][0] * table.replicas.get(rack, 0.0) for table in tables)
        if replicas > settings.per_shard_goal * shards:
            scales[rack] = settings.per_shard_goal * shards / replicas
    found: dict[int, CountWish] = {}
    for table in tables:
        count, rule = alone[table.group]
        scale = min((scales.get(rack, 1.0) for rack in table.replicas), default=1.0)
        if scale < 1.0:
            rule = f"{rule}, scaled to {settings.per_shard_goal} tablets on a shard"
        found[table.group] = CountWish(_rounded(table, count * scale), rule, count)
    return found


def _rounded(table: CountedTable, count: float) -> int:
    """A power of two that is not below, unless a maximum is; not below what is there when nobody measured."""
    if count == table.current:
        return table.current
    rounded = min(power_at_least(count - 1e-9), TABLET_COUNT_MAX)
    caps = [hints.max_tablet_count for hints in table.hints if hints.max_tablet_count]
    if caps:
        rounded = min(rounded, power_at_most(min(caps)))
    if table.average_bytes is None and table.current and not caps:
        rounded = max(rounded, table.current)
    assert rounded >= 1 and math.isfinite(count), "a table has at least one tablet"
    return rounded
