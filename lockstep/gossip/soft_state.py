"""What each node says of itself beside the metadata (load, readiness, release), and how that spreads.

A node publishes its state under its generation (which grows with every start) and a version (which grows with
every change). Exchanges have three messages: a syn lists what the sender knows by version, the ack brings
what it lacks and names what the other side wants, the ack2 brings that.

Invariant: of each node the newest (generation, version) ever heard is kept, and only of nodes that the
metadata lists; what the metadata says of a node is never part of it. Messages are bounded whatever the size
of the cluster: what was learned last goes first, the rest takes turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from lockstep.values.conditions import CONDITIONS_TOLD_MAX, Condition, fits
from lockstep.values.limits import (
    GOSSIP_BUILDING_MAX,
    GOSSIP_DIGESTS_MAX,
    GOSSIP_PARTNERS_MAX,
    GOSSIP_REFRESH_ROUNDS,
    GOSSIP_STATES_MAX,
    GOSSIP_TEXT_BYTES_MAX,
    GOSSIP_VERSION_MAX,
)

#: Multiplies rounds into strides that visit the whole cluster; a prime above any cluster.
_STRIDE: Final = 7919


class SoftState(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself. `ready`: it serves clients. `load_bytes`: what it stores, -1 unknown.
    `epoch`: applied. `schema_version`: 16 bytes. `streams`: sending to others now. `started_us`: wall clock.
    `building`: ids of views that it has not built, ascending, the first of them. `conditions`: what is wrong
    with it, the worst first, at most CONDITIONS_TOLD_MAX.
    """

    ready: bool = False
    load_bytes: int = -1
    release: str = ""
    epoch: int = 0
    schema_version: bytes = b""
    streams: int = 0
    started_us: int = 0
    building: tuple[int, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def may_lack(self, view: int, since_epoch: int) -> bool:
        """Whether it has not built a view that is there since an epoch, as far as this tells: it may not have
        known of it yet, or had no room to name it."""
        if self.epoch < since_epoch or view in self.building:
            return True
        return len(self.building) >= GOSSIP_BUILDING_MAX and view > self.building[-1]


class Version(msgspec.Struct, frozen=True, array_like=True, order=True):
    generation: int
    version: int


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """What the sender knows of `node`."""

    node: int
    version: Version


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A state with its version, on its way."""

    node: int
    version: Version
    state: SoftState


class Syn(msgspec.Struct, frozen=True, array_like=True):
    """At most GOSSIP_DIGESTS_MAX digests."""

    digests: tuple[Digest, ...]


class Ack(msgspec.Struct, frozen=True, array_like=True):
    """`told`: newer states than the syn named; `wanted`: nodes of which the syn named newer ones."""

    told: tuple[Told, ...]
    wanted: tuple[int, ...] = ()


class Ack2(msgspec.Struct, frozen=True, array_like=True):
    """At most GOSSIP_STATES_MAX states."""

    told: tuple[Told, ...]


class Known(msgspec.Struct, frozen=True):
    """`learned_s` is when this node learned of this version, on its own monotonic clock."""

    version: Version
    state: SoftState
    learned_s: float


_NOTHING: Final = Version(0, 0)


def believable(told: Told) -> bool:
    """Whether a node may have said this: it is kept, and passed on, as it is."""
    state = told.state
    texts = max(len(state.release.encode()), len(state.schema_version))
    numbers = (*msgspec.structs.astuple(told.version), state.epoch, state.streams, state.started_us)
    numbers += state.building
    if len(state.building) > GOSSIP_BUILDING_MAX or len(state.conditions) > CONDITIONS_TOLD_MAX:
        return False
    if not all(map(fits, state.conditions)):
        return False
    counted = told.version.generation <= GOSSIP_VERSION_MAX and told.version.version <= GOSSIP_VERSION_MAX
    return counted and min(numbers) >= 0 and texts <= GOSSIP_TEXT_BYTES_MAX


class SoftStates:
    """One node's knowledge; `own` is its id. Nothing is sent or read here."""

    def __init__(self, own: int, generation: int) -> None:
        assert own > 0 and generation > 0, "a node that gossips has an id and was started"
        self.own = own
        self._generation = generation
        self._version = 0
        self._published_round = 0
        self._round = 0
        #: What was learned last stands last.
        self._known: dict[int, Known] = {}
        self._members: frozenset[int] = frozenset((own,))

    def __getitem__(self, node: int) -> Known | None:
        return self._known.get(node)

    def items(self) -> Iterator[tuple[int, Known]]:
        return iter(self._known.items())

    def keep(self, members: Iterable[int]) -> None:
        """The nodes that have not left, as the metadata lists them; others are forgotten."""
        self._members = frozenset((*members, self.own))
        self._known = {node: known for node, known in self._known.items() if node in self._members}

    # -- the own state ------------------------------------------------------------------------------

    def begin_round(self, state: SoftState, now_s: float) -> int:
        """Publish this node's state when it has changed or is old. The number of the round, from 1 on."""
        self._round += 1
        known = self._known.get(self.own)
        old = self._round - self._published_round >= GOSSIP_REFRESH_ROUNDS
        if known is None or known.state != state or old:
            self._version += 1
            self._published_round = self._round
            assert known is None or known.version < Version(self._generation, self._version), "versions grow"
            self._learn(self.own, Known(Version(self._generation, self._version), state, now_s))
        return self._round

    def _outrank(self, version: Version) -> None:
        """Others hold something newer under this node's name, of a start that it forgot: go beyond that."""
        if version.generation > self._generation:
            self._generation = version.generation + 1
        elif version.generation == self._generation:
            self._version = max(self._version, version.version)
        self._published_round = -GOSSIP_REFRESH_ROUNDS
        assert (self._generation, self._version + 1) > (version.generation, version.version), (
            "what is published next outranks what others hold"
        )

    # -- exchanges ----------------------------------------------------------------------------------

    def syn(self) -> Syn:
        return Syn(tuple(Digest(node, self._known[node].version) for node in self._named()))

    def answer(self, syn: Syn) -> Ack:
        """What the sender of the syn lacks, and what it is asked for."""
        told: list[int] = []
        wanted: list[int] = []
        for digest in syn.digests[:GOSSIP_DIGESTS_MAX]:
            known = self._known.get(digest.node)
            version = known.version if known is not None else _NOTHING
            if version > digest.version:
                told.append(digest.node)
            elif version < digest.version and digest.node in self._members:
                wanted.append(digest.node)
        if len(syn.digests) < GOSSIP_DIGESTS_MAX:  # They are all that the sender knows.
            named = {digest.node for digest in syn.digests}
            told.extend(node for node in self._named() if node not in named)
        return Ack(self._telling(told), tuple(wanted[:GOSSIP_STATES_MAX]))

    def acknowledged(self, ack: Ack, now_s: float) -> Ack2 | None:
        """Take in what an ack brings; what goes back, if anything does."""
        self.told(ack.told, now_s)
        told = self._telling(ack.wanted)
        return Ack2(told) if told else None

    def told(self, states: Sequence[Told], now_s: float) -> None:
        for one in states[:GOSSIP_STATES_MAX]:
            known = self._known.get(one.node)
            if one.node not in self._members or (known is not None and known.version >= one.version):
                continue
            if not believable(one):
                continue
            if one.node == self.own:
                self._outrank(one.version)
            else:
                self._learn(one.node, Known(one.version, one.state, now_s))

    def put(self, node: int, state: SoftState, now_s: float) -> Version:
        """Have a state of another node spread from here, as its own word: newer than all that is known of it
        here. A node that lives outranks what others say of it, as it does with what it forgot."""
        assert node in self._members and node != self.own, "it is about another member"
        version = self.next_version(node)
        assert believable(Told(node, version, state)), "others take it"
        self._learn(node, Known(version, state, now_s))
        return version

    def next_version(self, node: int) -> Version:
        """Newer than all that is known here of another node."""
        known = self._known.get(node)
        last = known.version if known is not None else Version(1, 0)
        return Version(last.generation, last.version + 1)

    def _learn(self, node: int, known: Known) -> None:
        assert node in self._members, "only members have states"
        before = self._known.get(node)
        assert before is None or before.version < known.version, "what is known of a node only grows newer"
        self._known.pop(node, None)
        self._known[node] = known

    def _telling(self, nodes: Sequence[int]) -> tuple[Told, ...]:
        found = ((node, self._known.get(node)) for node in nodes[:GOSSIP_STATES_MAX])
        return tuple(Told(node, known.version, known.state) for node, known in found if known is not None)

    def _named(self) -> list[int]:
        """The nodes a message names: the latest news first, then others in turn, each once."""
        nodes = list(reversed(self._known))
        if len(nodes) <= GOSSIP_DIGESTS_MAX:
            return nodes
        half = GOSSIP_DIGESTS_MAX // 2
        news, rest = nodes[:half], sorted(nodes[half:])
        first = self._round * half % len(rest)
        named = news + (rest[first:] + rest[:first])[: GOSSIP_DIGESTS_MAX - half]
        assert len(set(named)) == len(named) <= GOSSIP_DIGESTS_MAX, "a message names a node once"
        return named

    def validate(self) -> None:
        assert all(node in self._members for node in self._known), "only members have states"
        own = self._known.get(self.own)
        assert own is None or own.version <= Version(self._generation, self._version), "own state is own"
        assert self._published_round + GOSSIP_REFRESH_ROUNDS >= 0, "rounds count up"


def partners(ids: Sequence[int], own: int, round_number: int) -> tuple[int, ...]:
    """With whom `own` exchanges in this round: at most GOSSIP_PARTNERS_MAX, never itself.

    `ids` ascending. The distances in the row of ids double from round to round, so that news reaches
    everybody in a logarithmic number of rounds, and each node is chosen about as often as it chooses; one
    more partner wanders, for those who stand where a doubled distance always finds a dead node.
    """
    assert round_number >= 0, "rounds count up"
    assert all(low < high for low, high in pairwise(ids)), "all nodes stand in the same row"
    others = [node for node in ids if node != own]
    if len(others) <= GOSSIP_PARTNERS_MAX:
        return tuple(others)
    start = sum(node < own for node in others)
    doubled = (1 << round_number % len(others).bit_length()) - 1
    wandering = round_number * _STRIDE
    chosen = {others[(start + step) % len(others)]: None for step in (doubled, wandering)}
    assert own not in chosen, "nobody exchanges with itself"
    return tuple(chosen)[:GOSSIP_PARTNERS_MAX]
