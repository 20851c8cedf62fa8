"""The ring: its members with their tokens, those that are gone, a sequence number and a mode, and how two
merge.

Invariant: a ring is a join-semilattice. `merge` takes of each name the entry with the higher sequence, so it
is commutative, associative and idempotent, and whoever is gone stays gone: a tombstone is an entry like
others. The fingerprint covers mode, sequence, members and tombstones, so a ring that looks as one before
never has its fingerprint. What was agreed on a ring has the next sequence; two entries of one name and one
sequence that differ say that two changes were agreed on one ring.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from lockstep.ring.limits import RING_ENTRIES_MAX, RING_NAME_CHARACTERS_MAX, RING_TOKENS_MAX
from lockstep.values.codec import decoder, encode
from lockstep.values.memo import keep, memo
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

FINGERPRINT_BYTES: Final = hashlib.sha256().digest_size


class Mode(enum.StrEnum):
    """Who must accept a change; founders choose it, and it stays."""

    #: Every member.
    UNANIMOUS = "unanimous"
    #: A majority of the members, under ballots.
    QUORUM = "quorum"


class Status(enum.StrEnum):
    #: Let in, and owns nothing.
    ADMITTED = "admitted"
    #: Takes writes of the ranges it is to own.
    JOINING = "joining"
    #: As that, of the ranges of the member that it replaces.
    REPLACING = "replacing"
    NORMAL = "normal"
    #: Owns its tokens, and takes writes of those it is to own.
    MOVING = "moving"
    #: Owns its tokens until others have its data.
    LEAVING = "leaving"
    #: As that, because others said so.
    REMOVING = "removing"
    #: Owns its tokens, and has no voice: it was lost together with most others.
    SILENCED = "silenced"
    #: A tombstone: the name is never used again.
    LEFT = "left"


#: Who has a voice, and owns tokens.
VOTING: Final = frozenset({Status.NORMAL, Status.MOVING, Status.LEAVING, Status.REMOVING})
#: Who is to own tokens, and does not yet.
_PENDING: Final = frozenset({Status.JOINING, Status.REPLACING, Status.MOVING})


class Member(msgspec.Struct, frozen=True, array_like=True):
    """`sequence`: of the ring that has this entry first. `op` is the change that made it. `replaces` names
    the member whose tokens are `pending`."""

    node: str
    sequence: int
    status: Status
    dc: str
    rack: str
    tokens: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    replaces: str = ""
    op: str = ""

    def validate(self) -> None:
        assert self.node and len(self.node) <= RING_NAME_CHARACTERS_MAX, "a member has a name"
        assert self.sequence > 0, "an entry belongs to a ring"
        owns = self.status in VOTING or self.status is Status.SILENCED
        assert bool(self.tokens) == owns, "who has a voice or had one owns tokens, and nobody else"
        assert bool(self.pending) == (self.status in _PENDING), "who is on its way knows what it is to own"
        assert bool(self.replaces) == (self.status is Status.REPLACING), "a replacement replaces somebody"
        for tokens in (self.tokens, self.pending):
            assert all(one < other for one, other in pairwise(tokens)), "tokens are sorted, each once"
            assert all(TOKEN_MIN < token <= TOKEN_MAX for token in tokens), "a token lies on the ring"


class Ring(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`members` has the entries sorted by name, tombstones among them. `history` stands for all that changes
    have carried besides; it is empty where they carry nothing."""

    mode: Mode
    sequence: int
    members: tuple[Member, ...]
    history: bytes = b""

    @property
    def fingerprint(self) -> bytes:
        return memo(self, "_fingerprint", _fingerprint)

    @property
    def by_name(self) -> Mapping[str, Member]:
        return memo(self, "_by_name", _by_name)

    @property
    def voters(self) -> tuple[str, ...]:
        """Whose promises count on this ring."""
        return memo(self, "_voters", _voters)

    @property
    def present(self) -> tuple[str, ...]:
        """Who hears of changes: everybody but those that are gone."""
        return memo(self, "_present", _present)

    def title(self) -> str:
        return f"ring {self.sequence} ({self.fingerprint.hex()[:12]})"

    def validate(self) -> None:
        assert self.sequence > 0 and len(self.members) <= RING_ENTRIES_MAX, "a ring has a size"
        assert all(one.node < other.node for one, other in pairwise(self.members)), (
            "entries are sorted by name"
        )
        taken: list[int] = []
        for member in self.members:
            member.validate()
            assert member.sequence <= self.sequence, "an entry is no newer than its ring"
            taken += member.tokens
            taken += () if member.replaces else member.pending
            if member.replaces:
                replaced = self.by_name.get(member.replaces)
                assert replaced is not None and replaced.tokens == member.pending, "it takes those tokens"
        assert len(taken) == len(set(taken)), "a token has one owner"
        assert len(taken) <= RING_TOKENS_MAX, "a ring fits a message"


def _fingerprint(ring: Ring) -> bytes:
    return hashlib.sha256(encode(ring)).digest()


def _by_name(ring: Ring) -> Mapping[str, Member]:
    return {member.node: member for member in ring.members}


