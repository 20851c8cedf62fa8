"""What statements need, what sessions are allowed, and how passwords become hashes; without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import msgspec
import pytest

from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.parse import tree
from lockstep.metadata.access.roles import ACCESS, NO_ACCESS, Access, Role
from lockstep.metadata.cluster import empty_cluster
from lockstep.metadata.directory import DIRECTORY, EMPTY_DIRECTORY
from lockstep.runtime.real import real_runtime
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn, SchemaChange, apply_change
from lockstep.schema.model import ColumnKind, Schema, schema_of
from lockstep.schema.objects import Aggregate, Function, Index, View
from lockstep.server.auth.authentication import Passwords, check_hash
from lockstep.server.auth.permits import _NEEDS, Permits, Session, needs_of
from lockstep.server.auth.role_statements import RoleStatements
from lockstep.values.errors import InvalidRequest, Overloaded, Unauthorized
from lockstep.values.limits import PASSWORD_CHECKS_QUEUED_MAX, PASSWORDS_KNOWN_MAX

FACTOR = (("class", "SimpleStrategy"), ("replication_factor", "1"))
COLUMNS = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("v", "int"))


def schema() -> Schema:
    """Keyspace ks: t with an index and a view v, u without; functions f(int) and f(text), the
    aggregate total."""
    made = Schema()
    names = ("t", "u", "v")
    changes: list[SchemaChange] = [CreateKeyspace("ks", FACTOR)]
    changes += [
        CreateTable("ks", name, f"00000000-0000-4000-8000-{at:012}", COLUMNS) for at, name in enumerate(names)
    ]
    for at, change in enumerate(changes, 1):
        made, _ = apply_change(made, change, at, ("dc1",))
    space = made.by_name["ks"]
    tables = [
        msgspec.structs.replace(space.by_name["t"], indexes=(Index("by_v", 9, 2),)),
        space.by_name["u"],
        msgspec.structs.replace(space.by_name["v"], view=View("t", "", True, ())),
    ]
    functions = (
        *(Function("f", (kind,), ("a",), "int", "python", "") for kind in ("int", "text")),
        *(Function("plus", ("int", kind), ("s", "a"), "int", "python", "") for kind in ("int", "text")),
        Function("done", ("int",), ("s",), "int", "python", ""),
    )
    aggregates = (Aggregate("total", ("int",), "plus", "int", "done"),)
    with_tables = space.by_name
    for table in tables:
        with_tables = with_tables.insert(table.name, table)
    filled = msgspec.structs.replace(space, by_name=with_tables, functions=functions, aggregates=aggregates)
    return schema_of([filled])


CATALOG = Catalog(schema())
T, U, V = "data/ks/t", "data/ks/u", "data/ks/v"
#: What the aggregate total is made of.
PARTS = ("plus[int^int]", "done[int]")


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("SELECT * FROM ks.u", {("SELECT", U)}),
        ("SELECT * FROM ks.v", {("SELECT", T)}),
        ("INSERT INTO ks.u (k) VALUES (1)", {("MODIFY", U)}),
        ("INSERT INTO ks.t (k) VALUES (1)", {("MODIFY", T), ("SELECT", T), ("MODIFY", V)}),
        ("INSERT INTO ks.u (k) VALUES (1) IF NOT EXISTS", {("MODIFY", U), ("SELECT", U)}),
        ("UPDATE ks.u SET v = 1 WHERE k = 1 IF v = 2", {("MODIFY", U), ("SELECT", U)}),
        ("DELETE FROM ks.u WHERE k = 1", {("MODIFY", U)}),
        (
            "BEGIN UNLOGGED BATCH DELETE FROM ks.u WHERE k = 1; DELETE FROM ks.t WHERE k = 1; APPLY BATCH",
            {("MODIFY", U), ("MODIFY", T), ("SELECT", T), ("MODIFY", V)},
        ),
        ("TRUNCATE ks.u", {("MODIFY", U)}),
        ("USE ks", set()),
        ("DESCRIBE ks.t", set()),
        (f"CREATE KEYSPACE n WITH replication = {dict(FACTOR)}", {("CREATE", "data")}),
        ("ALTER KEYSPACE ks WITH durable_writes = true", {("ALTER", "data/ks")}),
        ("DROP KEYSPACE ks", {("DROP", "data/ks")}),
        ("CREATE TABLE ks.n (k int PRIMARY KEY)", {("CREATE", "data/ks/*")}),
        ("ALTER TABLE ks.t ADD x int", {("ALTER", T)}),
        ("DROP TABLE ks.t", {("DROP", T)}),
        ("CREATE TYPE ks.n (a int)", {("CREATE", "data/ks/*")}),
        ("ALTER TYPE ks.n ADD b int", {("ALTER", "data/ks/*")}),
        ("DROP TYPE ks.n", {("DROP", "data/ks/*")}),
        ("CREATE INDEX ON ks.u (v)", {("ALTER", U)}),
        ("DROP INDEX ks.by_v", {("ALTER", T)}),
        ("DROP MATERIALIZED VIEW ks.v", {("ALTER", T)}),
        ("DROP FUNCTION ks.f(int)", {("DROP", "functions/ks/f[int]")}),
        ("DROP FUNCTION ks.g(varchar)", {("DROP", "functions/ks/g[text]")}),
        ("LIST ROLES", set()),
        (
            "SELECT ks.total(v) FROM ks.u",
            {("SELECT", U), *(("EXECUTE", f"functions/ks/{one}") for one in ("total[int]", *PARTS))},
        ),
    ],
)
def test_what_a_statement_needs(text: str, needs: set[tuple[str, str]]) -> None:
    assert set(needs_of(prepare(text, None, CATALOG), CATALOG)) == needs


FUNCTION = "(a {}) CALLED ON NULL INPUT RETURNS int LANGUAGE python AS 'return a'"


@pytest.mark.parametrize(
    ("text", "need"),
    [
        (f"CREATE FUNCTION ks.n {FUNCTION.format('int')}", ("CREATE", "functions/ks")),
        (f"CREATE OR REPLACE FUNCTION ks.f {FUNCTION.format('varchar')}", ("ALTER", "functions/ks/f[text]")),
        (f"CREATE FUNCTION ks.f {FUNCTION.format('varchar')}", ("CREATE", "functions/ks")),
        (f"CREATE FUNCTION IF NOT EXISTS ks.f {FUNCTION.format('text')}", ("CREATE", "functions/ks")),
    ],
)
def test_a_function_is_created_or_altered(text: str, need: tuple[str, str]) -> None:
    assert needs_of(prepare(text, None, CATALOG), CATALOG) == (need,)


def test_an_aggregate_needs_the_very_functions_that_it_is_made_of() -> None:
    text = "CREATE AGGREGATE ks.n (int) SFUNC plus STYPE int FINALFUNC done INITCOND 0"
    needs = (("CREATE", "functions/ks"), *(("EXECUTE", f"functions/ks/{one}") for one in PARTS))
    assert needs_of(prepare(text, None, CATALOG), CATALOG) == needs


def test_every_statement_has_its_needs() -> None:
    """A new statement without a rule would be allowed to everybody, or to nobody."""
    assert set(_NEEDS) == set(get_args(tree.Statement))


# -- sessions --------------------------------------------------------------------------------------


class Roles:
    """The newest metadata of a node."""

    def __init__(self, access: Access) -> None:
        self.cluster = empty_cluster().changed(ACCESS.set(access), DIRECTORY.set(EMPTY_DIRECTORY))

    def become(self, access: Access) -> None:
        self.cluster = self.cluster.changed(ACCESS.set(access))

    def permits(self, *, checks: bool = True) -> Permits:
        return Permits(lambda: self.cluster, "dc1", checks=checks)


def test_what_was_allowed_is_judged_again_after_every_change() -> None:
    base = NO_ACCESS.with_role(Role("ann", login=True))
    roles = Roles(base)
    permits, session = roles.permits(), Session(5, user="ann")
    needs = (("SELECT", T),)
    message = "User ann has no SELECT permission on <table ks.t> or any of its parents"
    for _ in range(2):
        roles.become(base.with_grant("ann", "data/ks", {"SELECT"}))
        permits.require(session, needs)
        permits.require(session, needs)
        roles.become(base)
        with pytest.raises(Unauthorized, match=message):
            permits.require(session, needs)
    roles.become(NO_ACCESS)
    with pytest.raises(Unauthorized, match="You have not logged in"):
        permits.admit(session)
    with pytest.raises(Unauthorized):
        permits.require(session, ())


def test_a_role_of_another_data_centre_is_kept_out() -> None:
    roles = Roles(NO_ACCESS.with_role(Role("ann", superuser=True, login=True, data_centers=("dc2",))))
    with pytest.raises(Unauthorized, match=r"You do not have access to this datacenter \(dc1\)"):
        roles.permits().admit(Session(5, user="ann"))


def test_without_an_authorizer_only_hashes_are_kept_from_others() -> None:
    access = NO_ACCESS.with_role(Role("ann", login=True)).with_role(Role("root", superuser=True))
    permits = Roles(access).permits(checks=False)
    permits.require(Session(5, user="ann"), (("DROP", "data"),))
    secret = (("SUPERUSER", "salted_hash of <table system_auth.roles>"),)
    permits.require(Session(5, user="root"), secret)
    with pytest.raises(Unauthorized, match="User ann is not a superuser"):
        permits.require(Session(5, user="ann"), secret)


# -- passwords -------------------------------------------------------------------------------------


@pytest.fixture
def passwords(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Passwords:
    monkeypatch.setattr("lockstep.server.auth.authentication.COST", 4)
    return Passwords(real_runtime(str(tmp_path)))


def test_a_hash_is_of_its_password_alone(passwords: Passwords) -> None:
    async def run() -> None:
        one, other = await passwords.hashed("secret"), await passwords.hashed("secret")
        assert one != other
        check_hash(one)
        for _ in range(2):
            assert await passwords.is_of("secret", one)
            assert not await passwords.is_of("Secret", one)
            assert not await passwords.is_of("secret", "")
            assert not await passwords.is_of("", "")
        with pytest.raises(InvalidRequest):
            await passwords.hashed("a\x00b")

    asyncio.run(run())


def test_known_passwords_are_forgotten_in_turn(passwords: Passwords) -> None:
    async def run() -> None:
        made = await passwords.hashed("x")
        assert await passwords.is_of("x", made)
        known = passwords._known
        known.update({("hash", bytes((at % 256, at // 256))): None for at in range(PASSWORDS_KNOWN_MAX)})
        assert await passwords.is_of("y", await passwords.hashed("y"))
        assert len(known) <= PASSWORDS_KNOWN_MAX + 1

    asyncio.run(run())


def test_only_so_many_logins_wait(passwords: Passwords) -> None:
    async def run() -> None:
        made = await passwords.hashed("x")
        tries = [passwords.is_of(str(at), made) for at in range(PASSWORD_CHECKS_QUEUED_MAX + 5)]
        found = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(one, Overloaded) for one in found) == 5
        assert await passwords.is_of("x", made)

    asyncio.run(run())


@pytest.mark.parametrize(
    "text", ["", "secret", "$2a$31$" + "." * 53, "$2a$10$" + "." * 52, "$1$10$" + "." * 53]
)
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        check_hash(text)


# -- statements about roles ------------------------------------------------------------------------


def test_who_is_not_logged_in_changes_no_roles(passwords: Passwords) -> None:
    absent: Any = None
    roles = RoleStatements(absent, None, passwords, absent, Schema())
    for text in ("CREATE ROLE r", "LIST ROLES", "GRANT SELECT ON ks.t TO r"):
        with pytest.raises(Unauthorized, match="You have to be logged in and not anonymous"):
            asyncio.run(roles.run(Session(5), prepare(text, None, CATALOG)))
