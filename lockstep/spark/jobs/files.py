"""The files that a load reads, as far as the driver needs to know them: which there are, and their columns.

Invariant: names of columns come from the files themselves, before Spark starts. Text files may be compressed
by gzip; the others are read by Spark whatever their compression.
"""

from __future__ import annotations

import csv
import glob
import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

import msgspec

from lockstep.values.errors import ConfigurationError

FORMATS: Final = ("parquet", "csv", "json")
_ENDINGS: Final = {
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz"),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz"),
}
#: Lines of a JSON file whose names are compared with the table's columns before a task runs.
_LINES_LOOKED_AT: Final = 1000


class Files(msgspec.Struct, frozen=True):
    """`columns` are the names in the files, in the order of the first one."""

    format: str
    paths: tuple[str, ...]
    bytes: int
    columns: tuple[str, ...]


def uri(path: Path | str) -> str:
    """As Spark takes a file of this machine; nothing in it is escaped."""
    return f"file://{path}"


def find(wanted: Sequence[str], kind: str, separator: str = ",") -> Files:
    """Files by path, directory or pattern. ConfigurationError when there are none, or their columns
    differ."""
    paths = list(dict.fromkeys(path for text in wanted for path in _found(text, kind)))
    kind = kind or _kind_of(paths[0])
    columns: list[str] = []
    for path in paths:
        names = _columns(path, kind, separator)
        if kind == "json":
            columns += [name for name in names if name not in columns]
        elif columns and sorted(names) != sorted(columns):
            raise ConfigurationError(
                f"{path} has the columns {', '.join(names)}, but {paths[0]} has {', '.join(columns)}"
            )
        columns = columns or names
    return Files(kind, tuple(map(str, paths)), sum(path.stat().st_size for path in paths), tuple(columns))


def _found(text: str, kind: str) -> Iterator[Path]:
    if "://" in text:
        raise ConfigurationError(
            f"{text} is a URI", hint="name files of this machine, or that all machines mount"
        )
    place = Path(text).expanduser().absolute()
    if place.is_file():
        yield place
        return
    endings = _ENDINGS[kind] if kind else tuple(ending for one in _ENDINGS.values() for ending in one)
    inside = place.rglob("*") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))
    found = sorted(
        path
        for path in inside
        if path.is_file() and path.name.endswith(endings) and not path.name.startswith((".", "_"))
    )
    if not found:
        raise ConfigurationError(f"{text} names no {kind or 'Parquet, CSV or JSON'} file")
    yield from found


def _kind_of(path: Path) -> str:
    for kind, endings in _ENDINGS.items():
        if path.name.endswith(endings):
            return kind
    raise ConfigurationError(f"{path} does not say its format", hint=f"--format {'|'.join(FORMATS)}")


def _columns(path: Path, kind: str, separator: str) -> list[str]:
    try:
        if kind == "parquet":
            from pyarrow import ArrowException, parquet

            try:
                return list(parquet.read_schema(path).names)
            except ArrowException as error:
                raise ConfigurationError(f"{path} is no Parquet file: {error}") from error
        with _text(path) as lines:
            return _header(path, lines, separator) if kind == "csv" else _members(path, lines)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path} cannot be read as {kind}: {error}") from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    if path.name.endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as zipped:
            yield zipped
    else:
        with path.open(encoding="utf-8-sig", newline="") as plain:
            yield plain


def _header(path: Path, lines: TextIO, separator: str) -> list[str]:
    names = next(csv.reader(lines, delimiter=separator), [])
    if not names or not all(names) or len(dict.fromkeys(names)) != len(names):
        raise ConfigurationError(
            f"{path} does not begin with a line of distinct names",
            hint="--separator says what is between them",
        )
    return names


def _members(path: Path, lines: TextIO) -> list[str]:
    found: dict[str, None] = {}
    for line in itertools.islice(lines, _LINES_LOOKED_AT):
        try:
            member = json.loads(line) if line.strip() else {}
        except ValueError:
            # Such a line is rejected by name when it is read.
            continue
        if isinstance(member, dict):
            found |= dict.fromkeys(member)
    if not found:
        raise ConfigurationError(f"{path} has no line that is a JSON object")
    return list(found)