def _voters(ring: Ring) -> tuple[str, ...]:
    return tuple(member.node for member in ring.members if member.status in VOTING)


def _present(ring: Ring) -> tuple[str, ...]:
    return tuple(member.node for member in ring.members if member.status is not Status.LEFT)


_DECODER = decoder(Ring)


def ring_bytes(ring: Ring) -> bytes:
    """What the fingerprint is taken of; equal rings have equal bytes."""
    return encode(ring)


def read_ring(data: bytes) -> Ring:
    """One of the errors of `codec.UNREADABLE` for bytes of something else."""
    return _DECODER.decode(data)


def found(mode: Mode, members: Iterable[Member]) -> Ring:
    """The first ring of a cluster: all of its founders are there at once."""
    ring = Ring(mode, 1, tuple(sorted(members, key=lambda member: member.node)))
    assert ring.voters == ring.present, "founders own tokens"
    ring.validate()
    return ring


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What turns the ring `base` into `target`: its `entries` take the places of those of their names.

    Without entries it ends a ring without a change: what was proposed on it can then never be agreed on.
    `carried` is what is agreed on with it, and `history` that of the ring that it makes.
    """

    op: str
    base: bytes
    target: bytes
    sequence: int
    entries: tuple[Member, ...]
    carried: bytes = b""
    history: bytes = b""

    def validate(self) -> None:
        assert len(self.base) == len(self.target) == FINGERPRINT_BYTES and self.base != self.target, (
            "it changes"
        )
        assert all(entry.sequence == self.sequence for entry in self.entries), "entries are of the next ring"
        assert all(one.node < other.node for one, other in pairwise(self.entries)), (
            "entries are sorted by name"
        )
        assert bool(self.carried) == bool(self.history), "what is carried has a history"


def delta_to(ring: Ring, op: str, target: Ring, carried: bytes) -> Delta:
    """The change that takes `ring` to `target`, the ring that what is carried makes."""
    assert target.sequence == ring.sequence + 1, "a change makes the next ring"
    assert target.mode is ring.mode and ring.by_name.keys() <= target.by_name.keys(), "nobody is forgotten"
    entries = tuple(member for member in target.members if ring.by_name.get(member.node) != member)
    delta = Delta(op, ring.fingerprint, target.fingerprint, target.sequence, entries, carried, target.history)
    delta.validate()
    return delta


def delta_on(ring: Ring, op: str, entries: Iterable[Member]) -> Delta:
    """The change of `ring` by entries, of which each gets the next sequence and the name of the change."""
    sequence = ring.sequence + 1
    stamped = sorted(
        (msgspec.structs.replace(entry, sequence=sequence, op=op) for entry in entries),
        key=lambda entry: entry.node,
    )
    delta = Delta(op, ring.fingerprint, b"", sequence, tuple(stamped))
    return msgspec.structs.replace(delta, target=outcome(ring, delta).fingerprint)


def outcome(ring: Ring, delta: Delta) -> Ring:
    """The ring with the entries of a change in it."""
    return merge(ring, Ring(ring.mode, delta.sequence, delta.entries, delta.history))


def applied(ring: Ring, delta: Delta) -> Ring:
    """The ring after a change that was agreed on it."""
    assert delta.base == ring.fingerprint, "a change belongs to one ring"
    after = outcome(ring, delta)
    assert after.fingerprint == delta.target, "a change has one outcome"
    return after


def merge(one: Ring, other: Ring) -> Ring:
    """The least ring above both."""
    assert one.mode is other.mode, "a ring keeps its mode"
    if one is other or other.fingerprint == one.fingerprint:
        return one
    chosen = dict(one.by_name)
    for entry in other.members:
        mine = chosen.get(entry.node)
        chosen[entry.node] = entry if mine is None else newer(mine, entry)
    later = max(one, other, key=lambda ring: (ring.sequence, ring.history))
    members = tuple(chosen[node] for node in sorted(chosen))
    ring = Ring(one.mode, later.sequence, members, later.history)
    keep(ring, "_by_name", {member.node: member for member in ring.members})
    return ring


def newer(mine: Member, theirs: Member) -> Member:
    """Of two entries of one name the one that counts. Equal sequences with other contents are a fault of the
    agreement; the one with the greater bytes counts then, so that all choose the same."""
    assert mine.node == theirs.node, "entries of one name"
    if mine.sequence != theirs.sequence:
        return mine if mine.sequence > theirs.sequence else theirs
    return mine if encode(mine) >= encode(theirs) else theirs


def contradictions(one: Ring, other: Ring) -> tuple[str, ...]:
    """Names of which both rings have different entries of one sequence; and, where they are of one sequence
    and differ, that this is so."""
    names = tuple(
        entry.node
        for entry in other.members
        if (mine := one.by_name.get(entry.node)) is not None
        and mine.sequence == entry.sequence
        and mine != entry
    )
    if not names and one.sequence == other.sequence and one.fingerprint != other.fingerprint:
        return (f"two rings of sequence {one.sequence}",)
    return names
