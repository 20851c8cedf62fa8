"""Replicas that keep no table data: what a factor such as 3/1 means, and whom a request needs.

A witness journals mutations and tells what it holds, so it counts for every level, and a full replica brings
from its journal what it lacks itself. Data is read of full replicas alone. A data centre of witnesses only
is a log at another place: it acknowledges writes and serves no read.

Invariant: a write that its level acknowledged and a read at a level that meets it share a replica, and one
replica of the read is full; so the data replica of the read can bring the write.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from itertools import chain, combinations, pairwise
from typing import Final

import msgspec

from lockstep.tracking.limits import PARTICIPANTS_MAX
from lockstep.values.errors import ConfigurationInvalid

_FACTOR: Final = re.compile(r"(\d{1,4})(?:/(\d{1,4}))?")


class Factor(msgspec.Struct, frozen=True, array_like=True):
    """Of one data centre: `replicas` in all, of which `witnesses` keep no table data."""

    replicas: int
    witnesses: int = 0

    @property
    def full(self) -> int:
        return self.replicas - self.witnesses

    @property
    def log_only(self) -> bool:
        return self.replicas > 0 and self.full == 0

    def text(self) -> str:
        return f"{self.replicas}/{self.witnesses}" if self.witnesses else str(self.replicas)


class Level(enum.Enum):
    ONE = "ONE"
    QUORUM = "QUORUM"
    ALL = "ALL"
    LOCAL_ONE = "LOCAL_ONE"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    EACH_QUORUM = "EACH_QUORUM"


_LOCAL: Final = (Level.LOCAL_ONE, Level.LOCAL_QUORUM)


def factor_of(text: str) -> Factor:
    """ConfigurationInvalid where it is no factor, as `3` or `3/1`: replicas, and how many are witnesses."""
    match = _FACTOR.fullmatch(text.strip())
    if match is None:
        raise ConfigurationInvalid(
            f"{text!r} is no replication factor: say 3, or 3/1 with one witness of three"
        )
    found = Factor(int(match[1]), int(match[2] or 0))
    if found.replicas > PARTICIPANTS_MAX:
        raise ConfigurationInvalid(f"{text!r} asks for more than {PARTICIPANTS_MAX} replicas")
    if found.witnesses > found.replicas:
        raise ConfigurationInvalid(f"{text!r} asks for more witnesses than replicas")
    return found


def judge(factors: Mapping[str, Factor]) -> None:
    """ConfigurationInvalid where a quorum of all replicas may have no data."""
    if not any(factor.full for factor in factors.values()):
        raise ConfigurationInvalid(
            "some data centre needs a replica that is no witness: nobody would keep data"
        )
    for dc, factor in factors.items():
        # Of a majority one is full, else a data centre that is whole might not answer.
        if not factor.log_only and factor.witnesses > factor.replicas // 2:
            raise ConfigurationInvalid(
                f"{dc!r}: {factor.text()} has a majority of witnesses, which could not answer a read; "
                f"at most {factor.replicas // 2} of {factor.replicas} can be, or all of them for a log alone"
            )


def change_refused(before: Factor, after: Factor, *, forced: bool = False) -> str:
    """Why a data centre's factor cannot become another one in one step; "" where it can."""
    if after.witnesses > before.witnesses + 1:
        return "one witness is added at a time"
    if before.witnesses and after.full > before.full and after.replicas > before.replicas:
        return "no full replica is added while there are witnesses"
    if before.witnesses and not after.witnesses and after.replicas == before.replicas and not forced:
        return "witnesses become full replicas only where that is asked for by name"
    return ""


class Replica(msgspec.Struct, frozen=True, order=True):
    dc: str
    number: int
    full: bool


def replicas_of(factors: Mapping[str, Factor]) -> tuple[Replica, ...]:
    assert all(0 <= factor.witnesses <= factor.replicas for factor in factors.values()), factors
    return tuple(
        Replica(dc, number, number < factor.full)
        for dc, factor in sorted(factors.items())
        for number in range(factor.replicas)
    )


def enough(level: Level, factors: Mapping[str, Factor], local: str, among: Iterable[Replica]) -> bool:
    """Whether these replicas are as many as the level wants, witnesses included."""
    replicas = tuple(among)
    assert level not in _LOCAL or local in factors, "a local level is of a data centre with replicas"
    by_dc = {dc: sum(1 for one in replicas if one.dc == dc) for dc in factors}
    if level in _LOCAL:
        wanted = 1 if level is Level.LOCAL_ONE else _majority(factors[local].replicas)
        return by_dc[local] >= wanted
    if level is Level.EACH_QUORUM:
        return all(
            by_dc[dc] >= _majority(factor.replicas) for dc, factor in factors.items() if factor.replicas
        )
    total = sum(factor.replicas for factor in factors.values())
    wanted = {Level.ONE: 1, Level.QUORUM: _majority(total), Level.ALL: total}[level]
    return len(replicas) >= wanted


def readable(level: Level, factors: Mapping[str, Factor], local: str, among: Iterable[Replica]) -> bool:
    """Enough of them, and one full: in the own data centre where the level is a local one."""
    replicas = tuple(among)
    full = [one for one in replicas if one.full and (level not in _LOCAL or one.dc == local)]
    return bool(full) and enough(level, factors, local, replicas)


def _majority(count: int) -> int:
    return count // 2 + 1


class Missed(msgspec.Struct, frozen=True):
    """A write that a read does not see."""

    written: tuple[Replica, ...]
    asked: tuple[Replica, ...]


def missed(
    factors: Mapping[str, Factor], write: Level, write_dc: str, read: Level, read_dc: str
) -> Missed | None:
    """The first pair of sets, of all there are, that do not meet; None proves that all do.

    Only smallest sets are looked at: a larger set meets whatever a smaller one in it meets.
    """
    subsets = _subsets(replicas_of(factors))
    writes = _smallest([one for one in subsets if enough(write, factors, write_dc, one)])
    reads = _smallest([one for one in subsets if readable(read, factors, read_dc, one)])
    assert writes and reads, "all replicas together are enough for any level"
    return next(
        (Missed(tuple(sorted(one)), tuple(sorted(two))) for one in writes for two in reads if not one & two),
        None,
    )


def _subsets(replicas: tuple[Replica, ...]) -> list[frozenset[Replica]]:
    sizes = range(1, len(replicas) + 1)
    return [frozenset(one) for one in chain.from_iterable(combinations(replicas, size) for size in sizes)]


def _smallest(sets: list[frozenset[Replica]]) -> list[frozenset[Replica]]:
    """In order of size, those that contain no smaller one."""
    assert all(len(one) <= len(other) for one, other in pairwise(sets)), "smaller sets come first"
    found: list[frozenset[Replica]] = []
    for one in sets:
        if not any(smaller <= one for smaller in found):
            found.append(one)
    return found
