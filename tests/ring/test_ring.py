"""Rings merge as a semilattice, their fingerprint covers all they are, and changes are judged by a table."""

from __future__ import annotations

import random
from itertools import pairwise, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.ring.changes import (
    STEPS,
    Change,
    Kind,
    Step,
    decide,
    end_without_change,
    problem,
    remaining,
)
from lockstep.ring.limits import (
    RING_CHANGES_MAX,
    RING_ENTRIES_MAX,
    RING_NAME_CHARACTERS_MAX,
    RING_TOKENS_MAX,
)
from lockstep.ring.ring import (
    Member,
    Mode,
    Ring,
    Status,
    applied,
    contradictions,
    delta_on,
    found,
    merge,
    read_ring,
    ring_bytes,
)
from lockstep.values.limits import INTERNODE_FRAME_BYTES_MAX

from .rings import after, change, founders, join, walk

BEGIN, FINISH, CANCEL = Step.BEGIN, Step.FINISH, Step.CANCEL


def drawn_part(ring: Ring, draw: random.Random) -> Ring:
    """Some of its entries: what a message may bring."""
    some = tuple(member for member in ring.members if draw.random() < 0.6)
    return Ring(ring.mode, max((member.sequence for member in some), default=1), some)


def forked(draw: random.Random) -> list[Ring]:
    """Parts of two histories that have a beginning in common: sequences meet, and contents differ."""
    trunk = walk(founders(4), draw, 4)
    branches = [*walk(trunk[-1], draw, 4), *walk(trunk[-2], draw, 4)]
    return [drawn_part(ring, draw) for ring in draw.sample([*trunk, *branches], 3)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_merging_is_commutative_associative_and_idempotent(seed: int) -> None:
    one, two, three = forked(random.Random(seed))
    both = merge(one, two)
    assert both == merge(two, one)
    assert merge(both, three) == merge(one, merge(two, three))
    assert merge(one, one) == one and merge(both, one) == both == merge(both, two)
    assert {merge(merge(a, b), c).fingerprint for a, b, c in permutations((one, two, three))} == {
        merge(both, three).fingerprint
    }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_deltas_in_any_order_and_twice_give_the_ring_that_was_agreed_on(seed: int) -> None:
    draw = random.Random(seed)
    rings = walk(founders(4), draw, 6)
    deltas = [delta_on(b, f"op{n}", _changed(b, a)) for n, (b, a) in enumerate(pairwise(rings))]
    told = [*deltas, *draw.sample(deltas, 3)]
    draw.shuffle(told)
    ring = rings[0]
    for delta in told:
        ring = merge(ring, Ring(ring.mode, delta.sequence, delta.entries))
    assert ring == rings[-1] and ring.fingerprint == rings[-1].fingerprint


def _changed(before: Ring, later: Ring) -> list[Member]:
    return [member for member in later.members if before.by_name.get(member.node) != member]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_rings_of_a_walk_are_sound_differ_and_survive_their_bytes(seed: int) -> None:
    rings = walk(founders(3), random.Random(seed), 8)
    for ring in rings:
        ring.validate()
        assert read_ring(ring_bytes(ring)) == ring
    assert len({ring.fingerprint for ring in rings}) == len(rings)
    assert [ring.sequence for ring in rings] == list(range(1, len(rings) + 1))


def test_the_fingerprint_covers_mode_sequence_members_and_tombstones() -> None:
    ring = founders(3)
    others = [
        founders(3, Mode.UNANIMOUS),
        founders(4),
        founders(3, tokens=2),
        msgspec.structs.replace(ring, sequence=2),
        after(after(ring, join(9)), join(9, CANCEL)),
    ]
    assert len({one.fingerprint for one in (ring, *others)}) == len(others) + 1
    assert founders(3).fingerprint == ring.fingerprint


def test_a_ring_that_looks_as_before_has_another_fingerprint_and_an_old_proposal_is_of_none() -> None:
    """A member comes and goes: owners are as before, and what was proposed before is void (scenario 31)."""
    ring = founders(3)
    old = decide(ring, "old", [join(8)])
    again = after(after(after(ring, join(9)), join(9, FINISH)), change(Kind.LEAVE, 9))
    again = after(again, change(Kind.LEAVE, 9, FINISH))
    assert again.voters == ring.voters and again.fingerprint != ring.fingerprint
    with pytest.raises(AssertionError, match="one ring"):
        applied(again, old)


def test_two_changes_of_one_ring_contradict_each_other() -> None:
    ring = founders(3)
    one, other = after(ring, join(8)), after(ring, join(9))
    assert contradictions(one, other) == ("two rings of sequence 2",)
    assert contradictions(one, after(ring, join(8), op="another")) == ("n8",)
    assert contradictions(ring, one) == contradictions(one, one) == ()
    assert merge(one, other) == merge(other, one) and merge(one, other).sequence == 2


def test_an_end_without_a_change_makes_another_ring_of_the_same_members() -> None:
    ring = founders(3)
    ended = applied(ring, end_without_change(ring, "op"))
    assert ended.members == ring.members and ended.sequence == 2 and ended.fingerprint != ring.fingerprint


@pytest.mark.parametrize(
    ("steps", "owners", "statuses"),
    [
        ([[join(4)], [join(4, FINISH)]], {"n4": (400,)}, {"n4": Status.NORMAL}),
        ([[join(4)], [join(4, CANCEL)]], {"n4": ()}, {"n4": Status.LEFT}),
        ([[change(Kind.LEAVE, 3)], [change(Kind.LEAVE, 3, FINISH)]], {"n3": ()}, {"n3": Status.LEFT}),
        ([[change(Kind.LEAVE, 3)], [change(Kind.LEAVE, 3, CANCEL)]], {"n3": (300,)}, {"n3": Status.NORMAL}),
        ([[change(Kind.REMOVE, 3)], [change(Kind.REMOVE, 3, FINISH)]], {"n3": ()}, {"n3": Status.LEFT}),
        ([[change(Kind.REMOVE, 3)], [change(Kind.REMOVE, 3, CANCEL)]], {"n3": (300,)}, {"n3": Status.NORMAL}),
        (
            [
                [Change(Kind.REPLACE, BEGIN, "n9", replaced="n2", dc="dc1", rack="r2")],
                [change(Kind.REPLACE, 9, FINISH)],
            ],
            {"n9": (200,), "n2": ()},
            {"n9": Status.NORMAL, "n2": Status.LEFT},
        ),
        (
            [
                [Change(Kind.REPLACE, BEGIN, "n9", replaced="n2", dc="dc1", rack="r2")],
                [change(Kind.REPLACE, 9, CANCEL)],
            ],
            {"n9": (), "n2": (200,)},
            {"n9": Status.LEFT, "n2": Status.NORMAL},
        ),
        (
            [[Change(Kind.MOVE, BEGIN, "n1", (7,))], [change(Kind.MOVE, 1, FINISH)]],
            {"n1": (7,)},
            {"n1": Status.NORMAL},
        ),
        (
            [[Change(Kind.MOVE, BEGIN, "n1", (7,))], [change(Kind.MOVE, 1, CANCEL)]],
            {"n1": (100,)},
            {"n1": Status.NORMAL},
        ),
        (
            [
                [join(4), join(5), change(Kind.REMOVE, 3)],
                [join(4, FINISH), join(5, CANCEL), change(Kind.REMOVE, 3, FINISH)],
            ],
            {"n4": (400,), "n5": (), "n3": ()},
            {"n4": Status.NORMAL, "n5": Status.LEFT, "n3": Status.LEFT},
        ),
    ],
)
def test_a_change_in_two_steps(
    steps: list[list[Change]], owners: dict[str, tuple[int, ...]], statuses: dict[str, Status]
) -> None:
    ring = founders(3)
    for changes in steps:
        ring = after(ring, *changes)
        ring.validate()
    assert ring.sequence == 3
    assert {node: ring.by_name[node].tokens for node in owners} == owners
    assert {node: ring.by_name[node].status for node in statuses} == statuses
    assert not any(member.pending or member.replaces for member in ring.members)


def test_who_is_on_its_way_in_has_no_voice_and_who_is_on_its_way_out_has() -> None:
    ring = after(founders(3), join(4), change(Kind.LEAVE, 3), Change(Kind.MOVE, BEGIN, "n1", (7,)))
    assert ring.voters == ("n1", "n2", "n3") and ring.present == ("n1", "n2", "n3", "n4")
    assert ring.by_name["n1"].tokens == (100,) and ring.by_name["n1"].pending == (7,)
    assert remaining(ring) == {"dc1": 2}


REPLACE = Change(Kind.REPLACE, BEGIN, "n9", replaced="n2", dc="dc1", rack="r1")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], "0 changes"),
        ([join(number) for number in range(10, 11 + RING_CHANGES_MAX)], "changes at once"),
        ([join(4), join(4)], "two changes concern one member"),
        ([REPLACE, change(Kind.LEAVE, 2)], "two changes concern one member"),
        ([change(Kind.LEAVE, 4)], "not in the ring"),
        ([change(Kind.LEAVE, 1, FINISH)], "it is normal, not leaving"),
        ([join(1)], "it is in the ring"),
        ([Change(Kind.JOIN, BEGIN, "x" * (RING_NAME_CHARACTERS_MAX + 1), (5,))], "a name has"),
        ([Change(Kind.JOIN, BEGIN, "", (5,))], "a name has"),
        ([Change(Kind.JOIN, BEGIN, "n4")], "names no tokens"),
        ([Change(Kind.LEAVE, BEGIN, "n1", (5,))], "takes no tokens"),
        ([Change(Kind.JOIN, BEGIN, "n4", (5, 5))], "sorted"),
        ([Change(Kind.JOIN, BEGIN, "n4", (1 << 63,))], "not on the ring"),
        ([Change(Kind.JOIN, BEGIN, "n4", (100,))], "token 100 is of n1 and of n4"),
        ([Change(Kind.REPLACE, BEGIN, "n9")], "names nobody"),
        ([Change(Kind.LEAVE, BEGIN, "n1", replaced="n2")], "replaces nobody"),
        ([Change(Kind.REPLACE, BEGIN, "n9", replaced="n8")], "n8 is not in the ring"),
        ([Change(Kind.REPLACE, BEGIN, "n9", replaced="n2", dc="dc2")], "n2 is in data centre dc1"),
        ([change(Kind.LEAVE, 1), change(Kind.LEAVE, 2)], "would have 1 owners and needs 2"),
    ],
)
def test_what_is_refused_says_why(changes: list[Change], said: str) -> None:
    assert said in problem(founders(3), changes, {"dc1": 2})


