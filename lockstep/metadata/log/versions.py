"""Which versions of the log there are, and who can read which.

A node states with its directory entry the newest version of the log that it can read. A kind that is newer
than what every node of the cluster can read is not accepted into the log, and a node that cannot read what
may be in the log is not accepted into the cluster; so all nodes can be upgraded one after another.

Invariant: the lowest version of the nodes that have not left never goes down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lockstep.metadata.directory import Directory, NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.values.errors import VersionMismatch

#: Whoever reads the log at all reads this one.
FIRST_VERSION: Final = 1
#: The newest version of the log that this code reads and writes.
LOG_VERSION: Final = 1
#: The version since which there is a kind; a new kind comes with a new version.
SINCE: Final[Mapping[int, int]] = {kind.value: 1 for kind in EntryKind}
assert max(SINCE.values()) == LOG_VERSION, "the newest kinds are of the newest version"


def lowest_version(directory: Directory) -> int:
    """What every node that has not left can read; 0 while there is none."""
    versions = [node.log_version for node in directory.nodes if node.state is not NodeState.LEFT]
    return min(versions, default=0)


def refuse_newer_kind(directory: Directory, kind: int, since: int) -> None:
    """Raises VersionMismatch when not every node can read entries of a kind that is there since `since`."""
    if since == FIRST_VERSION:
        return
    lowest = lowest_version(directory)
    if lowest and since > lowest:
        behind = [
            str(node.id)
            for node in directory.nodes
            if node.log_version < since and node.state is not NodeState.LEFT
        ]
        raise VersionMismatch(
            f"entries of kind {kind} need log version {since}; nodes {', '.join(behind)} cannot read them",
            hint="upgrade these nodes first",
        )


def refuse_older_node(directory: Directory, version: int) -> None:
    """Raises VersionMismatch when a node that reads up to `version` cannot read what may be in the log."""
    lowest = lowest_version(directory)
    if version < lowest:
        raise VersionMismatch(
            f"this node reads the log up to version {version}, and the cluster writes version {lowest}",
            hint="upgrade this node",
        )
