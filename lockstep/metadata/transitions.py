"""Transitions: which ranges are on their way from replicas to others, as a part of the metadata.

A range is held while it has a transition: nobody else changes, or repairs, what it stores. Found by placement
group and right bound: the ring of the group knows the range of a token, and the range its transition.

Invariants. A transition covers exactly one placed range. One that belongs to an operation has that one's
stage, and one that moves by itself has its own; never both. A change of one costs two nodes and a bucket of
the tree, whatever else is on its way; so do the digest, the comparison and the check of the value.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec
from rpds import HashTrieMap

from lockstep.metadata.log.comparison import ABSENT, Difference, compare, text_of
from lockstep.metadata.operations import OPERATIONS, About, Stage
from lockstep.metadata.part import Part, Parts, collected, digest_of
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.placement.placements import RingPlacement
from lockstep.schema.model import Replication
from lockstep.values.hash_tree import EMPTY_TREE, HashTree, changed, tree_of
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

_KEY_BITS: Final = 128
_KEY_MASK: Final = (1 << _KEY_BITS) - 1
_TOKEN_MASK: Final = (1 << 64) - 1
#: Odd, its bits in no order: what differs in high bits of a token differs in all bits above them.
_MIXER: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
_FOLD_BITS: Final = 90
#: Of the name of a session: the word, group, right bound, epoch.
_SESSION_PARTS: Final = 4


def key_of(group: int, right: int) -> int:
    """The key of a range in the tree, another one for each group and right bound, with low bits that differ
    where only high bits of the bounds do."""
    mixed = ((group << 64 | (right & _TOKEN_MASK)) * _MIXER) & _KEY_MASK
    return mixed ^ (mixed >> _FOLD_BITS)


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a transition is that moves by itself. `kind` names its stages; `session_id` is the session of the
    stage's work, or empty; `former` the stage that it left. `target`: the node and shard that get a
    tablet."""

    kind: str
    stage: Stage
    stage_epoch: int
    session_id: str = ""
    former: Stage | None = None
    target: tuple[NodeId, int] | None = None


class Transition(msgspec.Struct, frozen=True, array_like=True):
    """One range on its way from the replicas `old` to the replicas `new` (ring order, primary first).

    `group` is the placement group. `replication`: what counts follow, until `new` is read where there is a
    `new_replication`; that is None but where the replication of the group changes. `operation_id`: whose
    stages it goes through; where it is 0, those of its own `position`.
    """

    group: int
    range: Range
    old: tuple[NodeId, ...]
    new: tuple[NodeId, ...]
    replication: Replication
    new_replication: Replication | None = None
    operation_id: int = 0
    position: Position | None = None

    @property
    def key(self) -> int:
        return key_of(self.group, self.range.right)

    @property
    def replication_after(self) -> Replication:
        """The setting that counts once `new` is read."""
        return self.replication if self.new_replication is None else self.new_replication

    @property
    def gained(self) -> tuple[NodeId, ...]:
        """Pending replicas: they receive the range."""
        return tuple(node for node in self.new if node not in self.old)

    @property
    def lost(self) -> tuple[NodeId, ...]:
        """Replicas that give the range up."""
        return tuple(node for node in self.old if node not in self.new)

    @property
    def union(self) -> tuple[NodeId, ...]:
        return self.old + self.gained


_SESSION: Final = "transition"


