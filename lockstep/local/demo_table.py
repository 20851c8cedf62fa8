"""Owns how a table is derived from the columns and rows of a CSV file.

Invariants: the primary key identifies each row; no key column is ever empty; a text that is written as a
number again gives the same text, so nothing of the file is lost by its type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
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
