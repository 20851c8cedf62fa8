"""Logging in, permissions and encryption, with the unmodified driver and cqlsh, on one cluster."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest, Unauthorized
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import FallthroughRetryPolicy, WhiteListRoundRobinPolicy
from cassandra.protocol import SyntaxException
from cassandra.query import BatchStatement, tuple_factory

from lockstep.spark.cql_client import CqlConnection, Endpoint, Login
from lockstep.values.errors import BadCredentials, PeerUnreachable
from tests.server.certificates import Authority
from tests.server.parts import CQL_PORT, INTERNODE_PORT, Nodes, nodes

SIMPLE = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
DENIED = "User {} has no {} permission on {} or any of its parents"


class Place:
    """The cluster, its authority, and sessions that are closed at the end."""

    def __init__(self, cluster: Nodes, authority: Authority, directory: Path) -> None:
        self.cluster = cluster
        self.authority = authority
        self.directory = directory
        self._drivers: list[Cluster] = []

    def driver(self, user: str, password: str = "", *, node: int = 0, **settings: Any) -> Cluster:
        address = self.cluster.members[node].address
        profile = ExecutionProfile(
            WhiteListRoundRobinPolicy([address]),
            FallthroughRetryPolicy(),
            request_timeout=10,
            row_factory=tuple_factory,
        )
        made = Cluster(
            [address],
            port=CQL_PORT,
            auth_provider=PlainTextAuthProvider(user, password or user) if user else None,
            ssl_context=trusting(self.authority),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            **settings,
        )
        self._drivers.append(made)
        return made

    def session(self, user: str, password: str = "", *, node: int = 0) -> Session:
        quick: dict[str, Any] = {"schema_metadata_enabled": False, "token_metadata_enabled": False}
        return self.driver(user, password, node=node, protocol_version=5, **quick).connect()

    def close(self) -> None:
        for driver in self._drivers:
            driver.shutdown()


def trusting(authority: Authority) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.load_verify_locations(authority.certificate)
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("access")
    authority = Authority(directory)
    certificate, key = (str(path) for path in authority.issue("node"))
    settings = {
        "auth_authenticator": "PasswordAuthenticator",
        "auth_authorizer": "CassandraAuthorizer",
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_internode_certificate": certificate,
        "tls_internode_key": key,
        "tls_internode_ca": str(authority.certificate),
    }
    with nodes(directory, 3, **settings) as cluster:
        made = Place(cluster, authority, directory)
        yield made
        made.close()
        assert not cluster.escaped


@pytest.fixture(scope="module")
def root(place: Place) -> Session:
    session = place.session("cassandra")
    session.execute(f"CREATE KEYSPACE shop {SIMPLE}")
    session.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, note text)")
    session.execute("INSERT INTO shop.orders (id, note) VALUES (1, 'a')")
    return session


def make(root: Session, name: str, *grants: str, options: str = "") -> None:
    root.execute(f"CREATE ROLE {name} WITH LOGIN = true AND PASSWORD = '{name}' {options}")
    for grant in grants:
        root.execute(f"GRANT {grant} TO {name}")


def denied(session: Session, text: str, message: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        session.execute(text)
    assert message in str(caught.value)


def test_the_default_superuser_is_made_and_warned_of(place: Place, root: Session) -> None:
    told = [event for member in place.cluster.members for event, _ in member.log]
    assert told.count("auth.default_superuser") == 1
    assert list(root.execute("LIST USERS")) == [("cassandra", True, "ALL")]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("compression", [True, False])
def test_a_client_logs_in_over_tls(place: Place, root: Session, version: int, compression: bool) -> None:
    driver = place.driver("cassandra", protocol_version=version, compression=compression)
    session = driver.connect()
    hosts = {host.address for host in driver.metadata.all_hosts()}
    assert hosts == {member.address for member in place.cluster.members}
    assert len(driver.metadata.token_map.ring) == 3 * 16
    assert session.execute("SELECT id, note FROM shop.orders").one() == (1, "a")
    driver.shutdown()


@pytest.mark.parametrize("user", ["cassandra", "nobody"])
def test_a_wrong_login_is_refused_without_saying_why(place: Place, root: Session, user: str) -> None:
    with pytest.raises(NoHostAvailable) as caught:
        place.driver(user, "wrong", protocol_version=5).connect()
    assert f"Provided username {user} and/or password are incorrect" in str(caught.value)


def test_a_client_that_does_not_log_in_gets_nothing(place: Place) -> None:
    with pytest.raises(NoHostAvailable) as caught:
        place.driver("", protocol_version=5).connect()
    assert "PasswordAuthenticator" in str(caught.value) or "auth" in str(caught.value).lower()


def test_a_role_that_may_not_log_in(place: Place, root: Session) -> None:
    root.execute("CREATE ROLE idle WITH PASSWORD = 'idle' AND LOGIN = false")
    with pytest.raises(NoHostAvailable) as caught:
        place.driver("idle", protocol_version=5).connect()
    assert "idle is not permitted to log in" in str(caught.value)


def test_a_client_that_never_logs_in_is_sent_away(
    place: Place, root: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.server.cql.connection.LOGIN_MS_MAX", 300)
    address = place.cluster.members[0].address
    with (
        socket.create_connection((address, CQL_PORT), timeout=10) as plain,
        trusting(place.authority).wrap_socket(plain) as secret,
        contextlib.suppress(OSError),
    ):
        assert secret.recv(1) == b""
    monkeypatch.undo()
    assert root.execute("SELECT key FROM system.local").one() == ("local",)


def test_what_is_not_tls_is_closed(place: Place) -> None:
    plain = Cluster([place.cluster.members[0].address], port=CQL_PORT, connect_timeout=1)
    with pytest.raises(NoHostAvailable):
        plain.connect()
    plain.shutdown()


def test_cqlsh_logs_in_over_tls(place: Place, root: Session, tmp_path: Path) -> None:
    settings = tmp_path / "cqlshrc"
    settings.write_text(f"[ssl]\ncertfile = {place.authority.certificate}\nvalidate = true\n")
    command = [str(Path(sys.executable).parent / "cqlsh"), "--cqlshrc", str(settings), "--ssl"]
    command += ["-u", "cassandra", "-p", "cassandra", "-e", "SELECT id, note FROM shop.orders; LIST ROLES"]
    command += [place.cluster.members[0].address, str(CQL_PORT)]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert found.returncode == 0, found.stderr
    assert "  1 |    a" in found.stdout and "cassandra |  True |  True" in found.stdout


def test_hashed_passwords_of_cassandra_log_in(place: Place, root: Session) -> None:
    # What Cassandra's hash_password made of "secret".
    import bcrypt

    made = bcrypt.hashpw(b"secret", bcrypt.gensalt(4, b"2a")).decode()
    root.execute(f"CREATE ROLE hashed WITH LOGIN = true AND HASHED PASSWORD = '{made}'")
    session = place.session("hashed", "secret")
    assert session.execute("SELECT key FROM system.local").one() == ("local",)
    with pytest.raises(InvalidRequest, match="Invalid hashed password value"):
        root.execute("CREATE ROLE other WITH HASHED PASSWORD = 'secret'")


# -- permissions -----------------------------------------------------------------------------------


def test_nothing_is_allowed_that_was_not_granted(place: Place, root: Session) -> None:
    make(root, "guest")
    session = place.session("guest")
    table, tables = "<table shop.orders>", "<all tables in shop>"
    for text, permission, resource in (
        ("SELECT * FROM shop.orders", "SELECT", table),
        ("INSERT INTO shop.orders (id) VALUES (2)", "MODIFY", table),
        ("UPDATE shop.orders SET note = 'b' WHERE id = 1", "MODIFY", table),
        ("DELETE FROM shop.orders WHERE id = 1", "MODIFY", table),
        ("BEGIN BATCH INSERT INTO shop.orders (id) VALUES (2) APPLY BATCH", "MODIFY", table),
        ("TRUNCATE shop.orders", "MODIFY", table),
        ("ALTER TABLE shop.orders ADD more int", "ALTER", table),
        ("CREATE INDEX ON shop.orders (note)", "ALTER", table),
        (
            "CREATE MATERIALIZED VIEW shop.v AS SELECT * FROM shop.orders "
            "WHERE id IS NOT NULL AND note IS NOT NULL PRIMARY KEY (note, id)",
            "ALTER",
            table,
        ),
        ("DROP TABLE shop.orders", "DROP", table),
        ("CREATE TABLE shop.other (id int PRIMARY KEY)", "CREATE", tables),
        ("CREATE TYPE shop.pair (a int)", "CREATE", tables),
        (f"CREATE KEYSPACE mine {SIMPLE}", "CREATE", "<all keyspaces>"),
        ("ALTER KEYSPACE shop WITH durable_writes = false", "ALTER", "<keyspace shop>"),
        ("DROP KEYSPACE shop", "DROP", "<keyspace shop>"),
        ("GRANT SELECT ON shop.orders TO guest", "AUTHORIZE", table),
        ("GRANT ALL ON ALL KEYSPACES TO guest", "AUTHORIZE", "<all keyspaces>"),
        ("SELECT * FROM system_auth.role_permissions", "SELECT", "<table system_auth.role_permissions>"),
        (
            "CREATE FUNCTION shop.f (a int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS 'return a;'",
            "CREATE",
            "<all functions in shop>",
        ),
    ):
        denied(session, text, DENIED.format("guest", permission, resource))
    for text in (
        "CREATE ROLE more",
        "ALTER ROLE cassandra WITH LOGIN = false",
        "DROP ROLE cassandra",
        "GRANT cassandra TO guest",
        "REVOKE cassandra FROM guest",
    ):
        denied(session, text, "User guest does not have sufficient privileges to perform the requested")


def test_what_drivers_read_needs_no_permission(place: Place, root: Session) -> None:
    make(root, "reader")
    session = place.session("reader")
    assert session.execute("SELECT key FROM system.local").one() == ("local",)
    assert session.execute("SELECT * FROM system_schema.keyspaces").one() is not None
    session.execute("USE shop")
    assert list(session.execute("DESCRIBE KEYSPACES"))


def test_permissions_hold_for_what_lies_inside(place: Place, root: Session) -> None:
    make(root, "clerk", "SELECT ON ALL TABLES IN KEYSPACE shop", "MODIFY ON KEYSPACE shop")
    session = place.session("clerk")
    prepared = session.prepare("UPDATE shop.orders SET note = ? WHERE id = ?")
    session.execute(prepared, ("clerk", 7))
    assert session.execute("SELECT note FROM shop.orders WHERE id = 7").one() == ("clerk",)
    denied(session, "DROP TABLE shop.orders", DENIED.format("clerk", "DROP", "<table shop.orders>"))
    root.execute("REVOKE MODIFY ON KEYSPACE shop FROM clerk")
    with pytest.raises(Unauthorized):
        session.execute(prepared, ("clerk", 8))
    batch = BatchStatement()
    batch.add(prepared, ("clerk", 8))
    with pytest.raises(Unauthorized):
        session.execute(batch)
    assert session.execute("SELECT note FROM shop.orders WHERE id = 8").one() is None


def test_conditions_need_to_read(place: Place, root: Session) -> None:
    make(root, "writer", "MODIFY ON shop.orders")
    session = place.session("writer")
    session.execute("INSERT INTO shop.orders (id, note) VALUES (9, 'x')")
    text = "INSERT INTO shop.orders (id, note) VALUES (9, 'x') IF NOT EXISTS"
    denied(session, text, DENIED.format("writer", "SELECT", "<table shop.orders>"))


def test_roles_are_inherited_and_taken_back(place: Place, root: Session) -> None:
    make(root, "bob")
    root.execute("CREATE ROLE team")
    root.execute("CREATE ROLE company")
    root.execute("GRANT SELECT ON KEYSPACE shop TO company")
    root.execute("GRANT company TO team")
    root.execute("GRANT team TO bob")
    session = place.session("bob")
    assert session.execute("SELECT id FROM shop.orders WHERE id = 1").one() == (1,)
    with pytest.raises(InvalidRequest, match="bob is a member of company"):
        root.execute("GRANT bob TO company")
    assert [row[0] for row in session.execute("LIST ROLES")] == ["bob", "company", "team"]
    assert [row[0] for row in root.execute("LIST ROLES OF bob NORECURSIVE")] == ["bob", "team"]
    listed = list(root.execute("LIST SELECT ON shop.orders OF bob"))
    assert listed == [("company", "company", "<keyspace shop>", "SELECT")]
    denied(session, "LIST ROLES OF cassandra", "You are not authorized to view roles granted to cassandra")
    denied(session, "LIST ALL PERMISSIONS", "You are not authorized to view everyone's permissions")
    root.execute("REVOKE company FROM team")
    denied(session, "SELECT id FROM shop.orders", DENIED.format("bob", "SELECT", "<table shop.orders>"))


def test_creators_may_do_everything_until_it_is_dropped(place: Place, root: Session) -> None:
    make(root, "maker", "CREATE ON ALL KEYSPACES", "CREATE ON ALL ROLES")
    session = place.session("maker")
    session.execute(f"CREATE KEYSPACE own {SIMPLE}")
    session.execute("CREATE TABLE own.t (id int PRIMARY KEY)")
    session.execute("INSERT INTO own.t (id) VALUES (1)")
    session.execute("CREATE ROLE helper")
    session.execute("GRANT SELECT ON own.t TO helper")
    found = list(root.execute("LIST ALL PERMISSIONS OF helper"))
    assert found == [("helper", "helper", "<table own.t>", "SELECT")]
    session.execute("DROP KEYSPACE own")
    assert not list(root.execute("LIST ALL PERMISSIONS OF helper"))
    denied(session, "DROP KEYSPACE shop", DENIED.format("maker", "DROP", "<keyspace shop>"))
    session.execute("DROP ROLE helper")


def test_a_log_of_changes_is_for_those_who_may_read_the_table(place: Place, root: Session) -> None:
    root.execute("CREATE TABLE shop.private (id int PRIMARY KEY, word text)")
    make(root, "shaper", "ALTER ON shop.private")
    session = place.session("shaper")
    session.execute("ALTER TABLE shop.private WITH cdc = {'enabled': true, 'preimage': 'full'}")
    root.execute("INSERT INTO shop.private (id, word) VALUES (1, 'secret')")
    log = "shop.private_scylla_cdc_log"
    denied(session, f"SELECT word FROM {log}", DENIED.format("shaper", "SELECT", f"<table {log}>"))
    assert [row[2:] for row in root.execute("LIST ALL PERMISSIONS OF shaper")] == [
        ("<table shop.private>", "ALTER"),
        (f"<table {log}>", "ALTER"),
    ]
    root.execute("DROP TABLE shop.private")
    make(root, "owner", "CREATE ON KEYSPACE shop")
    session = place.session("owner")
    for options in (" WITH cdc = {'enabled': true}", ""):
        session.execute(f"CREATE TABLE shop.private (id int PRIMARY KEY, word text){options}")
        session.execute("ALTER TABLE shop.private WITH cdc = {'enabled': true}")
        session.execute("INSERT INTO shop.private (id, word) VALUES (1, 'own')")
        assert [row[0] for row in session.execute(f"SELECT word FROM {log}")] == ["own"]
        session.execute("DROP TABLE shop.private")


def test_only_superusers_make_superusers(place: Place, root: Session) -> None:
    make(root, "manager", "CREATE ON ALL ROLES", "ALTER ON ALL ROLES", "DROP ON ALL ROLES")
    root.execute("GRANT AUTHORIZE ON ALL ROLES TO manager")
    session = place.session("manager")
    text = "CREATE ROLE king WITH SUPERUSER = true"
    denied(session, text, "Only superusers can create a role with superuser status")
    text = "ALTER ROLE cassandra WITH PASSWORD = 'x'"
    denied(session, text, "Only superusers are allowed to alter a role with superuser status")
    denied(session, "DROP ROLE cassandra", "Only superusers can drop a role with superuser status")
    denied(session, "ALTER ROLE manager WITH LOGIN = true", "You aren't allowed to alter LOGIN")
    denied(
        session, "ALTER ROLE manager WITH SUPERUSER = true", "You aren't allowed to alter your own superuser"
    )
    session.execute("ALTER ROLE manager WITH PASSWORD = 'next'")
    place.session("manager", "next")
    with pytest.raises(InvalidRequest, match="Cannot DROP primary role for current login"):
        session.execute("DROP ROLE manager")


def test_hashes_are_for_superusers(place: Place, root: Session) -> None:
    make(root, "auditor", "SELECT ON KEYSPACE system_auth")
    session = place.session("auditor")
    assert ("auditor", True) in list(session.execute("SELECT role, can_login FROM system_auth.roles"))
    for text in (
        "SELECT * FROM system_auth.roles",
        "SELECT salted_hash FROM system_auth.roles",
        "SELECT blob_as_text(text_as_blob(salted_hash)) FROM system_auth.roles",
        "SELECT role FROM system_auth.roles WHERE salted_hash = 'x' ALLOW FILTERING",
        "SELECT JSON * FROM system_auth.roles",
    ):
        denied(session, text, "is not a superuser")
    found = root.execute("SELECT salted_hash FROM system_auth.roles WHERE role = 'auditor'").one()
    assert found[0].startswith("$2a$10$")
    rows = list(session.execute("SELECT resource, permissions FROM system_auth.role_permissions"))
    assert ("data/system_auth", {"SELECT"}) in [(resource, set(held)) for resource, held in rows]


def test_a_dropped_role_can_do_nothing_more(place: Place, root: Session) -> None:
    make(root, "leaver", "SELECT ON KEYSPACE shop")
    session = place.session("leaver")
    session.execute("SELECT id FROM shop.orders")
    root.execute("DROP ROLE leaver")
    denied(session, "SELECT id FROM shop.orders", "You have not logged in")
    with pytest.raises(NoHostAvailable, match="and/or password are incorrect"):
        place.session("leaver")


def test_data_centres_bound_where_a_role_may_be(place: Place, root: Session) -> None:
    make(root, "local", options="AND ACCESS TO DATACENTERS {'dc1'}")
    session = place.session("local")
    assert session.execute("SELECT key FROM system.local").one() == ("local",)
    assert [row[4] for row in root.execute("LIST ROLES OF local")] == ["dc1"]
    with pytest.raises(InvalidRequest, match="All values must be valid datacenters: dc1"):
        root.execute("ALTER ROLE local WITH ACCESS TO DATACENTERS {'elsewhere'}")


def test_changes_are_visible_everywhere_at_once(place: Place, root: Session) -> None:
    make(root, "roamer")
    sessions = [place.session("roamer", node=node) for node in range(3)]
    for _ in range(5):
        root.execute("GRANT SELECT ON shop.orders TO roamer")
        granted_s = time.monotonic()
        for session in sessions:
            session.execute("SELECT id FROM shop.orders WHERE id = 1")
        root.execute("REVOKE SELECT ON shop.orders FROM roamer")
        for session in sessions:
            with pytest.raises(Unauthorized):
                session.execute("SELECT id FROM shop.orders WHERE id = 1")
        assert time.monotonic() - granted_s < 1


def test_what_is_wrong_with_a_statement_is_said(root: Session) -> None:
    for text, message in (
        ("CREATE ROLE cassandra", "cassandra already exists"),
        ("DROP ROLE nobody", "nobody doesn't exist"),
        ("ALTER ROLE nobody WITH LOGIN = true", "nobody doesn't exist"),
        ("GRANT SELECT ON shop.orders TO nobody", "Role nobody doesn't exist"),
        ("GRANT SELECT ON shop.absent TO cassandra", "Resource <table shop.absent> doesn't exist"),
        ("GRANT SELECT ON system_auth.absent TO cassandra", "Resource <table system_auth.absent> doesn't"),
        ("GRANT SELECT ON KEYSPACE absent TO cassandra", "Resource <keyspace absent> doesn't exist"),
        ("GRANT EXECUTE ON FUNCTION system.now() TO cassandra", "Altering permissions on builtin functions"),
        ("LIST ROLES OF nobody", "nobody doesn't exist"),
        ("CREATE ROLE odd WITH OPTIONS = {'a': 'b'}", "doesn't support OPTIONS"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            root.execute(text)
        assert message in str(caught.value), text
    with pytest.raises(SyntaxException, match="Resource type RoleResource does not support any of the req"):
        root.execute("GRANT SELECT ON ALL ROLES TO cassandra")
    root.execute("CREATE ROLE IF NOT EXISTS cassandra WITH SUPERUSER = false")
    root.execute("DROP ROLE IF EXISTS nobody")
    future = root.execute_async("REVOKE EXECUTE ON ALL FUNCTIONS FROM cassandra")
    future.result()
    assert future.warnings and "was not granted" in future.warnings[0]


@pytest.mark.parametrize(
    ("keyspace", "why"),
    [("system_traces", "by the node that was asked"), ("system_distributed", "from the metadata")],
)
def test_what_system_keyspaces_tell_needs_no_replication(root: Session, keyspace: str, why: str) -> None:
    future = root.execute_async(f"ALTER KEYSPACE {keyspace} {SIMPLE}")
    future.result()
    assert why in future.warnings[0]


def test_roles_need_no_replication(place: Place, root: Session) -> None:
    text = f"ALTER KEYSPACE system_auth {SIMPLE}"
    future = root.execute_async(text)
    future.result()
    assert "Roles are on every node" in future.warnings[0]
    make(root, "meddler")
    denied(place.session("meddler"), text, DENIED.format("meddler", "ALTER", "<keyspace system_auth>"))


def traced(root: Session, statement: Any) -> str:
    """What is told of a statement by its trace, and by its error."""
    found = root.execute_async(statement, trace=True)
    told = ""
    try:
        found.result()
    except Exception as error:
        told = str(error)
    trace = found.get_query_trace(10)
    return told + str(trace.parameters) + "".join(event.description for event in trace.events)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ROLE traced WITH PASSWORD = 'very-secret' AND LOGIN = true",
        "ALTER ROLE traced WITH PASSWORD = $$very-secret$$",
        "CREATE ROLE x WITH PASSWORD 'very-secret'",
        "CREATE ROLE x WITH PASSWORD = 'very-secret' AND LOGN = true",
        "CREATE ROLE x WITH PASWORD = 'very-secret'",
        "CREATE ROLE x WITH PASSWORD = very-secret",
        "CREATE ROLE x WITH PASSWORD = 'very-secret",
        "CREATE USER x WITH PASSWRD 'very-secret'",
        "SELECT * FROM users WHERE password = 'very-secret'",
    ],
)
def test_passwords_are_not_traced(root: Session, statement: str) -> None:
    told = traced(root, statement)
    assert "very" not in told and "'***'" in told


def test_passwords_of_batches_and_prepared_statements_are_not_traced(place: Place, root: Session) -> None:
    batch = BatchStatement()
    batch.add("CREATE ROLE x WITH PASSWORD = 'very-secret'")
    assert "very" not in traced(root, batch)
    assert "very" not in traced(
        root, root.prepare("ALTER ROLE traced WITH PASSWORD = 'very-secret'").bind(())
    )
    with pytest.raises(SyntaxException) as refused:
        root.prepare("CREATE ROLE x WITH PASSWORD 'very-secret'")
    assert "very" not in str(refused.value)
    logs = [str(entry) for member in place.cluster.members for entry in member.log]
    assert not any("very-secret" in entry for entry in logs)


def test_a_client_of_jobs_logs_in_over_tls(place: Place, root: Session) -> None:
    def open_as(user: str, password: str, ca: str) -> CqlConnection:
        address = place.cluster.members[0].address
        return CqlConnection.open(Endpoint(address, CQL_PORT, Login(user, password, ca)), 5.0)

    ca = str(place.authority.certificate)
    connection = open_as("cassandra", "cassandra", ca)
    assert connection.query("SELECT id FROM shop.orders WHERE id = 1") == [{"id": 1}]
    assert connection.is_quiet()
    connection.close()
    with pytest.raises(BadCredentials):
        open_as("cassandra", "wrong", ca)
    with pytest.raises(PeerUnreachable):
        open_as("cassandra", "cassandra", str(Authority(place.directory, "stranger").certificate))


def test_of_a_grant_and_a_drop_at_once_one_wins(place: Place, root: Session) -> None:
    """Whatever the order is, no grant stays behind for a role that is gone."""
    others = [place.session("cassandra", node=node) for node in (1, 2)]
    for number in range(6):
        name = f"racer{number}"
        root.execute(f"CREATE ROLE {name}")
        dropping = others[0].execute_async(f"DROP ROLE {name}")
        granting = others[1].execute_async(f"GRANT SELECT ON shop.orders TO {name}")
        dropping.result()
        try:
            granting.result()
        except InvalidRequest as error:
            assert f"Role {name} doesn't exist" in str(error)
    for member in place.cluster.members:
        access = member.node.log.cluster.access
        access.validate()
        assert not [grant for grant in access.listed_grants() if grant.role.startswith("racer")]


def test_a_stranger_is_no_node(place: Place) -> None:
    """Who has no certificate of the authority does not even get to say hello on the nodes' port."""
    address = (place.cluster.members[0].address, INTERNODE_PORT)
    context = trusting(place.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(address, timeout=5) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)