class Lone(msgspec.Struct, frozen=True, dict=True):
    """A transition that moves by itself, as what goes through stages: it has what an operation has."""

    transition: Transition

    @property
    def id(self) -> int:
        return self.transition.operation_id

    @property
    def body(self) -> None:
        return None

    @property
    def node(self) -> NodeId:
        return NodeId(0)

    @cached_property
    def position(self) -> Position:
        position = self.transition.position
        assert position is not None, "it moves by itself"
        return position

    @cached_property
    def about(self) -> About:
        return About(self.position.kind, 0)

    @property
    def kind(self) -> str:
        return self.position.kind

    @property
    def stage(self) -> Stage:
        return self.position.stage

    @property
    def stage_epoch(self) -> int:
        return self.position.stage_epoch

    @property
    def session_id(self) -> str:
        return self.position.session_id

    @property
    def earlier(self) -> tuple[Stage, ...]:
        """The stage before this one, if there was one."""
        return (self.position.former,) if self.position.former is not None else ()

    @property
    def session_prefix(self) -> str:
        """How the names of all its sessions begin."""
        return f"{_SESSION}-{self.transition.group}-{self.transition.range.right & _TOKEN_MASK}-"

    def title(self) -> str:
        """How people refer to it: `migration of (0, 10] of group 7`."""
        range_ = self.transition.range
        return f"{self.kind} of ({range_.left}, {range_.right}] of group {self.transition.group}"


_NOTHING_OWNED: Final[HashTrieMap[int, tuple[Transition, ...]]] = HashTrieMap()


class Transitions(msgspec.Struct, frozen=True, dict=True):
    """All of them, by `key_of`; `owned` finds those of an operation by its id."""

    tree: HashTree[Transition] = EMPTY_TREE
    owned: HashTrieMap[int, tuple[Transition, ...]] = _NOTHING_OWNED

    @property
    def count(self) -> int:
        return self.tree.count

    def of(self, operation_id: int) -> tuple[Transition, ...]:
        """Those of an operation, by group and range; the identical tuple until it has others."""
        found: tuple[Transition, ...] = self.owned.get(operation_id, ())
        return found

    def listed(self) -> list[Transition]:
        """All of them, by group and range; for those who walk everything."""
        return in_order(one for _, one in self.tree.items())

    def at(self, group: int, right: int) -> Transition | None:
        """That of the placed range with this right bound."""
        return self.tree.get(key_of(group, right))

    def held(self, ring: RingPlacement, wanted: Range) -> Iterator[Transition]:
        """Those of ranges of the ring that share tokens with `wanted`, in ring order."""
        if self.tree.count:
            for placed in ring.overlapping(wanted):
                found = self.at(ring.id, placed.range.right)
                if found is not None:
                    yield found

    def holder_at(self, ring: RingPlacement, token: int) -> Transition | None:
        """That of the range with this token."""
        return self.at(ring.id, ring.range_at(token).range.right) if self.tree.count else None

    @cached_property
    def lone_count(self) -> int:
        """How many move by themselves."""
        return self.count - sum(len(self.owned[one]) for one in self.owned)

    def lone_of(self, session_id: str) -> Lone | None:
        """The one that moves by itself and has this session open."""
        parts = session_id.split("-")
        if len(parts) != _SESSION_PARTS or parts[0] != _SESSION or not all(map(str.isdecimal, parts[1:])):
            return None
        found = self.at(int(parts[1]), int(parts[2]))
        is_open = found is not None and found.position is not None and found.position.session_id == session_id
        return Lone(found) if found is not None and is_open else None

    def moved(self, changed: Sequence[Transition], ended: Sequence[Transition] = ()) -> Transitions:
        """With these that move by themselves put in or replaced, and without those."""
        assert all(one.position is not None and not one.operation_id for one in changed), "by themselves"
        assert not any(one.operation_id for one in ended), "what an operation holds ends with it"
        tree = self.tree.without_all(one.key for one in ended)
        return Transitions(tree.with_all((t.key, t, digest_of(t)) for t in changed), self.owned)

    def begun(self, operation_id: int, transitions: Sequence[Transition]) -> Transitions:
        """With these, by group and range, as all that the operation has."""
        assert operation_id, "what moves by itself is no operation's"
        assert all(t.operation_id == operation_id and t.position is None for t in transitions), "all its own"
        known = self.ended(operation_id)
        if not transitions:
            return known
        tree = known.tree.with_all((t.key, t, digest_of(t)) for t in transitions)
        return Transitions(tree, known.owned.insert(operation_id, tuple(transitions)))

    def ended(self, operation_id: int) -> Transitions:
        """Without those of the operation; itself when it has none."""
        gone = self.of(operation_id)
        if not gone:
            return self
        return Transitions(self.tree.without_all(t.key for t in gone), self.owned.remove(operation_id))

    def without_groups(self, gone: Container[int]) -> Transitions:
        """Without those that operations have in placement groups which are no more; itself when there are
        none."""
        found = self
        for operation_id in self.owned:
            own = self.of(operation_id)
            left = [one for one in own if one.group not in gone]
            if len(left) < len(own):
                found = found.begun(operation_id, left)
        assert found.lone_count == self.lone_count, "what moves by itself stays"
        return found

    def validate(self) -> None:
        """Assert what must hold of all of them together."""
        owned = [t for operation_id in self.owned for t in self.owned[operation_id]]
        assert all(self.tree.get(t.key) is t for t in owned), "who has an operation is found by it"
        assert all((t.position is None) is bool(t.operation_id) for _, t in self.tree.items()), "one or other"
        lone = sum(t.position is not None for _, t in self.tree.items())
        assert lone + len(owned) == self.tree.count, "every transition has its operation, or its own stage"
        for _, one in self.tree.items():
            assert one.range.left < one.range.right, "what is on its way has tokens"
            assert len(set(one.old)) == len(one.old) and len(set(one.new)) == len(one.new), "replicas differ"
            assert one.new or one.new_replication is not None, "a range is moved to somebody"


