"""Limits of what a node keeps of its own store's state."""

from __future__ import annotations

from typing import Final

#: Damaged table files that are kept by name: a disk that damages more is to be replaced, and each costs a
#: condition that all nodes hear of.
DAMAGED_FILES_MAX: Final = 64
