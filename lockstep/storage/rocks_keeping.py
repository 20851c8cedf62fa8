"""What a RocksDB database is known to have held: checked before it is opened, and noted while it is open.

Invariant: what is noted is durable by then, whoever made it so: a log's bytes were there before a sync that
has ended, a manifest's stood unchanged since the note before (the library syncs them as it writes them).
"""

from __future__ import annotations

from lockstep.runtime.ports import Disk
from lockstep.storage.rocks_checking import MANIFEST_PREFIX, check_database, log_files
from lockstep.storage.store_position import PositionFile, StorePosition
from lockstep.values.errors import DiskRefused


class KeptFiles:
    """The files of the database in `directory`, which is relative to the node's."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._file = PositionFile(disk, directory)
        self._noted: StorePosition | None = None
        self._seen: dict[str, int] = {}

    def check(self) -> None:
        """CorruptFile when the database lacks something that it had. Changes nothing; for any thread."""
        check_database(self._disk, self._directory, self._file.load())

    def names(self) -> list[str]:
        """The files of the database, sorted."""
        return self._disk.names(self._directory)

    async def begin(self, sequence: int) -> None:
        """The database is open, and holds everything up to `sequence`."""
        position = self.position(sequence)
        await self._file.begin(position)
        self._noted = position

    def position(self, sequence: int) -> StorePosition:
        """Where the database is now, to be noted when what is written by now is durable."""
        seen, self._seen = self._seen, dict(log_files(self._disk, self._directory))
        files = tuple(
            (name, min(size, seen.get(name, 0)) if name.startswith(MANIFEST_PREFIX) else size)
            for name, size in self._seen.items()
        )
        return StorePosition(sequence, files)

    def note(self, position: StorePosition) -> bool:
        """Note what is durable now; False when nothing has changed. DiskRefused."""
        if position == self._noted:
            return False
        self._file.note(position)
        self._noted = position
        return True

    async def settle(self) -> None:
        """Nothing has changed since the last note: have it survive a loss of power too. DiskRefused."""
        assert self._noted is not None, "a database that is open has a position"
        await self._file.settle(self._noted)

    def closed(self, sequence: int) -> None:
        """The database is closed, and everything up to `sequence` is in its files."""
        try:
            self.note(StorePosition(sequence, log_files(self._disk, self._directory)))
        except DiskRefused:
            # A full disk: what was noted last stays, and is true.
            return
