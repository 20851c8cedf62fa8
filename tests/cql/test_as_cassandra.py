"""What `make compare` found to differ from Cassandra 5.0.6: now as that answers it."""

from __future__ import annotations

import pytest

from lockstep.cql.ddl.describe import ClusterFacts, describe
from lockstep.values.errors import InvalidRequest, LockstepError
from tests.cql.twin import Session

_KEYED = (
    "CREATE TABLE n (a int, b int, c int, d int, v int, PRIMARY KEY (a, b, c, d))",
    "CREATE INDEX n_c ON n (c)",
)


@pytest.mark.parametrize(
    ("clause", "filters"),
    [
        ("a = 1 AND b > 0 AND c = 1", True),
        ("a = 1 AND c = 1", False),
        ("a = 1 AND c = 1 AND d = 1", True),
        ("a = 1 AND b = 1 AND c = 1", False),
        ("b = 1 AND c = 1", True),
        ("c = 1", False),
    ],
)
def test_an_index_on_a_clustering_column_answers_its_own_condition_alone(clause: str, filters: bool) -> None:
    session = Session(*_KEYED)
    session.prepare(f"SELECT * FROM n WHERE {clause} ALLOW FILTERING")
    if not filters:
        session.prepare(f"SELECT * FROM n WHERE {clause}")
        return
    with pytest.raises(InvalidRequest, match="use ALLOW FILTERING"):
        session.prepare(f"SELECT * FROM n WHERE {clause}")


def test_an_index_is_not_asked_for_several_partitions() -> None:
    with pytest.raises(InvalidRequest, match="with IN clause for the PRIMARY KEY are not supported"):
        Session(*_KEYED).prepare("SELECT * FROM n WHERE a IN (1, 2) AND c = 1")


def test_keys_may_be_restricted_by_value_and_by_token() -> None:
    session = Session("CREATE TABLE t (a int, b int, c int, PRIMARY KEY ((a, b), c))")
    for a in range(4):
        session.run("INSERT INTO t (a, b, c) VALUES (?, 0, 0)", a)
    tokens = dict(session.run("SELECT a, token(a, b) FROM t"))
    middle = sorted(tokens.values())[1]
    found = session.run("SELECT a FROM t WHERE a IN (0, 1, 2, 3) AND b = 0 AND token(a, b) > ?", middle)
    assert {a for (a,) in found} == {a for a in tokens if tokens[a] > middle}
    assert session.run("SELECT a FROM t WHERE a = 0 AND b = 0 AND token(a, b) = ?", tokens[1]) == []
    with pytest.raises(InvalidRequest, match="both a normal relation and a token relation: a"):
        session.prepare("SELECT a FROM t WHERE a = 0 AND token(a, b) > 1 ALLOW FILTERING")


def test_counters_go_to_blobs_and_back() -> None:
    session = Session("CREATE TABLE t (k int PRIMARY KEY)")
    session.run("INSERT INTO t (k) VALUES (1)")
    for to_counter in ("blobascounter", "blob_as_counter"):
        for to_blob in ("counterasblob", "counter_as_blob"):
            text = f"SELECT {to_blob}({to_counter}(0x0000000000000005)) FROM t"
            assert session.run(text) == [(bytes(7) + b"\5",)]


@pytest.mark.parametrize("call", ["toDate(?)", "to_timestamp(?)", "toUnixTimestamp(?)"])
def test_a_marker_does_not_choose_among_overloads(call: str) -> None:
    session = Session("CREATE TABLE t (k int PRIMARY KEY, d date)")
    with pytest.raises(InvalidRequest, match=r"Ambiguous call to function .* use type casts"):
        session.prepare(f"SELECT {call} FROM t")
    session.prepare(f"SELECT {call.replace('?', '(timeuuid)?')} FROM t")


@pytest.mark.parametrize(("chance", "taken"), [("6.71e-5", False), ("0.0000672", True), ("1.0", True)])
def test_bloom_filters_have_a_least_chance(chance: str, taken: bool) -> None:
    text = f"CREATE TABLE t (k int PRIMARY KEY) WITH bloom_filter_fp_chance = {chance}"
    if taken:
        Session(text)
        return
    with pytest.raises(LockstepError, match=r"larger than 6\.71E-5"):
        Session(text)


def test_a_full_page_of_groups_is_not_the_last_one() -> None:
    session = Session("CREATE TABLE t (k int, c int, PRIMARY KEY (k, c))")
    for k in range(3):
        session.run("INSERT INTO t (k, c) VALUES (?, 0)", k)
    for size, pages in ((1, [1, 1, 1, 0]), (2, [2, 1]), (3, [3, 0]), (4, [3])):
        found = session.pages("SELECT k, count(*) FROM t GROUP BY k", page_size=size)
        assert [len(page) for page in found] == pages
    found = session.pages("SELECT k, count(*) FROM t WHERE k IN (0, 1) GROUP BY k", page_size=2)
    assert [len(page) for page in found] == [2, 0]
    found = session.pages("SELECT k, count(*) FROM t GROUP BY k LIMIT 3", page_size=3)
    assert [len(page) for page in found] == [3]


def test_internals_tell_what_was_dropped() -> None:
    session = Session(
        "CREATE TABLE t (k int, c int, a int, b text, s int static, PRIMARY KEY (k, c))",
        "CREATE TYPE pair (a int, b text)",
        "ALTER TABLE t ADD p frozen<pair>",
        *(
            f"ALTER TABLE t DROP {name} USING TIMESTAMP {at}"
            for name, at in zip("aspb", (1, 2, 2, 3), strict=True)
        ),
        "ALTER TABLE t ADD b text",
    )
    for what in ("TABLE t", "KEYSPACE ks", "SCHEMA", "FULL SCHEMA"):
        prepared = session.prepare(f"DESCRIBE {what} WITH INTERNALS")
        rows = describe(prepared, session.catalog, ClusterFacts("test")).rows
        [text] = [row[3].decode() for row in rows if row[:3] == (b"ks", b"table", b"t") and row[3]]
        shape, _, rest = text.partition(") WITH ID = ")
        assert shape.splitlines()[1:] == [
            "    k int,",
            "    c int,",
            "    a int,",
            "    b text,",
            "    p frozen<tuple<int, text>>,",
            "    s int static,",
            "    PRIMARY KEY (k, c)",
        ]
        assert rest.splitlines()[-5:] == [
            "ALTER TABLE ks.t DROP a USING TIMESTAMP 1;",
            "ALTER TABLE ks.t DROP b USING TIMESTAMP 3;",
            "ALTER TABLE ks.t ADD b text;",
            "ALTER TABLE ks.t DROP p USING TIMESTAMP 2;",
            "ALTER TABLE ks.t DROP s USING TIMESTAMP 2;",
        ]
    plain = describe(session.prepare("DESCRIBE TABLE t"), session.catalog, ClusterFacts("test")).rows
    assert "DROP" not in plain[0][3].decode()
