"""What the errors of RocksDB mean, whose texts name the file and the place of a block that does not hold what
was written there, and reading all that can still be read of a database with damaged files, in key order.

Where a block cannot be read, what the library would merge with it is not known: the stretch of keys up to the
next that can be read is left out.

Invariant: an error of the library about a table file comes out as TableFileDamaged of that file, whatever the
path under which the library reads it (a snapshot on disk has links to the store's files). Every pair that is
given is as it was, and every key that is not given and was there lies in a stretch that is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from lockstep.storage.damage import DamagedFiles
from lockstep.storage.store import Pair
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


#: Pairs that are given at once.
_PORTION: Final = 1000
#: Keys are searched by so many of their bytes: family, table, token and what of a key still fits.
_SEARCHED_BYTES: Final = 16
_LAST: Final = (1 << 8 * _SEARCHED_BYTES) - 1


class Salvage:
    """`stretches`, once all portions were taken: (first key, last key) of what cannot be read."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.stretches: list[tuple[bytes, bytes]] = []

    def portions(self) -> Iterator[list[Pair]]:
        """CorruptFile when the database cannot be opened at all."""
        import rocksdict

        try:
            database = rocksdict.Rdict(
                self._directory,
                rocksdict.Options(raw_mode=True),
                access_type=rocksdict.AccessType.read_only(False),
            )
        except Exception as error:
            raise CorruptFile(self._directory, 0, str(error)) from error
        try:
            yield from self._read(rocksdict, database)
        finally:
            database.close()

    def _read(self, library: Any, database: Any) -> Iterator[list[Pair]]:
        at: bytes | None = b""
        while at is not None:
            cursor = _cursor(library, database)
            cursor.seek(at)
            pairs: list[Pair] = []
            while cursor.valid():
                pairs.append((cursor.key(), cursor.value()))
                at = pairs[-1][0] + b"\0"
                if len(pairs) == _PORTION:
                    yield pairs
                    pairs = []
                cursor.next()
            if pairs:
                yield pairs
            if _is_good(cursor):
                return
            del cursor
            after = _readable_after(library, database, at)
            self.stretches.append((at, after or b"\xff" * _SEARCHED_BYTES))
            at = after


def _cursor(library: Any, database: Any) -> Any:
    options = library.ReadOptions()
    options.fill_cache(False)
    return database.iter(options)


def _is_good(cursor: Any) -> bool:
    try:
        cursor.status()
    except Exception:
        return False
    return True


def _readable_after(library: Any, database: Any, key: bytes) -> bytes | None:
    """The first key behind one that cannot be read from which on reading goes; None when there is none.

    Steps grow until one goes beyond the damage, and then shrink to its end.
    """

    def goes(number: int) -> bool:
        cursor = _cursor(library, database)
        cursor.seek(number.to_bytes(_SEARCHED_BYTES, "big"))
        return _is_good(cursor)

    bad = int.from_bytes(key[:_SEARCHED_BYTES].ljust(_SEARCHED_BYTES, b"\0"), "big")
    step = 1
    while not goes(good := min(bad + step, _LAST)):
        if good == _LAST:
            return None
        bad, step = good, 2 * step
    while good - bad > 1:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if goes(middle) else (middle, good)
    return good.to_bytes(_SEARCHED_BYTES, "big")