NO_TRANSITIONS: Final = Transitions()


def in_order(transitions: Iterable[Transition]) -> list[Transition]:
    """By group and range."""
    return sorted(transitions, key=lambda transition: (transition.group, transition.range))


def transitions_of(transitions: Iterable[Transition]) -> Transitions:
    """The value with these, in any order."""
    ascending = in_order(transitions)
    owned: dict[int, list[Transition]] = {}
    for transition in ascending:
        if transition.operation_id:
            owned.setdefault(transition.operation_id, []).append(transition)
    tree = tree_of((t.key, t, digest_of(t)) for t in ascending)
    return Transitions(tree, HashTrieMap({one: tuple(found) for one, found in owned.items()}))


def _compare(path: str, before: Transitions, after: Transitions) -> Iterator[Difference]:
    found = {key: (old, new) for key, old, new in changed(before.tree, after.tree)}
    for one in in_order(one for pair in found.values() if (one := pair[1] or pair[0]) is not None):
        was, now = found[one.key]
        here = f"{path}[{one.group} {text_of(one.range)}]"
        if was is not None and now is not None:
            yield from compare(here, was, now)
        else:
            texts = (ABSENT if side is None else text_of(side) for side in (was, now))
            yield Difference(here, *texts)


def _validate(now: Parts, before: Parts | None) -> None:
    """What changed covers one placed range each and has an operation that runs; the rest did so before."""
    transitions, placements = now[TRANSITIONS], now[PLACEMENTS].by_id
    running = now[OPERATIONS].by_id
    if before is None:
        transitions.validate()
    assert all(one in running for one in transitions.owned), "transitions are of operations that run"
    former = before[TRANSITIONS].tree if before is not None else EMPTY_TREE
    for key, _, one in changed(former, transitions.tree):
        if one is not None:
            assert one.key == key, "a transition lies under its own key"
            ring = placements.get(one.group)
            assert ring is not None, f"the placement group of ({one.range.left}, {one.range.right}] is there"
            covers = ring.range_at(one.range.right).range == one.range
            assert covers, f"({one.range.left}, {one.range.right}] is one placed range"


TRANSITIONS: Final[Part[Transitions]] = Part(
    name="transitions",
    number=16,
    empty=NO_TRANSITIONS,
    items=lambda value: ((0, transition) for _, transition in value.tree.items()),
    kinds=(Transition,),
    builder=collected(lambda items: transitions_of(value for _, value in items)),
    digest=lambda value: value.tree.digest,
    validate=_validate,
    needs=(OPERATIONS,),
    compare=_compare,
)
