"""Having table files checked whole, by processes beside the node.

Invariant: a file that a check finds damaged is named with what the library says of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from lockstep.runtime.ports import Helpers
from lockstep.storage.rocks.rocks_errors import file_error
from lockstep.values.codec import encode
from lockstep.values.errors import TableFileDamaged
from lockstep.values.storage_limits import SCRUB_FILE_TIMEOUT_MS

TABLE_SUFFIX: Final = ".sst"
_WHY = msgspec.msgpack.Decoder(str)


class TableChecker:
    """`helpers` answer (directory, name) with why the file is not whole, or with nothing."""

    def __init__(self, helpers: Helpers) -> None:
        self._helpers = helpers

    async def damage_in(
        self, directory: str, name: str, live_files: Iterable[Mapping[str, Any]] = ()
    ) -> TableFileDamaged | None:
        """None for a file that is whole, or gone. TimeoutError, ConnectionError: it could not be checked."""
        why = _WHY.decode(await self._helpers.do(encode((directory, name)), SCRUB_FILE_TIMEOUT_MS))
        if not why:
            return None
        found = file_error(directory, f"Corruption: {why} {directory}/{name}", live_files)
        assert found is not None, "the text names a table file"
        found.why = why
        return found

    async def first_damaged(self, directory: str, names: Iterable[str]) -> TableFileDamaged | None:
        """The first of these files that is damaged, when the library does not say which one it is."""
        for name in names:
            found = await self.damage_in(directory, name) if name.endswith(TABLE_SUFFIX) else None
            if found is not None:
                return found
        return None
