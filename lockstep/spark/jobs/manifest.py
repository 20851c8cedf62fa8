"""What an export says of itself: the table, how it was read, and every file with its rows and digest.

Invariant: a directory with a manifest holds a whole export, and nothing of it was changed as long as the
files have the rows and digests that the manifest names. It is written last, and whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from lockstep.spark.jobs.running import spread
from lockstep.spark.jobs.tables import Described
from lockstep.values.errors import ConfigurationError, PreconditionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST: Final = "manifest.json"
#: Of an export that has begun and has no manifest yet.
BEGUN: Final = "export-begun.json"
DATA: Final = "data"
#: Files a task looks at: some hundred MiB of hashing each.
_FILES_PER_TASK: Final = 4
_READ_BYTES: Final = 1 << 20
_SHOWN_MAX: Final = 5

Item = TypeVar("Item")


class ExportedFile(msgspec.Struct, frozen=True):
    """`path` is relative to the export's directory; `sha256` is of the whole file, in hex."""

    path: str
    rows: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """`read_level` is the consistency of every read. `columns` are those exported, in their order. Write
    times and expiries are not in an export."""

    schema: str
    described: Described
    columns: tuple[str, ...]
    partitioned_by: tuple[str, ...]
    read_level: str
    began_at: str
    ended_at: str
    rows: int
    bytes: int
    files: tuple[ExportedFile, ...]
    format: str = "parquet"
    decimal_scale: int = 18


def directory(text: str) -> Path:
    """A directory of this machine, or one that all machines of the session share. ConfigurationError."""
    if "://" in text:
        raise ConfigurationError(
            f"{text} is a URI", hint="name a directory; with several machines, one that all of them mount"
        )
    return Path(text).expanduser().absolute()


def read_manifest(place: Path) -> Manifest:
    """ConfigurationError when there is none, or it cannot be understood."""
    try:
        text = (place / MANIFEST).read_bytes()
    except OSError as error:
        hint = (
            "the export was broken off: lockstep pipeline export --resume" if (place / BEGUN).exists() else ""
        )
        raise ConfigurationError(f"{place} holds no export: {error.strerror}", hint=hint) from error
    try:
        found = msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{place / MANIFEST} is no manifest: {error}") from error
    if found.schema != "export-manifest/1":
        raise ConfigurationError(f"{place / MANIFEST} has the schema {found.schema}, not export-manifest/1")
    return found


def write_whole(path: Path, value: msgspec.Struct) -> None:
    """A JSON file that is there whole or not at all. ConfigurationError where it cannot be written."""
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        partial.rename(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def look_at(session: SparkSession, place: Path, paths: Sequence[str]) -> list[ExportedFile]:
    """Rows, bytes and digest of files in an export's directory, found by tasks. PreconditionError."""
    groups = [(str(place), tuple(group)) for group in _grouped(paths, _FILES_PER_TASK)]
    return spread(session, groups, looked_at)


def looked_at(part: tuple[str, tuple[str, ...]]) -> list[ExportedFile]:
    """One task's share of `look_at`: a directory and paths in it."""
    from pyarrow import ArrowException, parquet

    found = []
    for path in part[1]:
        whole = Path(part[0]) / path
        hashed = hashlib.sha256()
        try:
            with whole.open("rb") as file:
                while piece := file.read(_READ_BYTES):
                    hashed.update(piece)
            rows = parquet.read_metadata(whole).num_rows
        except (OSError, ArrowException) as error:
            raise PreconditionError(f"{whole} cannot be read as Parquet: {error}") from error
        found.append(ExportedFile(path, rows, whole.stat().st_size, hashed.hexdigest()))
    return found


def data_files(place: Path) -> list[str]:
    """Paths of an export's data files, relative to its directory, sorted."""
    files = sorted((place / DATA).rglob("*.parquet"))
    return [str(path.relative_to(place)) for path in files if not path.name.startswith((".", "_"))]


def damage(manifest: Manifest, place: Path, found: Iterable[ExportedFile]) -> list[str]:
    """How the files differ from the manifest, a sentence each."""
    now = {one.path: one for one in found}
    wrong = []
    for one in manifest.files:
        other = now.pop(one.path, None)
        if other is None:
            wrong.append(f"{one.path} is gone")
        elif other.sha256 != one.sha256:
            wrong.append(f"{one.path} has another content: {other.rows} rows, sha256 {other.sha256[:12]}")
    return wrong + [f"{path} is in no manifest" for path in now]


def require_whole(session: SparkSession, manifest: Manifest, place: Path) -> None:
    """PreconditionError unless the export is as it was written."""
    there = data_files(place)
    wrong = damage(manifest, place, look_at(session, place, there))
    if wrong:
        more = f", and {len(wrong) - _SHOWN_MAX} more" if len(wrong) > _SHOWN_MAX else ""
        raise PreconditionError(
            f"the export in {place} is not as its manifest says: {'; '.join(wrong[:_SHOWN_MAX])}{more}"
        )


def _grouped(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
