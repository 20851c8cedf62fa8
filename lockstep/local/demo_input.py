"""Owns where the demo's rows come from, a CSV file of the user or one made from what this machine has, and
how a table is derived from their columns.

Invariant: whatever the source, the rows are read back from one CSV file that is kept, so that the same rows
can be loaded again with `--input`. The primary key identifies each row; no key column is ever empty; a text
that is written as a number again gives the same text, so nothing of the file is lost by its type.
"""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from lockstep.values.errors import ConfigurationError

Cell = str | int | float | bool | None
Row = tuple[Cell, ...]

#: A partition is read and kept together, so a key whose partitions are larger gets one more column.
PARTITION_ROWS_MAX: Final = 10_000
#: More columns than this is hardly a table that someone types queries for.
COLUMNS_MAX: Final = 256
NAME_CHARS_MAX: Final = 48
#: Name of the column that is added when the columns of the file do not identify its rows.
ROW_NUMBER: Final = "row_number"

_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+(e[-+]?[0-9]+)?")
_BIGINT_MAX: Final = 2**63 - 1


class Column(msgspec.Struct, frozen=True):
    name: str
    cql_type: str


class Table(msgspec.Struct, frozen=True):
    """`columns` in the order of the rows; `partition_key` and `clustering` are positions in it."""

    name: str
    columns: tuple[Column, ...]
    partition_key: tuple[int, ...]
    clustering: tuple[int, ...]

    @property
    def key(self) -> tuple[int, ...]:
        return self.partition_key + self.clustering

    def key_of(self, row: Row) -> Row:
        return tuple(row[index] for index in self.key)

    def create_cql(self, keyspace: str) -> str:
        columns = ", ".join(f'"{column.name}" {column.cql_type}' for column in self.columns)
        clustering = "".join(f", {self._quoted(index)}" for index in self.clustering)
        partition = ", ".join(self._quoted(index) for index in self.partition_key)
        return f'CREATE TABLE {keyspace}."{self.name}" ({columns}, PRIMARY KEY (({partition}){clustering}))'

    def insert_cql(self, keyspace: str) -> str:
        names = ", ".join(self._quoted(index) for index in range(len(self.columns)))
        marks = ", ".join("?" for _ in self.columns)
        return f'INSERT INTO {keyspace}."{self.name}" ({names}) VALUES ({marks})'

    def select_cql(self, keyspace: str) -> str:
        """All columns of one row by its primary key."""
        names = ", ".join(self._quoted(index) for index in range(len(self.columns)))
        where = " AND ".join(f"{self._quoted(index)} = ?" for index in self.key)
        return f'SELECT {names} FROM {keyspace}."{self.name}" WHERE {where}'

    def described(self) -> str:
        """`name ((a), b), 5 columns`, for people."""
        partition = ", ".join(self.columns[index].name for index in self.partition_key)
        clustering = "".join(f", {self.columns[index].name}" for index in self.clustering)
        return f"{self.name} (({partition}){clustering}), {len(self.columns)} columns"

    def _quoted(self, index: int) -> str:
        return f'"{self.columns[index].name}"'


def derive(stem: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> tuple[Table, list[Row]]:
    """The table for a file called `stem`, and its rows with typed values (empty fields are None).

    `lines` is not empty and each is as long as `header`. ConfigurationError when it has too many columns.
    """
    if len(header) > COLUMNS_MAX:
        raise ConfigurationError(f"the file has {len(header)} columns, more than {COLUMNS_MAX}")
    names = _distinct([_identifier(text, f"column_{index + 1}") for index, text in enumerate(header)])
    kinds = [_kind([line[index] for line in lines]) for index in range(len(header))]
    columns = [Column(name, kind) for name, kind in zip(names, kinds, strict=True)]
    parsers = [_PARSERS[kind] for kind in kinds]
    rows: list[Row] = [
        tuple(parse(text) if text else None for parse, text in zip(parsers, line, strict=True))
        for line in lines
    ]
    key = _identifying(rows)
    if key is None:
        columns.append(Column(_distinct([*names, ROW_NUMBER])[-1], "bigint"))
        rows = [(*row, number) for number, row in enumerate(rows, start=1)]
        first = next((i for i in range(len(header)) if _always_given(rows, i)), len(header))
        key = (first, len(header)) if first < len(header) else (len(header),)
    split = _partition_columns(rows, key)
    return Table(_identifier(stem, "input"), tuple(columns), key[:split], key[split:]), rows


def _identifying(rows: Sequence[Row]) -> tuple[int, ...] | None:
    """The shortest run of always given columns, from the left, that differs in every row."""
    given = [index for index in range(len(rows[0])) if _always_given(rows, index)]
    for length in range(1, len(given) + 1):
        chosen = tuple(given[:length])
        if len({tuple(row[index] for index in chosen) for row in rows}) == len(rows):
            return chosen
    return None


def _partition_columns(rows: Sequence[Row], key: tuple[int, ...]) -> int:
    """How many columns of the key make the partition key: as few as keep partitions small."""
    for length in range(1, len(key)):
        sizes = Counter(tuple(row[index] for index in key[:length]) for row in rows)
        if max(sizes.values()) <= PARTITION_ROWS_MAX:
            return length
    return len(key)


def _always_given(rows: Sequence[Row], index: int) -> bool:
    return all(row[index] is not None for row in rows)


def _kind(texts: Sequence[str]) -> str:
    given = [text for text in texts if text]
    if given and all(_INTEGER.fullmatch(text) and abs(int(text)) <= _BIGINT_MAX for text in given):
        # `-0` would come back as `0`.
        return "text" if "-0" in given else "bigint"
    if any(_DECIMAL.fullmatch(text) for text in given):
        return "double" if all(_same_number(text) for text in given) else "text"
    if given and all(text in ("true", "false") for text in given):
        return "boolean"
    return "text"


def _same_number(text: str) -> bool:
    """Whether a double holds what the text says, to the last digit."""
    if _INTEGER.fullmatch(text):
        return str(int(float(text))) == text
    return bool(_DECIMAL.fullmatch(text)) and repr(float(text)) == text


_PARSERS: Final[dict[str, Callable[[str], Cell]]] = {
    "bigint": int,
    "double": float,
    "boolean": "true".__eq__,
    "text": str,
}


def _identifier(text: str, otherwise: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", text.strip().lower()).strip("_")[:NAME_CHARS_MAX]
    if not plain:
        return otherwise
    return plain if plain[0].isalpha() else f"c_{plain}"


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, later ones numbered where they repeat an earlier one."""
    seen: dict[str, None] = {}
    for name in names:
        number, candidate = 2, name
        while candidate in seen:
            candidate, number = f"{name}_{number}", number + 1
        seen[candidate] = None
    return list(seen)


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
