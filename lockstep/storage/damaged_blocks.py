"""Blocks of table files that cannot be read: what a damaged disk does to a store whose node goes on.

Invariant: whoever reads a key in such a block is refused, whatever was written to it since; nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.storage.damage import DamagedFiles
from lockstep.storage.store import Pair
from lockstep.values.errors import TableFileDamaged


class DamagedBlocks:
    """Of one simulated store, whose directory names the files."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._blocks: list[tuple[bytes, bytes]] = []
        self._numbers = 0
        self.damaged = DamagedFiles()

    def add(self, first_key: bytes, last_key: bytes) -> None:
        self._blocks.append((first_key, last_key))

    def clear(self) -> None:
        self._blocks.clear()

    def require(self, key: bytes) -> None:
        """TableFileDamaged when the key lies in a block that cannot be read."""
        for first_key, last_key in self._blocks:
            if first_key <= key <= last_key:
                path = f"{self._directory}/{first_key[:16].hex()}.sst"
                raise self.damaged.found(TableFileDamaged(path, 0, "damaged", first_key, last_key))

    def guarded(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """The pairs up to the first that cannot be read."""
        return self._guarded(pairs) if self._blocks else pairs

    def _guarded(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        for pair in pairs:
            self.require(pair[0])
            yield pair
