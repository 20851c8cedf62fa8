"""The kinds of entries that this version knows: the rooms' tables, joined.

Invariant: every node of this version, and every tool that reads its log, uses this one set; only tests take
kinds out of one node's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstep.metadata import (
    features,
    lineage,
    load_entries,
    schema_change,
    tablet_migration,
    transformations,
)
from lockstep.metadata.access import role_changes
from lockstep.metadata.groups import membership, placing, ring_entries, upgrade_entries
from lockstep.metadata.log import snapshot_entries
from lockstep.metadata.log.registry import SINCE, EntryKind, Registry
from lockstep.metadata.part import Part
from lockstep.node.configuration import TestingSection
from lockstep.topology import force_remove, generations, lone_steps, repairs
from lockstep.topology import requests as topology_requests
from lockstep.topology import transformations as topology_transformations
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.tablets import asked, balancing, moves, resizes
from lockstep.values.errors import ConfigurationError

_TABLES: Final[tuple[Mapping[int, type[Any]], ...]] = (
    transformations.KINDS,
    schema_change.KINDS,
    membership.KINDS,
    topology_transformations.KINDS,
    lone_steps.KINDS,
    moves.KINDS,
    balancing.KINDS,
    resizes.KINDS,
    asked.KINDS,
    tablet_migration.KINDS,
    topology_requests.KINDS,
    force_remove.KINDS,
    repairs.KINDS,
    force_remove.UNDELIVERED_KINDS,
    features.EXCLUDED_KINDS,
    features.KINDS,
    role_changes.KINDS,
    role_changes.PERMISSION_KINDS,
    snapshot_entries.KINDS,
    load_entries.KINDS,
    generations.KINDS,
    lineage.KINDS,
    placing.KINDS,
    ring_entries.KINDS,
    upgrade_entries.KINDS,
)


#: Parts of the metadata that rooms above `metadata` keep.
_PARTS: Final[tuple[Part[Any], ...]] = ()


def every_kind() -> Registry:
    return Registry(*_TABLES, since=SINCE, parts=_PARTS, unions=UNIONS)


def kinds_of(testing: TestingSection) -> Registry:
    """Every kind, but for those that a test hides. ConfigurationError when there is no such kind."""
    known = {kind.name.lower(): kind for kind in EntryKind}
    for name in testing.hide_kinds:
        if name not in known:
            raise ConfigurationError(
                f"testing.hide_kinds: there is no kind {name}", hint=f"there are: {', '.join(known)}"
            )
    hidden = {known[name].value for name in testing.hide_kinds}
    kept = [{kind: of for kind, of in table.items() if kind not in hidden} for table in _TABLES]
    version = None if testing.log_version < 0 else testing.log_version
    return Registry(*kept, since=SINCE, version=version, parts=_PARTS, unions=UNIONS)
