"""LOG-1 on disks: what a power cut would leave of the metadata log begins at or before the newest snapshot.

Invariant: judged by names and bytes that are durable; a segment or snapshot that is not counts as not there.
"""

from __future__ import annotations

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.disk import SimDisk

_SEGMENT = "metadata/log-"
_SNAPSHOT = "metadata/snapshot-"


def check_metadata_files(name: str, disk: SimDisk) -> None:
    """Raises Violation when the node could not start from its files after a power cut now."""
    files = disk.durable_sizes()
    segments = sorted(_number(path, _SEGMENT) for path in files if path.startswith(_SEGMENT))
    snapshots = sorted(
        _number(path, _SNAPSHOT)
        for path, (durable, whole) in files.items()
        if path.startswith(_SNAPSHOT) and not path.endswith(".part") and durable == whole
    )
    newest = snapshots[-1] if snapshots else 0
    if segments and segments[0] > newest + 1:
        raise Violation(
            "LOG-1",
            f"{name}: after a power cut the log would begin at epoch {segments[0]}, the newest snapshot is "
            f"of {newest or 'none'}",
        )


def _number(path: str, prefix: str) -> int:
    digits = path.removeprefix(prefix)
    return int(digits) if digits.isdecimal() else 0
