"""Reading all that can still be read of a database with damaged table files, in key order.

Where a block cannot be read, what the library would merge with it is not known: the stretch of keys up to the
next that can be read is left out. Invariant: every pair that is given is as it was, and every key that is not
given and was there lies in a stretch that is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lockstep.storage.store import Pair
from lockstep.values.errors import CorruptFile

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
