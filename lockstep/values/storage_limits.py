"""Limits of what a node keeps of its own store's state."""

from __future__ import annotations

from typing import Final

#: Damaged table files that are kept by name: a disk that damages more is to be replaced, and each costs a
#: condition that all nodes hear of.
DAMAGED_FILES_MAX: Final = 64
#: One table file of a few hundred megabytes, read by a helper process that goes behind everything else.
SCRUB_FILE_TIMEOUT_MS: Final = 600_000
