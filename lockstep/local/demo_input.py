"""Owns where the demo's rows come from: a CSV file of the user, or one made from what this machine has.

Invariant: whatever the source, the rows are read back from one CSV file that is kept, so that the same rows
can be loaded again with `--input`.
"""

from __future__ import annotations

import csv
import os
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from lockstep.local.demo_table import Row, Table, derive
from lockstep.values.errors import ConfigurationError

#: Rows of the default input. At some thousand inserts a second on two cores they load in seconds.
ROWS_DEFAULT: Final = 20_000
#: Rows of any input: the demo keeps them in memory to compare every one of them at the end.
ROWS_MAX: Final = 2_000_000
#: A machine with fewer installed files than this gets the Unicode table instead.
ROWS_WANTED_MIN: Final = 5_000
#: What of a file is looked at to find its delimiter.
SNIFF_CHARS: Final = 64 * 1024
#: Debian keeps a list of the files of every package with their checksums here.
PACKAGE_LISTS: Final = Path("/var/lib/dpkg/info")

CODE_POINTS: Final = 0x110000


class DemoInput(msgspec.Struct, frozen=True):
    """The rows to load, the table they fit, and one line that tells a person where they are from."""

    path: Path
    told: str
    table: Table
    rows: list[Row]


def read_csv(path: Path, rows_max: int, told: str = "") -> DemoInput:
    """The rows of a CSV file whose first line names the columns.

    Raises ConfigurationError when it cannot be read as such; it names the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(file.read(SNIFF_CHARS))
            file.seek(0)
            header, lines = _lines(csv.reader(file, delimiter=delimiter), path, rows_max)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(
            f"{path} cannot be read as CSV: {error}",
            hint="give UTF-8 text whose first line names the columns",
        ) from error
    if not lines:
        raise ConfigurationError(f"{path} has no rows below its first line")
    table, rows = derive(path.stem, header, lines)
    return DemoInput(path, told or f"{len(rows):,} rows of {path}", table, rows)


def make_csv(directory: Path, rows_max: int = ROWS_DEFAULT, package_lists: Path = PACKAGE_LISTS) -> DemoInput:
    """Rows from this machine, written to a CSV file in `directory`.

    The files of the installed Debian packages where there are enough of them, else the named characters of
    the Unicode database that comes with Python, which is the same everywhere.
    """
    lists = sorted(package_lists.glob("*.md5sums"))
    packages = [row for _, row in zip(range(rows_max), package_files(lists), strict=False)]
    if len(packages) >= min(ROWS_WANTED_MIN, rows_max):
        path = _written(directory / "package_files.csv", PACKAGE_COLUMNS, packages)
        told = f"{len(packages):,} installed files of Debian packages, from {package_lists}"
    else:
        characters = [row for _, row in zip(range(rows_max), unicode_characters(), strict=False)]
        path = _written(directory / "unicode_characters.csv", UNICODE_COLUMNS, characters)
        told = (
            f"{len(characters):,} characters of the Unicode {unicodedata.unidata_version} database in Python"
        )
    return read_csv(path, rows_max, told)


PACKAGE_COLUMNS: Final = ("package", "path", "md5", "suffix", "bytes")


def package_files(lists: list[Path]) -> Iterator[tuple[str, ...]]:
    """(package, path, md5, suffix, bytes) of every listed file; bytes is empty where the file is absent."""
    for one in lists:
        for line in one.read_text(encoding="utf-8", errors="replace").splitlines():
            digest, _, path = line.partition("  ")
            if not path or "\ufffd" in path:
                continue
            yield one.stem, f"/{path}", digest, Path(path).suffix, _size(f"/{path}")


UNICODE_COLUMNS: Final = ("block", "code_point", "name", "category", "numeric")


def unicode_characters() -> Iterator[tuple[str, ...]]:
    """(block of 256, code point, name, category, numeric value) of every named character."""
    for point in range(CODE_POINTS):
        character = chr(point)
        name = unicodedata.name(character, "")
        if name:
            number = unicodedata.numeric(character, None)
            yield (
                f"{point >> 8:04X}",
                str(point),
                name,
                unicodedata.category(character),
                "" if number is None else repr(float(number)),
            )


def _size(path: str) -> str:
    try:
        return str(os.stat(path, follow_symlinks=False).st_size)
    except OSError:
        # Slim images leave documentation out that the package lists.
        return ""


def _written(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _delimiter(head: str) -> str:
    """The candidate that splits the first line most often; a comma when none does."""
    first = head.partition("\n")[0]
    count: Callable[[str], int] = first.count
    best = max(",;\t|", key=count)
    return best if count(best) else ","


def _lines(reader: Iterator[list[str]], path: Path, rows_max: int) -> tuple[list[str], list[list[str]]]:
    header = next(reader, [])
    if not header:
        raise ConfigurationError(f"{path} is empty", hint="its first line has to name the columns")
    lines: list[list[str]] = []
    for number, line in enumerate(reader, start=2):
        if not line:
            continue
        if len(line) != len(header):
            raise ConfigurationError(
                f"{path}, record {number}: {len(line)} fields where the first line names {len(header)}"
            )
        lines.append(line)
        if len(lines) >= min(rows_max, ROWS_MAX):
            break
    return header, lines
