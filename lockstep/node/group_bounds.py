"""Bounds of what the two consensus groups keep and send. Every node that serves has the same ones."""

from __future__ import annotations

import msgspec

from lockstep.consensus.configuration import RaftSettings
from lockstep.values.limits import MANAGEMENT_SNAPSHOT_ENTRIES


class GroupBounds(msgspec.Struct, frozen=True):
    """`append_bytes_max`: data of one append of the metadata group. `management_entries`: of the management
    group's log, between two snapshots. A simulator takes small ones, to meet every border often."""

    append_bytes_max: int = RaftSettings().append_bytes_max
    management_entries: int = MANAGEMENT_SNAPSHOT_ENTRIES


USUAL = GroupBounds()
