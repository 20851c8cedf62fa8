"""Tables derived from CSV files, and the rows that the demo finds on a machine by itself."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lockstep.local.demo_input import PARTITION_ROWS_MAX, Table, derive, make_csv, read_csv
from lockstep.values.errors import ConfigurationError


def table_of(header: str, *lines: str) -> Table:
    return derive("my file", header.split(","), [line.split(",") for line in lines])[0]


def key_names(table: Table) -> tuple[list[str], list[str]]:
    names = [column.name for column in table.columns]
    return [names[i] for i in table.partition_key], [names[i] for i in table.clustering]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", ""], "bigint"),
        (["9223372036854775807"], "bigint"),
        (["9223372036854775808"], "text"),
        (["007"], "text"),
        (["-0", "1"], "text"),
        (["1.5", "2"], "double"),
        (["1.50"], "text"),
        (["nan"], "text"),
        (["true", "false", ""], "boolean"),
        (["", ""], "text"),
        (["1", "x"], "text"),
    ],
)
def test_a_column_has_a_type_only_when_every_text_survives_it(texts: list[str], kind: str) -> None:
    table, rows = derive("f", ["k", "v"], [[str(i), text] for i, text in enumerate(texts)])
    assert table.columns[1].cql_type == kind
    for (_, value), text in zip(rows, texts, strict=True):
        expected = {"": None, "true": True, "false": False}.get(text, text)
        assert value == expected or str(value) == text or (kind == "double" and value == float(text))


def test_the_key_is_the_shortest_run_of_columns_that_tells_rows_apart() -> None:
    assert key_names(table_of("a,b,c", "x,1,p", "y,1,p")) == (["a"], [])
    assert key_names(table_of("a,b,c", "x,1,p", "x,2,p")) == (["a"], ["b"])
    assert key_names(table_of("a,b,c", "x,1,p", "x,1,q")) == (["a"], ["b", "c"])


def test_a_column_with_empty_fields_is_no_key() -> None:
    assert key_names(table_of("a,b,c", ",1,p", "x,2,q")) == (["b"], [])


def test_equal_rows_are_told_apart_by_their_number() -> None:
    table, rows = derive("f", ["a", "row_number"], [["x", "1"], ["x", "1"]])
    assert key_names(table) == (["a"], ["row_number_2"])
    assert [row[-1] for row in rows] == [1, 2]
    assert key_names(table_of("a,b", ",", "x,")) == (["row_number"], [])


def test_a_partition_that_would_be_too_large_takes_one_more_key_column() -> None:
    lines = [["x", str(i // 7), str(i)] for i in range(PARTITION_ROWS_MAX + 1)]
    table, _ = derive("f", ["a", "b", "c"], lines)
    assert key_names(table) == (["a", "b"], ["c"])


def test_names_become_identifiers_and_stay_distinct() -> None:
    table = table_of("A b,a-b,,2nd,Größe", "1,2,3,4,5")
    assert [column.name for column in table.columns] == ["a_b", "a_b_2", "column_3", "c_2nd", "gr_e"]
    assert table.name == "my_file"
    assert table.create_cql("ks") == (
        'CREATE TABLE ks."my_file" ("a_b" bigint, "a_b_2" bigint, "column_3" bigint, "c_2nd" bigint, '
        '"gr_e" bigint, PRIMARY KEY (("a_b")))'
    )


def test_statements_name_all_columns_in_the_order_of_the_rows() -> None:
    table = table_of("v,k", ",1", "x,2")
    assert table.insert_cql("ks") == 'INSERT INTO ks."my_file" ("v", "k") VALUES (?, ?)'
    assert table.select_cql("ks") == 'SELECT "v", "k" FROM ks."my_file" WHERE "k" = ?'
    assert table.key_of(("x", 2)) == (2,)


def test_delimiter_quotes_and_marks_of_a_file_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes('\ufeffid;name\r\n1;"a;b"\r\n\r\n2;"c\nd"\r\n'.encode())
    given = read_csv(path, rows_max=10)
    assert given.rows == [(1, "a;b"), (2, "c\nd")]
    assert [column.name for column in given.table.columns] == ["id", "name"]
    assert read_csv(path, rows_max=1).rows == [(1, "a;b")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n3\n", "record 3: 1 fields where the first line names 2"),
        (b"a\n\xff\n", "cannot be read as CSV"),
    ],
)
def test_a_file_that_is_no_csv_is_refused_with_its_place(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        read_csv(path, rows_max=10)


def test_the_machine_s_package_lists_make_rows(tmp_path: Path) -> None:
    lists = tmp_path / "info"
    lists.mkdir()
    real = tmp_path / "real.txt"
    real.write_text("12345")
    (lists / "b.md5sums").write_text(f"aa  {str(real)[1:]}\nbb  usr/none\n")
    (lists / "a.md5sums").write_text("cc  usr/a, b.txt\nbroken\n")
    given = make_csv(tmp_path / "report", rows_max=3, package_lists=lists)
    assert given.rows == [
        ("a", "/usr/a, b.txt", "cc", ".txt", None),
        ("b", str(real), "aa", ".txt", 5),
        ("b", "/usr/none", "bb", None, None),
    ]
    assert key_names(given.table) == (["package"], ["path"])
    assert "installed files" in given.told


def test_without_package_lists_the_unicode_table_serves_everywhere(tmp_path: Path) -> None:
    given = make_csv(tmp_path, rows_max=6000, package_lists=tmp_path / "none")
    assert len(given.rows) == 6000
    assert "Unicode" in given.told
    assert key_names(given.table)[0][0] == "block"
    with given.path.open(newline="") as file:
        assert sum(1 for _ in csv.reader(file)) == 6001
    assert ("0000", 0x41, "LATIN CAPITAL LETTER A", "Lu", None) in given.rows
    assert ("0000", 0xBD, "VULGAR FRACTION ONE HALF", "No", 0.5) in given.rows
