"""Lists changed by an index or by values: against Python's lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.wire.messages import UNSET
from lockstep.values.errors import InvalidRequest
from tests.cql.twin import Session

_TABLE = "CREATE TABLE t (k int, c int, l list<int>, s list<int> static, PRIMARY KEY (k, c))"
_CHANGES = st.lists(
    st.tuples(st.sampled_from(("set", "delete", "discard", "append", "prepend")), st.integers(0, 5)),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(_CHANGES, st.sampled_from(("l", "s")))
def test_lists_change_as_python_lists_do(changes: list[tuple[str, int]], name: str) -> None:
    session, model = Session(_TABLE), [1, 2, 3]
    where = "WHERE k = 1 AND c = 1" if name == "l" else "WHERE k = 1"
    session.run("INSERT INTO t (k, c, l, s) VALUES (1, 1, [1, 2, 3], [1, 2, 3])")
    for kind, value in changes:
        if kind in ("set", "delete") and value >= len(model):
            statement = (
                f"UPDATE t SET {name}[{value}] = 9" if kind == "set" else f"DELETE {name}[{value}] FROM t"
            )
            with pytest.raises(InvalidRequest, match=r"null|out of bound"):
                session.run(f"{statement} {where}")
        elif kind == "set":
            session.run(f"UPDATE t SET {name}[?] = ? {where}", value, 10 + value)
            model[value] = 10 + value
        elif kind == "delete":
            session.run(f"DELETE {name}[{value}] FROM t {where}")
            del model[value]
        elif kind == "discard":
            session.run(f"UPDATE t SET {name} -= ? {where}", [value, 99])
            model = [item for item in model if item != value]
        elif kind == "append":
            session.run(f"UPDATE t SET {name} = {name} + [{value}] {where}")
            model.append(value)
        else:
            session.run(f"UPDATE t SET {name} = [{value}] + {name} {where}")
            model.insert(0, value)
        assert session.run(f"SELECT {name} FROM t WHERE k = 1") == [(model or None,)]


def test_several_rows_and_a_batch_see_the_lists_before_them() -> None:
    session = Session(_TABLE)
    for c in (1, 2):
        session.run("INSERT INTO t (k, c, l) VALUES (1, ?, ?)", c, [c, 5, 6])
    session.run("UPDATE t SET l[1] = 50 WHERE k = 1 AND c IN (1, 2)")
    session.batch(
        "UPDATE t SET l[0] = 7 WHERE k = 1 AND c = 1",
        "DELETE l[2] FROM t WHERE k = 1 AND c = 1",
        "UPDATE t SET l = l - [50] WHERE k = 1 AND c = 2",
    )
    assert session.run("SELECT c, l FROM t") == [(1, [7, 50]), (2, [2, 6])]


def test_an_unset_element_stays_and_has_to_be_there() -> None:
    session = Session(_TABLE)
    session.run("INSERT INTO t (k, c, l) VALUES (1, 1, [1, 2])")
    session.run("UPDATE t SET l[1] = ? WHERE k = 1 AND c = 1", UNSET)
    assert session.run("SELECT l FROM t") == [([1, 2],)]
    session.run("DELETE l[?] FROM t WHERE k = 1 AND c = 1", UNSET)
    assert session.run("SELECT l FROM t") == [([1, 2],)]
    with pytest.raises(InvalidRequest, match="List index 2 out of bound, list has size 2"):
        session.run("UPDATE t SET l[2] = ? WHERE k = 1 AND c = 1", UNSET)


@pytest.mark.parametrize(
    ("statement", "after"),
    [
        ("UPDATE t SET v[2] = 7, v[2] = 8", [1, 2, 8, 4]),
        ("UPDATE t SET v[2] = 8, v[2] = 7", [1, 2, 8, 4]),
        ("DELETE v[2], v[2] FROM t", [1, 2]),
        ("UPDATE t SET v = v + [3, 4], v[4] = 9", [1, 2, 3, 4, 9, 4]),
        ("UPDATE t SET v = v + [9], v[4] = 7", [1, 2, 3, 4, 9]),
        ("UPDATE t SET v[2] = 8, v = v - [8]", [1, 2, 4]),
        ("UPDATE t SET v[2] = 8, v = v - [1]", [2, 8, 4]),
        ("UPDATE t SET v = v - [1, 3], v[0] = 9", [9, 4]),
        ("UPDATE t USING TIMESTAMP 1 SET v = v - [1, 3], v[0] = 9", [1, 2, 3, 4]),
        ("UPDATE t SET v[4] = 5, v = v + [9]", "List index 4 out of bound, list has size 4"),
        ("UPDATE t SET v = v - [4], v[3] = 4", "List index 3 out of bound, list has size 3"),
        ("UPDATE t SET m[1] = 9, m[1] = 6", {1: 9, 2: 2}),
        ("UPDATE t SET m = m + {3: 8}, m[3] = 6", {1: 1, 2: 2, 3: 8}),
        ("UPDATE t SET m = m - {1}, m[1] = 9", {2: 2}),
        ("UPDATE t SET m[1] = 9, m = m - {1}", {2: 2}),
        ("UPDATE t SET m = {5: 5, 5: 4}", {5: 4}),
        ("UPDATE t SET s = s - {1}, s = s + {1, 3}", {2, 3}),
        ("UPDATE t SET s = s + {1, 3}, s = s - {1}", {2, 3}),
    ],
)
def test_operations_of_one_statement_see_each_other_and_their_deletions_win(
    statement: str, after: object
) -> None:
    session = Session("CREATE TABLE t (k int PRIMARY KEY, v list<int>, m map<int, int>, s set<int>)")
    session.run("INSERT INTO t (k, v, m, s) VALUES (1, [1, 2, 3, 4], {1: 1, 2: 2}, {1, 2})")
    if isinstance(after, str):
        with pytest.raises(InvalidRequest, match=after):
            session.run(f"{statement} WHERE k = 1")
        return
    session.run(f"{statement} WHERE k = 1")
    column = {list: "v", dict: "m", set: "s"}[type(after)]
    [(found,)] = session.run(f"SELECT {column} FROM t")
    assert type(after)(found) == after


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE t SET l[3] = 1", "List index 3 out of bound, list has size 3"),
        ("UPDATE t SET l[-1] = 1", "List index -1 out of bound, list has size 3"),
        ("DELETE l[9] FROM t", "List index 9 out of bound, list has size 3"),
        ("UPDATE t SET l[null] = 1", "Invalid null value for list index"),
        ("UPDATE t SET l['a'] = 1", 'Invalid STRING constant (a) for "idx(l)" of type int'),
    ],
)
def test_bad_indexes_are_refused(statement: str, message: str) -> None:
    session = Session(_TABLE)
    session.run("INSERT INTO t (k, c, l) VALUES (1, 1, [1, 2, 3])")
    with pytest.raises(InvalidRequest) as caught:
        session.run(f"{statement} WHERE k = 1 AND c = 1")
    assert message in caught.value.message


def test_a_list_that_is_not_there_has_no_elements() -> None:
    session = Session(_TABLE)
    for statement, what in (
        ("UPDATE t SET l[0] = 1", "set an element on"),
        ("DELETE l[0] FROM t", "delete an"),
    ):
        with pytest.raises(InvalidRequest, match=rf"Attempted to {what}.*list which is null"):
            session.run(f"{statement} WHERE k = 1 AND c = 1")
    session.run("UPDATE t SET l = l - [1] WHERE k = 1 AND c = 1")
    assert session.run("SELECT * FROM t") == []
