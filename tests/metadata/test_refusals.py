"""What entries are refused for: limits, at the last that is allowed and the first that is not; and the
exclude list, features, extensions and roles one by one."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata import features, transformations
from lockstep.metadata.access import role_changes
from lockstep.metadata.access.role_changes import (
    AlterRole,
    ChangeMembership,
    ChangePermissions,
    ChangeRole,
    CreateRole,
    DropRole,
)
from lockstep.metadata.cluster import empty_cluster
from lockstep.metadata.conflicts import TABLE, Held, Scope, Wanted, excluded_by, holders, refuse_during
from lockstep.metadata.directory import DIRECTORY, FEATURE_STATE, NodeState
from lockstep.metadata.features import (
    EnableFeatures,
    ExcludeNodes,
    IncludeNodes,
    due,
    supported_by_all,
    unaware,
    unsupporting,
)
from lockstep.metadata.groups import membership
from lockstep.metadata.groups.membership import CancelMembership, PrepareMembership, ServiceWish, SetService
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.registry import Transformation
from lockstep.metadata.operations import OPERATIONS
from lockstep.metadata.transformations import Initialize, Register, SetExtension, UpdateNode
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder
from tests.metadata.test_log import register


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def history() -> History:
    """Nodes 1 to 3, of which 1 votes, 4 that waits to join, 5 that has left."""
    made = History()
    made.submit(Initialize("c", "n", tuple(founder(at, (at * 10,)) for at in (1, 2, 3))))
    made.submit(register(4))
    made.submit(register(5))
    made.submit(ForceRemove(NodeId(5)))
    return made


def why(made: History, wrong: Transformation) -> str:
    refusal = made.tried(wrong)
    assert isinstance(refusal, Rejected), f"{wrong} was accepted"
    return refusal.message


@pytest.mark.parametrize(
    "body",
    [
        ExcludeNodes(ids(1)),
        IncludeNodes(ids(1), (1,)),
        EnableFeatures(("a",)),
        PrepareMembership(ids(2), ()),
        SetService(ServiceWish.THAW),
        ChangeRole(CreateRole("a")),
        ChangeMembership("a", "b", True),
        ChangePermissions("a", "data", ("SELECT",), True),
        SetExtension("a", b"1"),
        register(4),
    ],
)
def test_nothing_is_accepted_before_there_is_a_cluster(body: Transformation) -> None:
    with pytest.raises(Rejected, match="the cluster is not initialized"):
        body.apply(empty_cluster(), 1)


# -- the exclude list


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (ExcludeNodes(()), "name one node at least, and each once"),
        (ExcludeNodes(ids(2, 2)), "name one node at least, and each once"),
        (ExcludeNodes(ids(9)), "there is no node 9"),
        (ExcludeNodes(ids(5)), "node 5 has left the cluster"),
        (ExcludeNodes(ids(3)), "node 3 is excluded already"),
        (ExcludeNodes(ids(2, 1)), "node 1 is a voter of the metadata group"),
        (IncludeNodes((), ()), "name one node at least, and each once"),
        (IncludeNodes(ids(3, 3), (9, 9)), "name one node at least, and each once"),
        (IncludeNodes(ids(3), ()), "each node that is included was found at an epoch"),
        (IncludeNodes(ids(3), (9, 9)), "each node that is included was found at an epoch"),
        (IncludeNodes(ids(2), (9,)), "node 2 is not excluded"),
        (IncludeNodes(ids(3), (4,)), "node 3 has applied epoch 4 and was excluded at epoch 5"),
    ],
)
def test_the_exclude_list_takes_nodes_of_which_it_is_known(wrong: Transformation, told: str) -> None:
    made = history()
    made.submit(ExcludeNodes(ids(3)))
    assert made.now.epoch == 5 and told in why(made, wrong)


def test_nodes_get_on_the_list_with_a_reason_and_off_it_once_they_caught_up() -> None:
    made = history()
    made.submit(ExcludeNodes(ids(4), "its disk is suspect"))
    made.submit(ExcludeNodes(ids(3, 2)))
    assert [(one.node, one.epoch, one.reason) for one in made.now.excluded] == [
        (2, 6, "by an operator"), (3, 6, "by an operator"), (4, 5, "its disk is suspect"),
    ]  # fmt: skip
    assert made.now.not_served == {2, 3, 4}
    made.submit(IncludeNodes(ids(4, 2), (5, 6)))
    assert [one.node for one in made.now.excluded] == [3]


# -- features


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ((), "once each, in order"),
        (("y", "x"), "once each, in order"),
        (("x", "x"), "once each, in order"),
        (("metadata-log",), "feature metadata-log is enabled already"),
        (("y",), "feature y is not supported by nodes 2, 4"),
    ],
)
def test_features_are_enabled_when_all_nodes_support_them(wrong: tuple[str, ...], told: str) -> None:
    made = history()
    enabled = made.now.features.enabled
    for node in made.now.directory.nodes:
        if node.state is not NodeState.LEFT:
            more = ("x", "y") if node.id in (1, 3) else ("x",)
            able = tuple(sorted((*enabled, *more)))
            made.submit(UpdateNode(node.id, node.address, 7000, 9042, 7080, "2", features=able))
    assert made.now.features.announced_epoch == made.now.epoch
    assert told in why(made, EnableFeatures(wrong))
    assert supported_by_all(made.now) == due(made.now) == ("x",)
    assert unsupporting(made.now.directory, "y") == (2, 4)
    made.submit(EnableFeatures(("x",)))
    assert made.now.features.enabled == tuple(sorted((*enabled, "x"))) and due(made.now) == ()


def test_features_are_due_in_quiet_times_and_once_all_have_seen_the_announcement() -> None:
    made = history()
    now = made.now.changed(FEATURE_STATE.set(msgspec.structs.replace(made.now.features, enabled=())))
    assert due(now) == supported_by_all(now) == made.now.features.enabled
    frozen = now.changed(SERVICE.set(msgspec.structs.replace(now.service, frozen="why")))
    assert due(frozen) == () and supported_by_all(frozen)
    made.submit(PrepareOperation(Bootstrap(NodeId(4), (5,))))
    assert (
        due(now.changed(OPERATIONS.set(msgspec.structs.replace(now.running, running=made.now.operations))))
        == ()
    )
    assert supported_by_all(empty_cluster()) == ()
    announced = now.changed(FEATURE_STATE.set(msgspec.structs.replace(now.features, announced_epoch=7)))
    seen = {NodeId(1): 7, NodeId(2): 6, NodeId(3): 9}
    assert unaware(announced, seen) == ((2, 6), (4, 0))
    shut = History()
    shut.submit(Initialize("c", "n", (founder(1, (1,)), founder(2, (2,)))))
    shut.submit(ExcludeNodes(ids(2)))
    assert unaware(shut.now, {NodeId(1): 1, NodeId(2): 9}) == ((2, 0),), "who is shut out has seen nothing"


# -- limits


def extension(name: str, value: bytes = b"1") -> SetExtension:
    return SetExtension(name, value)


def test_as_much_is_kept_as_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made = history()
    monkeypatch.setattr(transformations, "EXTENSIONS_MAX", 2)
    monkeypatch.setattr(transformations, "EXTENSION_NAME_CHARACTERS_MAX", 3)
    for name in ("a", "abc"):
        made.submit(extension(name))
    assert "has 1 to 3 characters" in why(made, extension("abcd"))
    assert "has 1 to 3 characters" in why(made, extension(""))
    assert "at most 2 extensions" in why(made, extension("b"))
    made.submit(extension("a", b"2"))
    made.submit(extension("abc", b""))
    made.submit(extension("b"))
    assert made.now.extensions.items() == [("a", b"2"), ("b", b"1")]


def test_there_are_as_many_roles_and_grants_as_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made = history()
    for name, value in (("ROLES_MAX", 4), ("ROLE_MEMBERSHIPS_MAX", 2), ("ROLE_NAME_CHARACTERS_MAX", 3)):
        monkeypatch.setattr(role_changes, name, value)
    monkeypatch.setattr(role_changes, "GRANTS_MAX", 2)
    made.submit(ChangeRole(CreateRole("a", only_first=True)))
    for name in ("b", "c", "abc"):
        made.submit(ChangeRole(CreateRole(name)))
    assert "at most 4 roles" in why(made, ChangeRole(CreateRole("d")))
    assert why(made, ChangeRole(CreateRole("a"))) == "a already exists"
    made.submit(ChangeRole(DropRole("c")))
    assert "at most 3 characters" in why(made, ChangeRole(CreateRole("abcd")))
    assert "none of them NUL" in why(made, ChangeRole(CreateRole("a\x00")))
    made.submit(ChangeRole(CreateRole("c")))
    for name in ("b", "c"):
        made.submit(ChangeMembership(name, "a", True))
    assert "a member of 2 roles, the most allowed" in why(made, ChangeMembership("abc", "a", True))
    for resource in ("data", "roles"):
        made.submit(ChangePermissions("a", resource, ("ALTER",), True))
    assert "at most 2 grants" in why(made, ChangePermissions("a", "functions", ("ALTER",), True))
    assert "at most 2 grants" in why(made, ChangePermissions("b", "data", ("ALTER",), True))
    made.submit(ChangePermissions("a", "data", ("DROP",), True))
    assert made.now.access.granted("a", "data") == ("ALTER", "DROP")


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (AlterRole("a", superuser=True), {"superuser": True}),
        (AlterRole("a", superuser=False), {}),
        (AlterRole("a", login=False), {"login": False}),
        (AlterRole("a", salted_hash="$2b$"), {"salted_hash": "$2b$"}),
        (AlterRole("a", salted_hash=""), {"salted_hash": ""}),
        (AlterRole("a", data_centers=()), {"data_centers": ()}),
        (AlterRole("a", data_centers=("dc2", "dc1", "dc2")), {"data_centers": ("dc1", "dc2")}),
        (AlterRole("a", if_exists=True), {}),
    ],
)
def test_what_is_not_given_of_a_role_stays(given: AlterRole, changed: dict[str, object]) -> None:
    made = History()
    made.submit(Initialize("c", "n", (founder(1, (1,)), founder(2, (2,), "dc2"))))
    made.submit(ChangeRole(CreateRole("a", False, True, "$2a$", ("dc1",))))
    before = made.now.access.role("a")
    assert before is not None
    made.submit(ChangeRole(given))
    assert made.now.access.role("a") == msgspec.structs.replace(before, **changed)


def test_the_creator_of_a_role_may_do_all_with_it_and_there_are_resources_to_grant() -> None:
    made = history()
    made.submit(ChangeRole(CreateRole("a", creator="nobody")))
    made.submit(ChangeRole(CreateRole("b", creator="a")))
    assert made.now.access.granted("a", "roles/b") == ("ALTER", "DROP", "AUTHORIZE")
    assert made.now.access.grants.count == 1
    for resource in ("data", "roles/a", "mbean/x", "data/system/local", "functions"):
        made.submit(ChangePermissions("b", resource, ("ALTER", "SELECT", "EXECUTE"), True))
    for resource in ("roles/x", "data/ks", "data/ks/*", "data/ks/t", "functions/ks", "functions/system/f[]"):
        assert "doesn't exist" in why(made, ChangePermissions("b", resource, ("ALTER",), True))
    assert "does not support any" in why(made, ChangePermissions("b", "roles/a", ("SELECT",), True))
    made.submit(ChangePermissions("b", "data", ("SELECT",), False))
    assert made.now.access.granted("b", "data") == ("ALTER",)
    made.submit(ChangePermissions("b", "data", ("ALTER",), False))
    assert made.now.access.granted("b", "data") == ()


# -- the service


def test_texts_have_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "SERVICE_TEXT_CHARACTERS_MAX", 3)
    monkeypatch.setattr(features, "SERVICE_TEXT_CHARACTERS_MAX", 3)
    made = history()
    for wrong in (
        PrepareMembership(ids(2, 3), (), "long"),
        SetService(ServiceWish.FREEZE, text="long"),
        ExcludeNodes(ids(2), "long"),
    ):
        assert "at most 3 characters" in why(made, wrong)
    made.submit(PrepareMembership(ids(2, 3), (), "any"))
    change = made.now.epoch
    assert "at most 3 characters" in why(made, CancelMembership(change, "long"))
    made.submit(CancelMembership(change, "any"))
    made.submit(SetService(ServiceWish.FREEZE, text="any"))
    assert made.now.service.frozen == "any"
    made.submit(SetService(ServiceWish.THAW))
    made.submit(SetService(ServiceWish.FREEZE))
    assert made.now.service.frozen == "by an operator"
    assert made.now.service.paused == "any"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (PrepareMembership(ids(2, 2), ()), "names each node once"),
        (PrepareMembership(ids(2), ids(1), size=3), "leads to 1 voters, not 3"),
        (PrepareMembership(ids(4, 2), ()), "only nodes of the cluster can vote; node 4 is none"),
        (PrepareMembership(ids(5, 2), ()), "only nodes of the cluster can vote; node 5 is left"),
        (PrepareMembership(ids(3, 2), ()), "node 3 is excluded: "),
        (PrepareMembership(ids(6, 2), ()), "there is no node 6"),
    ],
)
def test_who_may_be_made_a_voter(wrong: Transformation, told: str) -> None:
    made = history()
    made.submit(ExcludeNodes(ids(3)))
    assert told in why(made, wrong)


def test_as_many_vote_as_the_limit_says_also_in_between() -> None:
    made = History()
    made.submit(Initialize("c", "n", tuple(founder(at, (at,)) for at in range(1, 13)), ids(1, 2, 3, 4, 5)))
    assert "an odd number of voters up to 7, not 9" in why(made, PrepareMembership(ids(6, 7, 8, 9), ()))
    crowd = PrepareMembership(ids(6, 7, 8, 9), ids(1, 2, 3, 4))
    refusal = made.tried(crowd)
    assert refusal is not None and "5 voters and 4 more are too many at once" in refusal.message
    assert refusal.hint == "at most 8 vote during a change: replace them in several steps"
    made.submit(PrepareMembership(ids(6, 7, 8), ids(1)))
    assert made.now.service.change is not None and made.now.service.change.steps == 4


def test_a_node_that_may_not_vote_is_told_so() -> None:
    made = History()
    made.submit(Initialize("c", "n", tuple(founder(at, (at,)) for at in (1, 2, 3))))
    silent = msgspec.structs.replace(register(4), may_vote=False)
    made.submit(silent)
    made.submit(PrepareOperation(Bootstrap(NodeId(4), (50,))))
    node = made.now.directory.nodes[3]
    normal = msgspec.structs.replace(node, state=NodeState.NORMAL)
    now = made.now.changed(
        DIRECTORY.set(made.now.directory.with_node(normal)),
        OPERATIONS.set(msgspec.structs.replace(made.now.running, running=())),
    )
    with pytest.raises(Rejected, match="node 4 is configured never to vote"):
        PrepareMembership(ids(2, 4), ()).apply(now, now.epoch + 1)


# -- what excludes what


def test_what_holds_is_named_and_excludes_what_the_table_says() -> None:
    made = history()
    made.submit(ExcludeNodes(ids(3)))
    made.submit(PrepareOperation(Bootstrap(NodeId(4), (50,))))
    made.submit(PrepareMembership(ids(2), ids(1), "why"))
    made.submit(SetService(ServiceWish.FREEZE, text="upgrade"))
    assert {held: holders(made.now, held) for held in Held} == {
        Held.RING: ("operation 1 (bootstrap of node 4)",),
        Held.REPLICATION: (),
        Held.VOTERS: ("change 7 of the voters (adds 2, removes 1)",),
        Held.VOTE: ("the vote of node 1", "the vote of node 2"),
        Held.EXCLUSION: ("the exclusion of node 3",),
        Held.FREEZE: ("the freeze: upgrade",),
    }
    assert list(excluded_by(made.now, Wanted.RING, ids(2, 3, 4))) == [
        (Held.VOTE, 2), (Held.EXCLUSION, 3), (Held.FREEZE, 0),
    ]  # fmt: skip
    assert list(excluded_by(made.now, Wanted.VOTERS, ids(3, 4))) == [
        (Held.RING, 4), (Held.VOTERS, 0), (Held.EXCLUSION, 3),
    ]  # fmt: skip
    assert list(excluded_by(made.now, Wanted.FACTS, ids(1, 2, 3, 4))) == []
    with pytest.raises(Rejected) as refusal:
        refuse_during(made.now, Wanted.SCHEMA_MOVING, Held.RING, "no schema change", "wait")
    assert (refusal.value.message, refusal.value.hint) == (
        "no schema change while operation 1 holds ranges",
        "wait",
    )
    with pytest.raises(
        Rejected, match=r"no voters while change 7 of the voters \(adds 2, removes 1\) is running"
    ):
        refuse_during(made.now, Wanted.VOTERS, Held.VOTERS, "no voters", "wait")
    with pytest.raises(AssertionError):
        refuse_during(made.now, Wanted.RING, Held.VOTE, "", "")
    refuse_during(history().now, Wanted.VOTERS, Held.VOTERS, "", "")
    nothing = list(excluded_by(history().now, Wanted.RING, ids(2, 3, 4)))
    assert nothing == [] and list(excluded_by(history().now, Wanted.FORCE, ids(1))) == [(Held.VOTE, 1)]


def test_each_pair_that_excludes_says_why_and_no_other_does() -> None:
    assert set(TABLE) == {(wanted, held) for wanted in Wanted for held in Held}
    for pair, conflict in TABLE.items():
        assert (conflict.scope is not Scope.NEVER) is bool(conflict.why), pair


def test_a_node_that_registers_is_what_it_says_of_itself() -> None:
    made = history()
    told = Register(
        "host-6", "10.0.0.6", 7001, 9043, 7081, "dc7", "r7", "9", 1, False, NodeId(0), 3,
        tuple(reversed(made.now.features.enabled)), 5,
    )  # fmt: skip
    made.submit(told)
    node = made.now.directory.nodes[5]
    names = [name for name in told.__struct_fields__ if name not in ("features", "as_of")]
    assert [getattr(node, name) for name in names] == [getattr(told, name) for name in names]
    assert node.features == made.now.features.enabled and node.state is NodeState.NONE
    assert node.epoch == node.accepted_epoch == made.now.epoch and node.id == 6


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (tuple(range(100, 104)), "owns 1 to 3 tokens, not 4"),
        ((100, 101, 101), "not distinct"),
        ((100, 10), "token 10 belongs to node 1"),
    ],
)
def test_tokens_of_founders_are_bounded(
    monkeypatch: pytest.MonkeyPatch, tokens: tuple[int, ...], told: str
) -> None:
    monkeypatch.setattr(transformations, "TOKENS_PER_NODE_MAX", 3)
    made = History()
    assert told in why(made, Initialize("c", "n", (founder(1, (10, 11, 12)), founder(2, tokens))))


def test_features_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = history()
    monkeypatch.setattr(features, "FEATURES_MAX", len(made.now.features.enabled) + 1)
    assert "not supported by nodes 1, 2, 3, 4" in why(made, EnableFeatures(("x",)))
    assert "at most 6 features" in why(made, EnableFeatures(("x", "y")))
