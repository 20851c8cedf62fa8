"""Which cluster this is."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.part import Part, struct_part


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """`lineage` lists the ids this cluster had, oldest first, the present one last."""

    cluster_id: str = ""
    cluster_name: str = ""
    lineage: tuple[str, ...] = ()


IDENTITY: Final[Part[Identity]] = struct_part("identity", 1, Identity())
