"""Whether the cluster has a log, as a part of the metadata: by which mode its nodes agree when it has none.

Invariant: founding sets it. A cluster without a log has no voters: all members of its ring agree on each
change of the metadata, in the way that the mode names.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.part import Part, struct_part

#: All members must accept a change; a majority does, under ballots.
UNANIMOUS: Final = "unanimous"
QUORUM: Final = "quorum"
RING_MODES: Final = (UNANIMOUS, QUORUM)


class Ringed(msgspec.Struct, frozen=True, array_like=True):
    """`mode` is empty where the cluster has a log."""

    mode: str = ""

    def validate(self) -> None:
        assert not self.mode or self.mode in RING_MODES, "a ring has a mode"


NOT_RINGED: Final = Ringed()

RINGED: Final[Part[Ringed]] = struct_part("ring", 24, NOT_RINGED, lambda one: one.validate())
