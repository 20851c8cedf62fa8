"""Statements about indexes, views, functions, roles and permissions become nodes as they are written."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.cql.parse import tree
from lockstep.cql.parse.parser import parse
from lockstep.values.errors import SyntaxError_

T, KT = tree.TableName(None, "t"), tree.TableName("k", "t")
NOTHING = tree.Properties()


@pytest.mark.parametrize(
    ("text", "name", "target", "class_", "custom"),
    [
        ("CREATE INDEX ON t (v)", None, tree.IndexTarget("v"), None, False),
        ("CREATE INDEX i ON t (values)", "i", tree.IndexTarget("values"), None, False),
        ("CREATE INDEX i ON t (keys(m))", "i", tree.IndexTarget("m", "keys"), None, False),
        ("CREATE INDEX ON t (ENTRIES(m))", None, tree.IndexTarget("m", "entries"), None, False),
        ("CREATE INDEX ON t (full(l)) USING 'sai'", None, tree.IndexTarget("l", "full"), "sai", False),
        ("CREATE CUSTOM INDEX ON t (v) USING 'x.Y'", None, tree.IndexTarget("v"), "x.Y", True),
    ],
)
def test_indexes(text: str, name: str | None, target: Any, class_: str | None, custom: bool) -> None:
    wanted = tree.CreateIndexStatement(name, T, (target,), class_, NOTHING, custom, False)
    assert parse(text).statement == wanted


def test_an_index_is_on_what_an_index_can_be_on() -> None:
    with pytest.raises(SyntaxError_, match="an index is on keys, values, entries, full"):
        parse("CREATE INDEX ON t (some(v))")


def test_views() -> None:
    found = parse(
        "CREATE MATERIALIZED VIEW IF NOT EXISTS k.v AS SELECT a, b FROM k.t WHERE a IS NOT NULL AND b = 3 "
        "PRIMARY KEY ((a), b) WITH comment = 'x' AND CLUSTERING ORDER BY (b DESC)"
    ).statement
    assert isinstance(found, tree.CreateViewStatement)
    assert (found.table, found.base, found.if_not_exists) == (tree.TableName("k", "v"), KT, True)
    assert [selector.expression for selector in found.selectors] == [
        tree.ColumnName("a"),
        tree.ColumnName("b"),
    ]
    assert [relation.operator for relation in found.where] == ["IS NOT NULL", "="]
    assert found.primary_key == tree.PrimaryKey(("a",), ("b",))
    assert found.properties == tree.Properties((("comment", "x"),), (("b", True),))
    whole = parse("CREATE MATERIALIZED VIEW v AS SELECT * FROM t").statement
    assert isinstance(whole, tree.CreateViewStatement)
    assert (whole.selectors, whole.where, whole.primary_key) == ((), (), None)


def test_functions_and_aggregates() -> None:
    assert parse(
        "CREATE OR REPLACE FUNCTION k.t (a int, b list<text>) RETURNS NULL ON NULL INPUT RETURNS text "
        "LANGUAGE python AS $$return 'x'$$"
    ).statement == tree.CreateFunctionStatement(
        KT, (("a", "int"), ("b", "list<text>")), "text", "python", "return 'x'", False, True, False
    )
    found = parse(
        "CREATE AGGREGATE t (int) SFUNC s STYPE tuple<int, int> FINALFUNC f INITCOND (0, 0)"
    ).statement
    assert isinstance(found, tree.CreateAggregateStatement)
    assert (found.arguments, found.state_function, found.final_function) == (("int",), "s", "f")
    assert found.state_type == "tuple<int, int>"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("DROP FUNCTION t", None),
        ("DROP FUNCTION t()", ()),
        ("DROP FUNCTION t(int, map<int, int>)", ("int", "map<int, int>")),
    ],
)
def test_dropped_functions_are_told_by_their_arguments(text: str, arguments: Any) -> None:
    assert parse(text).statement == tree.DropFunctionStatement(T, arguments, False)


def test_roles() -> None:
    options = tree.RoleOptions("p", None, False, True, (("a", "1"),), ("east",))
    assert parse(
        "CREATE ROLE 'Ann' WITH PASSWORD = 'p' AND SUPERUSER = false AND LOGIN = true "
        "AND OPTIONS = {'a': 1} AND ACCESS TO DATACENTERS {'east'}"
    ).statement == tree.CreateRole("Ann", options, False)
    assert parse("CREATE USER ann WITH PASSWORD 'p' SUPERUSER").statement == tree.CreateRole(
        "ann", tree.RoleOptions("p", superuser=True), False, True
    )
    with pytest.raises(SyntaxError_, match="Multiple definitions for property 'login'"):
        parse("ALTER ROLE a WITH LOGIN = true AND LOGIN = true")


@pytest.mark.parametrize(
    ("text", "kind", "keyspace", "name", "arguments"),
    [
        ("ALL KEYSPACES", "keyspaces", None, None, ()),
        ("KEYSPACE k", "keyspace", "k", None, ()),
        ("ALL TABLES IN KEYSPACE k", "tables", "k", None, ()),
        ("t", "table", None, "t", ()),
        ("TABLE k.t", "table", "k", "t", ()),
        ("ALL ROLES", "roles", None, None, ()),
        ("ROLE 'R'", "role", None, "R", ()),
        ("ALL FUNCTIONS", "functions", None, None, ()),
        ("ALL FUNCTIONS IN KEYSPACE k", "functions_in", "k", None, ()),
        ("FUNCTION k.t(int, text)", "function", "k", "t", ("int", "text")),
        ("ALL MBEANS", "mbeans", None, None, ()),
        ("MBEAN 'm'", "mbean", None, "m", ()),
    ],
)
def test_permissions_are_on_resources(
    text: str, kind: str, keyspace: str | None, name: str | None, arguments: tuple[str, ...]
) -> None:
    resource = tree.Resource(kind, keyspace, name, arguments)
    granted = parse(f"GRANT SELECT, MODIFY PERMISSION ON {text} TO r").statement
    assert granted == tree.GrantPermission(("SELECT", "MODIFY"), resource, "r")
    revoked = parse(f"REVOKE ALL PERMISSIONS ON {text} FROM r").statement
    assert revoked == tree.RevokePermission(("ALL",), resource, "r")
    listed = parse(f"LIST ALL ON {text} OF r NORECURSIVE").statement
    assert listed == tree.ListPermissions(("ALL",), resource, "r", False)


def test_new_words_stay_names_elsewhere() -> None:
    found = parse("SELECT role, user, list, options, language, function, password FROM roles").statement
    assert isinstance(found, tree.Select)
    assert len(found.selectors) == 7
    assert isinstance(parse("GRANT role TO user").statement, tree.GrantRole)