def test_who_is_being_replaced_is_left_alone_and_a_name_is_used_once() -> None:
    ring = after(founders(3), REPLACE)
    assert "n9 is replacing it" in problem(ring, [change(Kind.LEAVE, 2)], {})
    another = msgspec.structs.replace(REPLACE, node="n8")
    assert "n2 is being replaced" in problem(ring, [another], {})
    gone = after(ring, change(Kind.REPLACE, 9, FINISH))
    assert "the name was used before" in problem(gone, [join(2)], {})


def test_a_data_centre_that_has_too_few_owners_can_still_be_helped() -> None:
    ring = founders(2)
    assert not problem(ring, [join(4)], {"dc1": 5})
    assert "needs 5" in problem(ring, [change(Kind.LEAVE, 1)], {"dc1": 5})
    assert "nobody would own anything" in problem(founders(1), [change(Kind.LEAVE, 1)], {})


def test_every_kind_begins_finishes_and_cancels() -> None:
    assert set(STEPS) == {(kind, step) for kind in Kind for step in Step}
    for kind in Kind:
        begun = STEPS[kind, BEGIN][1]
        assert STEPS[kind, FINISH][0] is begun and STEPS[kind, CANCEL][0] is begun


def test_a_ring_that_is_not_sound_is_told() -> None:
    ring = founders(3)
    one, two, three = ring.members
    unsound = [
        Ring(Mode.QUORUM, 1, (two, one, three)),
        Ring(Mode.QUORUM, 0, ring.members),
        Ring(Mode.QUORUM, 1, (one, msgspec.structs.replace(two, tokens=one.tokens), three)),
        Ring(Mode.QUORUM, 1, (one, msgspec.structs.replace(two, status=Status.LEFT), three)),
        Ring(Mode.QUORUM, 1, (one, msgspec.structs.replace(two, sequence=2), three)),
        Ring(Mode.QUORUM, 1, (one, msgspec.structs.replace(two, pending=(5,)), three)),
        Ring(Mode.QUORUM, 1, (one, msgspec.structs.replace(two, replaces="n1"), three)),
    ]
    for one_ring in unsound:
        with pytest.raises(AssertionError):
            one_ring.validate()
    with pytest.raises(AssertionError, match="founders"):
        found(Mode.QUORUM, [msgspec.structs.replace(one, status=Status.JOINING, tokens=(), pending=(4,))])


