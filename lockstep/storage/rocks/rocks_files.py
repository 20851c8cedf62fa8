"""The table files of a content that was fixed on disk, told apart by their bytes.

Invariant: what files hold is told only where it follows from their bytes: nothing of the content is beside
its files, those in the range lie within it, and none deletes anything. Two of them may have the same key, but
then with the same value, for no two writes share one. So files of the same bytes hold the same, whichever
store has them, in whatever order it took them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

import msgspec
import xxhash

from lockstep.storage.rocks.rocks_building import open_content
from lockstep.values.errors import CorruptFile

#: Entries of a content that are in no table file.
_BESIDE_FILES: Final = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
#: All files of a content are opened at once, to know what is in them: no more than a process may have open.
_FILES_MAX: Final = 512


def is_in_files(database: Any) -> bool:
    """Whether all of a content is in its table files."""
    return not any(database.property_int_value(name) for name in _BESIDE_FILES)


class FilesTold(msgspec.Struct, frozen=True):
    """Of the files of a range: a digest of their bytes, and how many entries they have, of which several may
    be of one row."""

    digest: bytes
    entries: int


class ContentFiles:
    """Of the content in a directory. `database` is open to read it; `pieces` reads a file by its path."""

    def __init__(
        self, library: Any, database: Any, directory: str, pieces: Callable[[str], Iterable[bytes]]
    ) -> None:
        self._directory = directory
        self._pieces = pieces
        self._digests: dict[str, bytes] = {}
        self._all: list[Mapping[str, Any]] | None = None
        if not is_in_files(database):
            return
        if len(database.live_files()) <= _FILES_MAX:
            self._all = sorted(_files_of(library, directory), key=itemgetter("start_key"))

    def told(self, lower: bytes, upper: bytes) -> Iterator[FilesTold | None]:
        """Nothing for each file that was read, and at last what the files between two keys hold; nothing when
        that does not follow from them. CorruptFile for one that cannot be read."""
        found = self._between(lower, upper)
        if found is None:
            return
        digests = []
        for one in found:
            digests.append(self.digest(one["name"]))
            yield None
        told = xxhash.xxh3_128_digest(b"".join(sorted(digests)))
        yield FilesTold(told, sum(one["num_entries"] for one in found))

    def _between(self, lower: bytes, upper: bytes) -> list[Mapping[str, Any]] | None:
        if self._all is None:
            return None
        found = [one for one in self._all if one["start_key"] < upper and lower <= one["end_key"]]
        tells = all(
            not one["num_deletions"] and lower <= one["start_key"] and one["end_key"] < upper for one in found
        )
        return found if tells else None

    def digest(self, name: str) -> bytes:
        """Of the bytes of a file. CorruptFile when it cannot be read."""
        known = self._digests.get(name)
        if known is not None:
            return known
        path = f"{self._directory}{name}"
        made = xxhash.xxh3_128()
        try:
            for piece in self._pieces(path):
                made.update(piece)
        except OSError as error:
            raise CorruptFile(path, 0, f"cannot be read: {error}") from error
        self._digests[name] = found = made.digest()
        return found


def _files_of(library: Any, directory: str) -> list[Mapping[str, Any]]:
    """The library only knows of all files how many entries these have when it keeps all of them open."""
    opened = open_content(library, directory, open_files_max=-1)
    try:
        found: list[Mapping[str, Any]] = opened.live_files()
        return [one for one in found if one["num_entries"] and one["start_key"] is not None]
    finally:
        opened.close()
