"""Long work on RocksDB files in processes beside the node: building files of a range from a store's content
that was fixed on disk, and having table files checked whole.

Invariant: a fixed content never changes, and any number of processes may read it; an order names all that a
file is made of, so that whoever carries it out makes the same one. A file that a check finds damaged is named
with what the library says of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from lockstep.runtime.ports import Helpers, Tasks
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.rocks.rocks_errors import RocksErrors, file_error
from lockstep.storage.rocks.rocks_runs import RocksCursor, TableFile
from lockstep.storage.sorted_file import RangeFiles
from lockstep.storage.store import FileSummary
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import CorruptFile, DiskRefused, StorageError, TableFileDamaged
from lockstep.values.node_limits import SCRUB_FILE_TIMEOUT_MS

#: What a helper process is started with.
BUILD_HANDLER: Final = "lockstep.storage.rocks.rocks_building:build"
BUILD_PACKAGES: Final = ("rocksdict",)
#: What a helper keeps of files: the index and filter of those it reads one after the other.
_CACHE_BYTES = 8 * 1024 * 1024
_OPEN_FILES_MAX = 64


class BuildOrder(msgspec.Struct, frozen=True, array_like=True):
    """Make a file at `path` of the first pairs between two keys, where the content lies in `directory`."""

    directory: str
    lower: bytes
    upper: bytes
    bytes_max: int
    path: str


class BuildAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`ended`: nothing is left between the keys. `refusal`: why there is no such file."""

    summary: FileSummary | None = None
    ended: bool = False
    refusal: str = ""


_ORDER = decoder(BuildOrder)
_ANSWER = decoder(BuildAnswer)


class FixedContent:
    """See `store.FixedContent`. It lies in a directory of hard links, which nobody else removes."""

    def __init__(
        self, library: Any, tasks: Tasks, errors: RocksErrors, directory: str, files_root: str
    ) -> None:
        self._library = library
        self._tasks = tasks
        self._errors = errors
        self._directory = directory
        self._files_root = files_root

    def order(self, lower: bytes, upper: bytes, bytes_max: int, path: str) -> bytes:
        return encode(BuildOrder(self._directory, lower, upper, bytes_max, f"{self._files_root}/{path}"))

    def built(self, answer: bytes) -> tuple[FileSummary, bool]:
        found = _ANSWER.decode(answer)
        if found.summary is None:
            # A link of a damaged file is as damaged as the file.
            raise self._errors.named(found.refusal) or StorageError(found.refusal)
        return found.summary, found.ended

    async def close(self) -> None:
        await self._tasks.run_blocking(lambda: remove_content(self._library, self._directory))


def remove_content(library: Any, directory: str) -> None:
    """Also of one that was not complete, or is there no longer."""
    try:
        library.Rdict.destroy(directory, library.Options(raw_mode=True))
    except Exception as error:
        raise DiskRefused(f"cannot remove {directory}: {error}") from error


def build(question: bytes) -> bytes:
    """Carry out an order, in a process that does nothing else meanwhile."""
    try:
        return encode(_built(_ORDER.decode(question)))
    except StorageError as error:
        return encode(BuildAnswer(refusal=error.message))


def _built(order: BuildOrder) -> BuildAnswer:
    import rocksdict

    database = open_content(rocksdict, order.directory)
    try:
        errors = RocksErrors(order.directory, DamagedFiles(), database.live_files)
        cursor = RocksCursor(errors, database, rocksdict.ReadOptions, order.lower, order.upper)
        try:
            maker = RangeFiles(cursor.take, order.bytes_max)
            file = TableFile(rocksdict, order.path)
            while maker.add_block(file):
                pass
            file.complete()
            return BuildAnswer(maker.summary(0, b""), maker.ended)
        finally:
            cursor.close()
    finally:
        database.close()


def open_content(library: Any, directory: str, open_files_max: int = _OPEN_FILES_MAX) -> Any:
    """A fixed content, to be read. CorruptFile when it cannot be. `open_files_max` -1: no limit."""
    table = library.BlockBasedOptions()
    table.set_block_cache(library.Cache(_CACHE_BYTES))
    options = library.Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_max_open_files(open_files_max)
    options.set_max_file_opening_threads(1)
    try:
        return library.Rdict(directory, options, access_type=library.AccessType.read_only(False))
    except Exception as error:
        raise CorruptFile(directory, 0, str(error)) from error


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
