"""Table files told apart by their bytes: only where these say what is in a range."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import rocksdict

from lockstep.storage.rocks import rocks_files
from lockstep.storage.rocks.rocks_building import open_content
from lockstep.storage.rocks.rocks_files import ContentFiles, FilesTold
from lockstep.storage.rocks.rocks_runs import TableFile
from lockstep.storage.store import Pair
from lockstep.values.errors import CorruptFile

FIRST = [(b"a%03d" % number, b"value") for number in range(100)]
SECOND = [(b"b%03d" % number, b"value") for number in range(50)]


def file_of(place: Path, pairs: Sequence[Pair]) -> str:
    made = TableFile(rocksdict, str(place))
    made.add(pairs)
    made.complete()
    return str(place)


class Store:
    """One that takes files in, and whose content is then read where it lies."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.database = rocksdict.Rdict(self.directory, rocksdict.Options(raw_mode=True))

    def take(self, *files: str) -> None:
        self.database.ingest_external_file(list(files))

    def files(self) -> ContentFiles:
        self.database.close()
        opened = open_content(rocksdict, self.directory)
        return ContentFiles(rocksdict, opened, self.directory, pieces)


def pieces(path: str) -> Iterator[bytes]:
    yield Path(path).read_bytes()


def last(files: ContentFiles, lower: bytes, upper: bytes) -> FilesTold | None:
    told = None
    for told in files.told(lower, upper):  # noqa: B007
        pass
    return told


def emptying(lower: bytes, upper: bytes) -> Any:
    batch = rocksdict.WriteBatch(raw_mode=True)
    batch.delete_range(lower, upper)
    return batch


@pytest.fixture
def loaded(tmp_path: Path) -> list[str]:
    return [file_of(tmp_path / "1.sst", FIRST), file_of(tmp_path / "2.sst", SECOND)]


def test_stores_that_took_the_same_files_tell_the_same(tmp_path: Path, loaded: list[str]) -> None:
    one, other, third = (Store(tmp_path / name) for name in ("one", "other", "third"))
    one.take(*loaded)
    # In another order, and beside something else.
    other.take(file_of(tmp_path / "0.sst", [(b"0", b"other table")]))
    other.take(loaded[1])
    other.take(loaded[0])
    third.take(file_of(tmp_path / "3.sst", [*FIRST[:-1], (FIRST[-1][0], b"VALUE")]), loaded[1])
    found = [store.files() for store in (one, other, third)]
    told = [last(files, b"a", b"c") for files in found]
    assert told[0] is not None and told[0].entries == 150
    assert told[0] == told[1] != told[2]
    halves = [last(files, b"b", b"c") for files in found]
    assert halves[0] == halves[1] == halves[2] != told[0]
    assert last(found[0], b"c", b"d") == last(found[2], b"x", b"y")
    assert last(found[0], b"c", b"d").entries == 0  # type: ignore[union-attr]


def test_files_that_lie_over_each_other_tell_too(tmp_path: Path, loaded: list[str]) -> None:
    """As those of the tasks of one load do, in any order."""
    over = file_of(tmp_path / "over.sst", [*FIRST[10:20], (b"b500", b"value")])
    stores = [Store(tmp_path / name) for name in ("one", "other")]
    for store, files in zip(stores, ((*loaded, over), (over, *loaded)), strict=True):
        for file in files:
            store.take(file)
    one, other = (last(store.files(), b"a", b"c") for store in stores)
    assert one is not None and one == other and one.entries == 161


def test_more_files_than_the_library_looks_into_by_itself_are_counted(tmp_path: Path) -> None:
    store = Store(tmp_path / "many")
    for number in range(60):
        store.take(file_of(tmp_path / f"{number}.sst", [(b"%03d" % number, b"v"), (b"%03d+" % number, b"v")]))
    told = last(store.files(), b"0", b"1")
    assert told is not None and told.entries == 120


def test_what_does_not_follow_from_files_is_not_told(
    tmp_path: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str, *writes: Any, lower: bytes = b"a") -> FilesTold | None:
        store = Store(tmp_path / name)
        store.take(*loaded)
        for write in writes:
            write(store.database)
        return last(store.files(), lower, b"c")

    flush = rocksdict.Rdict.flush
    assert told("clean") is not None
    assert told("reaching", lower=b"a050") is None, "a file reaches out of the range"
    above = told("above", lambda db: db.put(b"a05", b""), flush)
    assert above is not None and above != told("clean again") and above.entries == 151
    assert told("between", lambda db: db.put(b"a5", b""), flush) != told("clean too")
    assert told("deleted", lambda db: db.delete(b"bz"), flush) is None, "one deletes something"
    assert told("emptied", lambda db: db.write(emptying(b"0", b"1")), flush) is not None
    assert told("emptied too", lambda db: db.write(emptying(b"a", b"b")), flush) is None
    assert told("elsewhere", lambda db: db.put(b"z", b""), flush) is not None
    store = Store(tmp_path / "written")
    store.take(*loaded)
    store.database.put(b"z", b"")
    copied = tmp_path / "copied"
    shutil.copytree(store.directory, copied)
    files = ContentFiles(rocksdict, open_content(rocksdict, str(copied)), str(copied), pieces)
    assert last(files, b"a", b"c") is None, "something is in no file yet"
    monkeypatch.setattr(rocks_files, "_FILES_MAX", 1)
    assert told("too many") is None


def test_a_file_that_is_gone_is_an_error(tmp_path: Path, loaded: list[str]) -> None:
    store = Store(tmp_path / "one")
    store.take(*loaded)
    files = store.files()
    for place in (tmp_path / "one").glob("*.sst"):
        place.unlink()
    with pytest.raises(CorruptFile, match="cannot be read"):
        last(files, b"a", b"c")
