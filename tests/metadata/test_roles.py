"""Roles, memberships and permissions: their hierarchy, their entries, and their stored forms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata.access import role_changes, roles
from lockstep.metadata.access.role_changes import (
    AlterRole,
    ChangeMembership,
    ChangePermissions,
    ChangeRole,
    CreateRole,
    DropRole,
)
from lockstep.metadata.access.roles import NO_ACCESS, Access, Role, access_of
from lockstep.metadata.cluster import REGISTERED, ClusterMetadata
from lockstep.metadata.log.apply import diff, state_digest
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import KINDS, Initialize
from lockstep.schema.changes import (
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    EmptyTable,
    NewColumn,
    SchemaChange,
)
from lockstep.schema.model import ColumnKind
from lockstep.values.errors import Rejected
from tests.metadata.histories import History, founder
from tests.metadata.stored import from_stored, stored

FACTOR = (("class", "SimpleStrategy"), ("replication_factor", "1"))
COLUMNS = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)


@pytest.mark.parametrize(
    ("resource", "chain", "text", "can"),
    [
        ("data", ["data"], "<all keyspaces>", "CREATE"),
        ("data/ks", ["data/ks", "data"], "<keyspace ks>", "CREATE"),
        ("data/ks/*", ["data/ks/*", "data/ks", "data"], "<all tables in ks>", "CREATE"),
        ("data/ks/t", ["data/ks/t", "data/ks/*", "data/ks", "data"], "<table ks.t>", "SELECT_MASKED"),
        ("roles", ["roles"], "<all roles>", "DESCRIBE"),
        ("roles/a/b", ["roles/a/b", "roles"], "<role a/b>", "AUTHORIZE"),
        ("functions", ["functions"], "<all functions>", "EXECUTE"),
        ("functions/ks", ["functions/ks", "functions"], "<all functions in ks>", "CREATE"),
        (
            "functions/ks/f[int^text]",
            ["functions/ks/f[int^text]", "functions/ks", "functions"],
            "<function ks.f(int, text)>",
            "EXECUTE",
        ),
        ("functions/ks/f[]", ["functions/ks/f[]", "functions/ks", "functions"], "<function ks.f()>", "DROP"),
        ("mbean", ["mbean"], "<all mbeans>", "DESCRIBE"),
        ("mbean/a:b=c/d", ["mbean/a:b=c/d", "mbean"], "<mbean a:b=c/d>", "EXECUTE"),
    ],
)
def test_a_resource_lies_in_others(resource: str, chain: list[str], text: str, can: str) -> None:
    assert list(roles.chain(resource)) == chain
    assert roles.text(resource) == text
    assert can in roles.applicable_to(resource)


def test_what_there_is_no_permission_for() -> None:
    assert "CREATE" not in roles.applicable_to("data/ks/t")
    assert "EXECUTE" not in roles.applicable_to("data")
    assert "DESCRIBE" not in roles.applicable_to("roles/r")
    assert "CREATE" not in roles.applicable_to("functions/ks/f[int]")


def test_a_permission_comes_from_any_role_on_any_holder() -> None:
    access = access_of(
        [
            Role("child", member_of=("middle",)),
            Role("middle", member_of=("top",)),
            Role("top"),
            Role("other"),
        ],
        [],
    ).with_grant("top", "data/ks", {"SELECT"})
    assert access.permissions("child", "data/ks/t") == {"SELECT"}
    assert access.permissions("other", "data/ks/t") == frozenset()
    assert access.permissions("top", "data") == frozenset()
    above = access.with_role(Role("top", superuser=True))
    assert above.is_superuser("child") and "DROP" in above.permissions("child", "data/else/t")
    assert not above.is_superuser("other")


# -- entries ---------------------------------------------------------------------------------------


def history() -> History:
    made = History(Registry(KINDS, SCHEMA_KINDS, role_changes.KINDS, role_changes.PERMISSION_KINDS))
    made.submit(Initialize("c", "test", (founder(1, (0,)),)))
    for name in ("ann", "bob", "staff"):
        made.submit(ChangeRole(CreateRole(name, login=True)))
    schema(made, CreateKeyspace("ks", FACTOR), creator="ann")
    schema(made, CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS), creator="bob")
    return made


def schema(made: History, change: SchemaChange, creator: str = "") -> None:
    made.submit(ChangeSchema(change, creator))


def refused(made: History, transformation: Transformation) -> str:
    """Why the entry is refused; the value stays."""
    before = made.now
    with pytest.raises(Rejected) as caught:
        transformation.apply(before, before.epoch + 1)
    return caught.value.message


def test_creators_may_do_everything_with_what_they_create() -> None:
    access = history().now.access
    assert access.granted("ann", "data/ks") == roles.applicable_to("data/ks")
    assert access.granted("ann", "functions/ks") == roles.applicable_to("functions/ks")
    assert access.granted("bob", "data/ks/t") == roles.applicable_to("data/ks/t")
    assert access.permissions("bob", "data/ks") == frozenset()


def test_a_creator_who_is_gone_gets_nothing() -> None:
    made = history()
    made.submit(ChangeRole(DropRole("bob")))
    schema(made, CreateTable("ks", "u", "00000000-0000-4000-8000-000000000002", COLUMNS), creator="bob")
    assert made.now.access.granted("bob", "data/ks/u") == ()
    made.now.validate()


def test_what_is_dropped_takes_its_grants_along() -> None:
    made = history()
    made.submit(ChangePermissions("staff", "data/ks/t", ("SELECT",), True))
    made.submit(ChangePermissions("staff", "data/ks/*", ("MODIFY",), True))
    schema(made, EmptyTable("ks", "t"))
    assert made.now.access.granted("staff", "data/ks/t") == ("SELECT",)
    schema(made, DropTable("ks", "t"))
    assert made.now.access.granted("staff", "data/ks/t") == ()
    assert made.now.access.granted("staff", "data/ks/*") == ("MODIFY",)
    schema(made, DropKeyspace("ks"))
    assert not made.now.access.grants.count


def test_of_a_grant_and_a_drop_the_first_in_the_log_wins() -> None:
    made = history()
    grant = ChangePermissions("staff", "data/ks/t", ("SELECT",), True)
    made.submit(ChangeRole(DropRole("staff")))
    assert refused(made, grant) == "Role staff doesn't exist"
    made.submit(ChangeRole(CreateRole("staff")))
    schema(made, DropTable("ks", "t"))
    assert refused(made, grant) == "Resource <table ks.t> doesn't exist"
    grant = ChangePermissions("staff", "functions/ks/f[int]", ("EXECUTE",), True)
    assert refused(made, grant) == "Resource <function ks.f(int)> doesn't exist"


def test_a_role_made_again_inherits_nothing() -> None:
    made = history()
    made.submit(ChangeMembership("staff", "ann", True))
    made.submit(ChangePermissions("staff", "data", ("SELECT",), True))
    made.submit(ChangePermissions("ann", "roles/staff", ("DROP",), True))
    made.submit(ChangeRole(DropRole("staff")))
    made.submit(ChangeRole(CreateRole("staff")))
    access = made.now.access
    assert access.closure("ann") == ("ann",) and access.granted("staff", "data") == ()
    assert access.granted("ann", "roles/staff") == ()


def test_memberships_have_no_circles() -> None:
    made = history()
    made.submit(ChangeMembership("staff", "ann", True))
    assert refused(made, ChangeMembership("staff", "ann", True)) == "ann is a member of staff"
    assert refused(made, ChangeMembership("ann", "staff", True)) == "ann is a member of staff"
    assert refused(made, ChangeMembership("ann", "ann", True)) == "ann is a member of ann"
    assert refused(made, ChangeMembership("staff", "bob", False)) == "bob is not a member of staff"
    assert refused(made, ChangeMembership("nobody", "bob", True)) == "nobody doesn't exist"
    made.submit(ChangeMembership("staff", "ann", False))
    assert made.now.access.closure("ann") == ("ann",)


def test_roles_are_refused_for_what_they_are() -> None:
    made = history()
    assert refused(made, ChangeRole(CreateRole("ann"))) == "ann already exists"
    assert refused(made, ChangeRole(CreateRole(""))) == "Role name can't be an empty string"
    assert refused(made, ChangeRole(CreateRole("x", only_first=True))) == "the cluster has roles already"
    assert refused(made, ChangeRole(DropRole("x"))) == "x doesn't exist"
    assert refused(made, ChangeRole(AlterRole("x"))) == "x doesn't exist"
    assert "Invalid value(s) for DATACENTERS 'nowhere'" in refused(
        made, ChangeRole(AlterRole("ann", data_centers=("nowhere",)))
    )
    nothing: tuple[Transformation, ...] = (
        ChangeRole(CreateRole("ann", superuser=True, if_not_exists=True)),
        ChangeRole(DropRole("x", if_exists=True)),
        ChangeRole(AlterRole("x", if_exists=True)),
        ChangeRole(AlterRole("ann", login=True)),
        ChangePermissions("ann", "data/ks", ("SELECT",), True),
    )
    for change in nothing:
        assert change.apply(made.now, made.now.epoch + 1) is made.now


def test_stored_forms_hold_roles_and_grants() -> None:
    made = history()
    made.submit(ChangeRole(AlterRole("ann", salted_hash="$2a$10$secret", data_centers=("dc1",))))
    value = made.now
    assert from_stored(stored(value)) == value
    decoder = SnapshotDecoder(REGISTERED)
    for piece in pieces(value):
        decoder.feed(piece)
    again = decoder.finish()
    assert again == value and state_digest(again) == state_digest(value)


def test_a_difference_shows_no_hash() -> None:
    made = history()
    before = made.now
    made.submit(ChangeRole(AlterRole("ann", salted_hash="$2a$10$secret")))
    made.submit(ChangeRole(CreateRole("eve", salted_hash="$2a$10$secret")))
    made.submit(ChangePermissions("bob", "data", ("SELECT",), True))
    found = diff(before, made.now)
    paths = [line.path for line in found]
    assert "access.roles[ann].salted_hash" in paths and "access.grants[bob on data]" in paths
    assert not any("$2a$" in line.before + line.after for line in found)


# -- a slow twin -----------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
PLACES = ("data", "data/ks", "data/ks/*", "data/ks/t", "data/ks/u", "roles", "roles/a", "functions/ks")
CHANGES = st.lists(
    st.one_of(
        st.builds(lambda n, s: ChangeRole(CreateRole(n, superuser=s)), st.sampled_from(NAMES), st.booleans()),
        st.builds(lambda n: ChangeRole(DropRole(n)), st.sampled_from(NAMES)),
        st.builds(ChangeMembership, st.sampled_from(NAMES), st.sampled_from(NAMES), st.booleans()),
        st.builds(
            ChangePermissions,
            st.sampled_from(NAMES),
            st.sampled_from(PLACES),
            st.sets(st.sampled_from(("CREATE", "SELECT", "DROP", "EXECUTE"))).map(tuple),
            st.booleans(),
        ),
    ),
    max_size=30,
)


class Twin:
    """Plain sets: (role, of), (role, resource, permission)."""

    def __init__(self) -> None:
        self.roles: dict[str, bool] = {}
        self.members: set[tuple[str, str]] = set()
        self.grants: set[tuple[str, str, str]] = set()

    def apply(self, change: Transformation) -> bool:
        if isinstance(change, ChangePermissions):
            return self._grant(change)
        if isinstance(change, ChangeMembership):
            pair = (change.grantee, change.role)
            if change.grantee not in self.roles or change.role not in self.roles:
                return False
            if not change.member:
                known = pair in self.members
                self.members.discard(pair)
                return known
            if change.role in self.all_of(change.grantee) or change.grantee in self.all_of(change.role):
                return False
            self.members.add(pair)
            return True
        assert isinstance(change, ChangeRole)
        body, name = change.change, change.change.name
        if isinstance(body, CreateRole):
            return name not in self.roles and self.roles.setdefault(name, body.superuser) is body.superuser
        if name not in self.roles:
            return False
        del self.roles[name]
        self.members = {pair for pair in self.members if name not in pair}
        self.grants = {one for one in self.grants if one[0] != name and one[1] != f"roles/{name}"}
        return True

    def _grant(self, change: ChangePermissions) -> bool:
        fits = {one for one in change.permissions if one in roles.applicable_to(change.resource)}
        missing = change.resource == "roles/a" and "a" not in self.roles
        if change.role not in self.roles or missing or not fits:
            return False
        named = {(change.role, change.resource, one) for one in fits}
        self.grants = self.grants | named if change.granted else self.grants - named
        return True

    def all_of(self, name: str) -> set[str]:
        found = {name}
        while more := {of for role, of in self.members if role in found} - found:
            found |= more
        return found

    def may(self, name: str, resource: str) -> Iterator[str]:
        mine = self.all_of(name)
        for permission in roles.applicable_to(resource):
            if any(self.roles[role] for role in mine) or any(
                role in mine and permission == allowed and (resource == of or _holds(of, resource))
                for role, of, allowed in self.grants
            ):
                yield permission


def _holds(of: str, resource: str) -> bool:
    return resource.startswith(f"{of}/") or (of.endswith("/*") and resource.startswith(of[:-1]))


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_roles_are_as_plain_sets_would_have_them(changes: list[Transformation]) -> None:
    base = _TWIN_BASE
    twin, cluster = Twin(), base
    for change in changes:
        try:
            cluster = change.apply(cluster, cluster.epoch + 1)
            accepted = True
        except Rejected:
            accepted = False
        assert accepted is twin.apply(change), change
    access: Access = cluster.access
    access.validate()
    assert [role.name for role in access.listed_roles()] == sorted(twin.roles)
    for name in twin.roles:
        assert set(access.closure(name)) == twin.all_of(name)
        for resource in PLACES:
            assert set(access.permissions(name, resource)) == set(twin.may(name, resource))
    again = access_of(access.listed_roles(), access.listed_grants())
    assert again == access and again.digest == access.digest


def _twin_base() -> ClusterMetadata:
    made = history()
    schema(made, CreateTable("ks", "u", "00000000-0000-4000-8000-000000000003", COLUMNS))
    for name in ("ann", "bob", "staff"):
        made.submit(ChangeRole(DropRole(name)))
    assert made.now.access == NO_ACCESS
    return made.now


_TWIN_BASE = _twin_base()


# -- grants and the schema -------------------------------------------------------------------------


def _table(number: int, keyspace: str, name: str) -> CreateTable:
    return CreateTable(keyspace, name, f"00000000-0000-4000-9000-{number:012}", COLUMNS)


SPACES, TABLES = st.sampled_from(("p", "q")), st.sampled_from(("t", "u"))
SCHEMA_CHANGES = st.lists(
    st.one_of(
        st.builds(lambda k, by: ChangeSchema(CreateKeyspace(k, FACTOR), by), SPACES, st.sampled_from(NAMES)),
        st.builds(
            lambda n, k, t, by: ChangeSchema(_table(n, k, t), by),
            st.integers(0, 10**9),
            SPACES,
            TABLES,
            st.sampled_from(NAMES),
        ),
        st.builds(lambda k, t: ChangeSchema(DropTable(k, t)), SPACES, TABLES),
        st.builds(lambda k, t: ChangeSchema(EmptyTable(k, t)), SPACES, TABLES),
        st.builds(lambda k: ChangeSchema(DropKeyspace(k)), SPACES),
        st.builds(lambda n: ChangeRole(CreateRole(n)), st.sampled_from(NAMES)),
        st.builds(lambda n: ChangeRole(DropRole(n)), st.sampled_from(NAMES)),
        st.builds(
            lambda n, k, t: ChangePermissions(n, f"data/{k}/{t}", ("SELECT",), True),
            st.sampled_from(NAMES),
            SPACES,
            TABLES,
        ),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(SCHEMA_CHANGES)
def test_no_grant_is_on_what_is_not_there(changes: list[Transformation]) -> None:
    cluster = _TWIN_BASE
    for change in changes:
        try:
            cluster = change.apply(cluster, cluster.epoch + 1)
        except Rejected:
            continue
        cluster.access.validate()
        for grant in cluster.access.listed_grants():
            assert role_changes.exists(cluster, grant.resource), grant