def test_the_largest_ring_goes_in_one_message() -> None:
    name = "x" * (RING_NAME_CHARACTERS_MAX // 2)
    tokens = RING_TOKENS_MAX // RING_ENTRIES_MAX
    first = (1 << 62) + 1
    members = tuple(
        Member(
            f"{name}{number:05}",
            1,
            Status.NORMAL,
            name,
            name,
            tuple(range(first + number * tokens, first + (number + 1) * tokens)),
            op=f"{name}/1/1",
        )
        for number in range(RING_ENTRIES_MAX)
    )
    assert len(ring_bytes(found(Mode.QUORUM, members))) < 8 * 1024 * 1024 < INTERNODE_FRAME_BYTES_MAX // 2


def test_a_ring_has_a_bound() -> None:
    ring = founders(3)
    left = tuple(
        Member(f"x{number:05}", 1, Status.LEFT, "dc1", "r1") for number in range(RING_ENTRIES_MAX - 3)
    )
    full = Ring(Mode.QUORUM, 1, (*ring.members, *left))
    full.validate()
    assert "at most 10000 entries" in problem(full, [join(4)], {})
    many = Change(Kind.MOVE, BEGIN, "n1", tuple(range(1_000, 1_000 + RING_TOKENS_MAX)))
    assert "at most 500000 tokens" in problem(ring, [many], {})
