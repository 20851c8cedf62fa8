"""What statements are refused, in which words."""

from __future__ import annotations

import pytest

from lockstep.values.errors import InvalidRequest, SyntaxError_
from tests.cql.twin import Session

_SESSION = Session(
    "CREATE TABLE t (k int, c int, d int, s int static, v int, m map<text, int>, e set<int>, l list<int>, "
    "f frozen<set<int>>, PRIMARY KEY (k, c, d))",
    "CREATE TABLE two (a int, b int, v int, PRIMARY KEY ((a, b)))",
    "CREATE TABLE sets (k int, c frozen<set<int>>, d int, PRIMARY KEY (k, c, d))",
)
_FILTERING = "Cannot execute this query as it might involve data filtering"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM nope.t", "keyspace nope does not exist"),
        ("SELECT * FROM nope", "table nope does not exist"),
        ("SELECT x FROM t", "Undefined column name x in table ks.t"),
        ("SELECT * FROM t WHERE x = 1", "Undefined column name x in table ks.t"),
        ("SELECT * FROM t WHERE v = 1", _FILTERING),
        ("SELECT * FROM t WHERE c = 1", _FILTERING),
        ("SELECT * FROM two WHERE a = 1", _FILTERING),
        ("SELECT * FROM t WHERE k = 1 AND e CONTAINS 1", _FILTERING),
        (
            "SELECT * FROM sets WHERE c CONTAINS 1",
            "Clustering columns can only be restricted with CONTAINS with a secondary index or filtering",
        ),
        ("SELECT * FROM sets WHERE c CONTAINS KEY 1", "Cannot use CONTAINS KEY on non-map column c"),
        ("SELECT * FROM t WHERE k > 1", "Cannot execute this query as it might involve data filtering"),
        (
            "SELECT * FROM t WHERE k = 1 AND d = 1",
            'PRIMARY KEY column "d" cannot be restricted as preceding column "c" is not restricted',
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND c > 1 AND d = 1",
            'Clustering column "d" cannot be restricted '
            '(preceding column "c" is restricted by a non-EQ relation)',
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND k = 2",
            "k cannot be restricted by more than one relation if it includes an Equal",
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND c > 1 AND c > 2",
            "More than one restriction was found for the start bound on c",
        ),
        ("SELECT * FROM t WHERE k = null", "Invalid null value in condition for column k"),
        ("SELECT * FROM t WHERE k IN (1, null)", "Invalid null value in condition for column k"),
        ("SELECT * FROM t WHERE k = 'x'", 'Invalid STRING constant (x) for "k" of type int'),
        ("SELECT * FROM t WHERE k = 99999999999", "Unable to make int from '99999999999'"),
        (
            "SELECT * FROM t WHERE k = 1 AND m = {'a': 1} ALLOW FILTERING",
            "Collection column 'm' (map<text, int>)",
        ),
        (
            "SELECT * FROM t WHERE v CONTAINS 1 ALLOW FILTERING",
            "Cannot use CONTAINS on non-collection column v",
        ),
        (
            "SELECT * FROM t WHERE e CONTAINS KEY 1 ALLOW FILTERING",
            "Cannot use CONTAINS KEY on non-map column e",
        ),
        (
            "SELECT * FROM t WHERE v IN (1)",
            "Cannot execute this query as it might involve data filtering",
        ),
        (
            "SELECT * FROM two WHERE token(a) > 1",
            "The token() function must be applied to all partition key components",
        ),
        (
            "SELECT * FROM two WHERE token(b, a) > 1",
            "The token function arguments must be in the partition key order: a, b",
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND (c, d) > (1, 1) AND d < 5",
            'Column "d" cannot be restricted by two inequalities not starting with the same column',
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND (c, d) IN ((1, 1)) AND c = 1",
            "c cannot be restricted by more than one relation if it includes an Equal",
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND (c, d) > (1, 1) AND c >= 1",
            "More than one restriction was found for the start bound on c",
        ),
        (
            "SELECT * FROM t WHERE (d) > (1) ALLOW FILTERING",
            "Multi-column slice restrictions cannot be used for",
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND (c, d) > (1, 2, ?)",
            "Expected 2 elements in value tuple, but got 3: (1, 2, ?)",
        ),
        (
            "SELECT * FROM t WHERE k = 1 AND (d, c) IN ((1, 2))",
            "Clustering columns must appear in the PRIMARY KEY order in multi-column relations: "
            "(d, c) IN ((1, 2))",
        ),
        ("SELECT * FROM t WHERE k = 1 AND (c) != (1)", 'Unsupported "!=" relation: (c) != (1)'),
        ("SELECT * FROM t ORDER BY c", "ORDER BY is only supported when the partition key is restricted"),
        (
            "SELECT * FROM t WHERE k = 1 ORDER BY v",
            "Order by is currently only supported on the clustered columns",
        ),
        (
            "SELECT * FROM t WHERE k = 1 ORDER BY d",
            "Order by currently only supports the ordering of columns following",
        ),
        ("SELECT * FROM t WHERE k = 1 ORDER BY c DESC, d ASC", "Unsupported order by relation"),
        ("SELECT * FROM t LIMIT 0", "LIMIT must be strictly positive"),
        (
            "SELECT DISTINCT a FROM two",
            "SELECT DISTINCT queries must request all the partition key columns (missing b)",
        ),
        (
            "SELECT DISTINCT s FROM t",
            "SELECT DISTINCT queries must request all the partition key columns (missing k)",
        ),
        (
            "SELECT DISTINCT k FROM t WHERE v = 1 ALLOW FILTERING",
            "SELECT DISTINCT with WHERE clause only",
        ),
        ("SELECT * FROM t WHERE m['a'] = null ALLOW FILTERING", "Unsupported null map value for column m"),
        ("SELECT * FROM t WHERE v > null ALLOW FILTERING", "Unsupported null value for column v"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND e CONTAINS 1", "Cannot use UPDATE with CONTAINS"),
        ("DELETE FROM t WHERE k = 1 AND m CONTAINS KEY 'a'", "Cannot use DELETE with CONTAINS KEY"),
        (
            "SELECT * FROM t WHERE k IN (1) AND k = 2",
            "k cannot be restricted by more than one relation",
        ),
        ("SELECT DISTINCT v FROM t", "SELECT DISTINCT queries must only request partition key columns"),
        ("SELECT writetime(k) FROM t", "Cannot use selection function writetime on PRIMARY KEY part k"),
        ("SELECT nope(v) FROM t", "Unknown function 'nope'"),
        ("SELECT v FROM t GROUP BY v", "Group by is currently only supported on the columns of the PRIMARY"),
        ("SELECT v FROM t GROUP BY k, d", "Group by currently only support groups of columns following"),
        ("SELECT a FROM two GROUP BY a", "Group by is not supported on only a part of the partition key"),
        ("SELECT DISTINCT k FROM t GROUP BY k, c", "Grouping on clustering columns is not allowed for"),
        ("SELECT sum(count(v)) FROM t", "aggregate functions cannot be used as arguments of aggregate"),
        ("INSERT INTO t (k, c, d, v) VALUES (1, 2, 3)", "Unmatched column names/values"),
        ("INSERT INTO t (k, k, d) VALUES (1, 2, 3)", "The column names contains duplicates"),
        ("INSERT INTO t (c, d, v) VALUES (1, 2, 3)", "Some partition key parts are missing: k"),
        ("INSERT INTO t (k, c, v) VALUES (1, 2, 3)", "Some clustering keys are missing: d"),
        ("INSERT INTO t (k, c, d) VALUES (null, 2, 3)", "Invalid null value in condition for column k"),
        ("INSERT INTO t (k, c, d) VALUES (1, null, 3)", "Invalid null value in condition for column c"),
        (
            "UPDATE t USING TIMESTAMP 1 SET v = 1 WHERE k = 1 AND c = 1 AND d = 1 IF EXISTS",
            "Cannot provide custom timestamp for conditional updates",
        ),
        (
            "INSERT INTO t (k, c, d, m) VALUES (1, 2, 3, {'a'})",
            "Invalid set literal for m of type map<text, int>",
        ),
        (
            "INSERT INTO t (k, c, d, l) VALUES (1, 2, 3, ['a'])",
            "Invalid list literal for l: value 'a' is not of type int",
        ),
        (
            "INSERT INTO t (k, c, d, l) VALUES (1, 2, 3, [(text) 'a'])",
            "Invalid list literal for l: value (text)'a' is not of type int",
        ),
        (
            "INSERT INTO t (k, c, d, l) VALUES (1, 2, 3, [(1, 'a')])",
            "Invalid list literal for l: value (1, 'a') is not of type int",
        ),
        (
            "UPDATE t SET m = m + {'a'} WHERE k = 1 AND c = 1 AND d = 1",
            "Value for a map addition has to be a map, but was: '{'a'}'",
        ),
        (
            "UPDATE t SET m = m - {'a': 1} WHERE k = 1 AND c = 1 AND d = 1",
            "Value for a map substraction has to be a set, but was: '{'a': 1}'",
        ),
        ("INSERT INTO t (k, c, d, l) VALUES (1, 2, 3, [null])", "null is not supported inside collections"),
        (
            "INSERT INTO t (k, c, d) VALUES (1, 2, 3) USING TTL -1",
            "A TTL must be greater or equal to 0, but was -1",
        ),
        (
            "INSERT INTO t (k, c, d) VALUES (1, 2, 3) USING TTL 630720001",
            "ttl is too large. requested (630720001) maximum (630720000)",
        ),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c = 1", "Some clustering keys are missing: d"),
        ("UPDATE two SET v = 1 WHERE a = 1", "Some partition key parts are missing: b"),
        ("UPDATE t SET c = 1 WHERE k = 1", "PRIMARY KEY part c found in SET part"),
        (
            "UPDATE t SET v = 1 WHERE k = 1 AND c = 1 AND d = 1 AND s = 1",
            "Non PRIMARY KEY columns found in where clause: s",
        ),
        (
            "UPDATE t SET v = v + 1 WHERE k = 1 AND c = 1 AND d = 1",
            "Invalid operation (v = v + 1) for non counter column v",
        ),
        (
            "UPDATE t SET f = f + {1} WHERE k = 1 AND c = 1 AND d = 1",
            "Invalid operation (f = f + {1}) for frozen collection column f",
        ),
        ("UPDATE t SET v = 1 WHERE k = 1 AND d = 1", "Some clustering keys are missing: c"),
        (
            "UPDATE t SET e['x'] = 1 WHERE k = 1 AND c = 1 AND d = 1",
            "Invalid operation (e['x'] = 1) for set column e",
        ),
        ("UPDATE t SET v = 2 + v WHERE k = 1 AND c = 1 AND d = 1", "(v = 2 + v) for non list column v"),
        ("UPDATE t SET s = 1 WHERE k = 1 AND c = 1", "modifies only static columns"),
        ("DELETE v FROM t WHERE k = 1 AND c > 1", "Range deletions are not supported for specific columns"),
        ("DELETE v FROM t WHERE k = 1 AND c = 1", "Range deletions are not supported for specific columns"),
        ("DELETE v FROM t WHERE k = 1", "Range deletions are not supported for specific columns"),
        (
            "DELETE c FROM t WHERE k = 1",
            "Invalid identifier c for deletion (should not be a PRIMARY KEY part)",
        ),
        ("DELETE FROM t WHERE c = 1", "Some partition key parts are missing: k"),
        (
            "BEGIN COUNTER BATCH UPDATE t SET s = 1 WHERE k = 1 APPLY BATCH",
            "Cannot include non-counter statement in a counter batch",
        ),
    ],
)
def test_refusals_use_the_words_clients_know(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _SESSION.run(text)
    assert message in caught.value.message


def test_settings_that_exclude_each_other_are_no_statement() -> None:
    with pytest.raises(SyntaxError_, match="Multiple incompatible setting of column v"):
        _SESSION.run("UPDATE t SET v = 1, v = 2 WHERE k = 1 AND c = 1 AND d = 1")


def test_durations_within_others_have_no_order() -> None:
    session = Session("CREATE TABLE x (k int PRIMARY KEY, t tuple<int, duration>, l list<duration>)")
    for text, what in {"t > (1, 2s)": "tuples", "l <= [1s]": "collections"}.items():
        with pytest.raises(InvalidRequest, match=f"restrictions are not supported on {what} containing"):
            session.run(f"SELECT * FROM x WHERE {text} ALLOW FILTERING")


def test_wrong_bound_values_are_refused() -> None:
    session = Session("CREATE TABLE x (k int PRIMARY KEY, v int)")
    prepared = session.prepare("INSERT INTO x (k, v) VALUES (?, ?)")
    from lockstep.cql.bind.modify import plan_modification

    context = session.context()
    for values, message in (
        ([b"\x00\x00\x00\x01"], "Invalid amount of bind variables: expected 2 but got 1"),
        ([b"\x00", b"\x00\x00\x00\x01"], "Expected 4 or 0 byte int"),
        ([b"", None], "Key may not be empty"),
        ([None, None], "Invalid null value in condition for column k"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            plan_modification(prepared, values, context)


def test_statements_need_a_keyspace() -> None:
    session = Session("CREATE TABLE x (k int PRIMARY KEY)")
    session.keyspace = None
    with pytest.raises(InvalidRequest, match="No keyspace has been specified"):
        session.run("SELECT * FROM x")
