"""Files of tables that are known to be damaged, each told of once, whoever came upon it.

Invariant: a file that was found damaged is not forgotten as long as the store is open.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.values.errors import TableFileDamaged
from lockstep.values.node_limits import DAMAGED_FILES_MAX


class DamagedFiles:
    """Who listens is called with the first error of each file."""

    def __init__(self) -> None:
        self._by_path: dict[str, TableFileDamaged] = {}
        self._listeners: list[Callable[[TableFileDamaged], None]] = []
        #: Errors that named a damaged file, also one that was known; only grows.
        self.count = 0

    def found(self, error: TableFileDamaged) -> TableFileDamaged:
        """Note what a read, a merge, a stream or a check has met; the same error, to be raised."""
        self.count += 1
        if error.path not in self._by_path and len(self._by_path) < DAMAGED_FILES_MAX:
            self._by_path[error.path] = error
            for listener in self._listeners:
                listener(error)
        return error

    def listen(self, listener: Callable[[TableFileDamaged], None]) -> None:
        """Call it for each file, those known by now too."""
        self._listeners.append(listener)
        for error in self.known:
            listener(error)

    @property
    def known(self) -> tuple[TableFileDamaged, ...]:
        """One error a file, in the order in which they were found."""
        return tuple(self._by_path.values())
