"""A repair of a range whose replicas know by ids what they hold is a wait: for what any participant held when
it began, until all of them hold it.

Invariant: nothing is awaited before each participant has told what it holds, at a moment at which its tables
had nothing of mutations that it does not name; from then on what is awaited stays the same. It is over only
when each participant, after that, told that it holds all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from lockstep.tracking.held import NOTHING, Held, all_of

_NOBODY: Final[Mapping[int, Held]] = MappingProxyType({})


class Wait(msgspec.Struct, frozen=True):
    """`told`: what each participant told last. `wanted`: what is awaited, once `is_captured`."""

    nodes: tuple[int, ...]
    told: Mapping[int, Held] = _NOBODY
    wanted: Held = NOTHING
    is_captured: bool = False

    def heard(self, node: int, held: Held | None) -> Wait:
        """A participant told what it holds durably; None: it is getting rows of mutations that it cannot name
        yet, so what it held until now counts for nothing."""
        assert node in self.nodes, "only participants are asked"
        told = {other: held_ for other, held_ in self.told.items() if other != node}
        if held is not None:
            told[node] = held
        if self.is_captured or told.keys() != {*self.nodes}:
            return msgspec.structs.replace(self, told=told)
        wanted = all_of(told[node] for node in sorted(told))
        return Wait(self.nodes, told, wanted, is_captured=True)

    def lacks(self, node: int) -> Held:
        """What of what is awaited a participant is not known to hold."""
        return self.wanted.difference(self.told.get(node, NOTHING))

    @property
    def pending(self) -> tuple[int, ...]:
        """Participants that are to be asked next."""
        if not self.is_captured:
            return tuple(node for node in self.nodes if node not in self.told)
        return tuple(node for node in self.nodes if node not in self.told or self.lacks(node))

    @property
    def lacking_count(self) -> int:
        """How many ids participants lack, each counted once for each that lacks it."""
        return sum(self.lacks(node).count for node in self.nodes)

    @property
    def is_over(self) -> bool:
        return self.is_captured and not self.pending

    def validate(self) -> None:
        assert self.nodes and len({*self.nodes}) == len(self.nodes), "participants are named once"
        assert self.told.keys() <= {*self.nodes}, "who tells takes part"
        assert self.is_captured or not self.wanted, "what is awaited is known from a moment on"
        assert not self.is_over or all(self.told[node].covers(self.wanted) for node in self.nodes), (
            "at the end all hold what any of them held"
        )
