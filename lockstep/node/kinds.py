"""The kinds of entries that this version knows: the rooms' tables, joined.

Invariant: every node of this version, and every tool that reads its log, uses this one set.
"""

from __future__ import annotations

from lockstep.metadata import membership, schema_change, snapshot_entries, transformations
from lockstep.metadata.registry import Registry
from lockstep.metadata.versions import SINCE
from lockstep.topology import transformations as topology_transformations


def every_kind() -> Registry:
    return Registry(
        transformations.KINDS,
        schema_change.KINDS,
        membership.KINDS,
        topology_transformations.KINDS,
        snapshot_entries.KINDS,
        since=SINCE,
    )
