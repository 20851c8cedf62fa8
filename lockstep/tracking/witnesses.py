"""What a factor such as 3/1 means: replicas of which some are witnesses, that keep no table data.

A witness journals mutations and tells what it holds, so it counts for every level, and a full replica brings
from its journal what it lacks itself. Data is read of full replicas alone. A data centre of witnesses only
is a log at another place: it acknowledges writes and serves no read.

Invariant: some data centre has a full replica, and of a majority of one that is no log alone one is full.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
