"""What the errors of RocksDB mean: its texts name the file and the place of a block that does not hold what
was written there.

Invariant: an error of the library about a table file comes out as TableFileDamaged of that file, whatever the
path under which the library reads it (a snapshot on disk has links to the store's files).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lockstep.storage.damage import DamagedFiles
from lockstep.values.errors import CorruptFile, TableFileDamaged

#: A file of a table as the library names it, and the place in it where that is told.
_FILE: Final = re.compile(r"(?:\S*/)?(\d+\.sst)\b")
_OFFSET: Final = re.compile(r"offset (\d+)")
#: How an error begins that is about a file's content or about its being there, not about the disk.
_OF_CONTENT: Final = ("Corruption", "IO error: No such file", "Invalid argument", "Not implemented")


def file_error(
    directory: str, text: str, live_files: Iterable[Mapping[str, Any]] = ()
) -> TableFileDamaged | None:
    """The error of the first table file of the store in `directory` that the library's text calls damaged or
    gone; None when the text is about something else. `live_files`: as the library lists them."""
    named = _FILE.search(text)
    if named is None or not any(kind in text for kind in _OF_CONTENT):
        return None
    offset = _OFFSET.search(text)
    first_key, last_key = b"", b""
    for one in live_files:
        if one["name"].endswith(f"/{named[1]}"):
            first_key, last_key = one["start_key"] or b"", one["end_key"] or b""
    why = text.removeprefix("Corruption: ").strip()
    return TableFileDamaged(
        f"{directory}/{named[1]}", int(offset[1]) if offset else 0, why, first_key, last_key
    )


class RocksErrors:
    """Of one store: `live_files` lists its files."""

    def __init__(
        self,
        directory: str,
        damaged: DamagedFiles,
        live_files: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        self.directory = directory
        self._damaged = damaged
        self._live_files = live_files

    def named(self, error: object) -> TableFileDamaged | None:
        """The damaged file that the library's error names, noted as such; None when it names none."""
        found = file_error(self.directory, str(error))
        if found is None:
            return None
        known = next((one for one in self._damaged.known if one.path == found.path), None)
        if known is None:
            found = file_error(self.directory, str(error), self._live_files()) or found
        else:
            found = TableFileDamaged(found.path, found.offset, found.why, known.first_key, known.last_key)
        return self._damaged.found(found)

    def of(self, error: object) -> CorruptFile:
        """What is raised for an error in reading."""
        return self.named(error) or CorruptFile(self.directory, 0, str(error))
