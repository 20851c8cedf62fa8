"""Parts of the metadata value: what a room keeps in it, and all that the log must know to carry it along.

A room says of its part how it is named and numbered, what it is before anything was applied, and how it is
checked, hashed, stored and compared. Applying, digests, snapshots, comparisons and dumps go through the parts
of a value and name none of them.

Invariants. Numbers are stable for ever and never reused; they order the parts in digests and snapshots. A
part that an entry did not change is the identical object in the next value. Equal values of a part have equal
items and equal digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from lockstep.metadata.log.comparison import Difference, compare
from lockstep.values import codec
from lockstep.values.hash_tree import blake
from lockstep.values.memo import memo

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: (kind, value): one stored piece of a part. The kind is an index into `Part.kinds`.
Item = tuple[int, Any]
#: Numbers that a snapshot uses for itself.
HEAD_NUMBER: Final = 0
END_NUMBER: Final = 255


class Builder(Protocol[T_co]):
    """Makes a part's value from its stored items, which come in the order in which `items` gave them."""

    def add(self, kind: int, value: Any) -> None:
        """Raises one of AssertionError, LookupError, ValueError when the item cannot come here."""
        ...

    def finish(self) -> T_co: ...


class Part(msgspec.Struct, Generic[T], frozen=True, eq=False, kw_only=True):
    """What there is to know of one part.

    `items` gives the stored pieces of a value, each of the type that `kinds` has for its kind and small
    enough to be encoded at once; `builder` makes the value from them, and `empty` from none. `digest` gives
    32 bytes. `validate(now, before)` asserts what must hold of the part in `now`; it is called when the part
    or one that it `needs` has changed since `before` (None: look at everything), so it may skip what is
    identical.
    `compare(path, before, after)` lists what differs.
    """

    name: str
    number: int
    empty: T
    items: Callable[[T], Iterable[Item]]
    kinds: tuple[Any, ...]
    builder: Callable[[], Builder[T]]
    digest: Callable[[T], bytes]
    validate: Callable[[Parts, Parts | None], None] = lambda now, before: None
    needs: tuple[Part[Any], ...] = ()
    #: Whether items of later kinds follow the one of the first kind that they belong to; else kinds ascend.
    is_nested: bool = False
    compare: Callable[[str, T, T], Iterator[Difference]] = compare

    def set(self, value: T) -> Change:
        """A change for `ClusterMetadata.changed`."""
        return Change(self, value)


class Change(msgspec.Struct, frozen=True, eq=False):
    """Another value of a part; made by `Part.set`, which checks the type."""

    part: Part[Any]
    value: Any


class _Held(msgspec.Struct, frozen=True, dict=True):
    """A part's value, and what is known of it: an unchanged part keeps its digest from value to value."""

    part: Part[Any]
    value: Any

    @cached_property
    def digest(self) -> bytes:
        return self.part.digest(self.value)


class Parts(msgspec.Struct, frozen=True, dict=True):
    """The parts of one value, by number. They are few, and compared and changed with each entry, so a tuple.

    `order` and `places` are the same for all values of a registry: each part, by number, and the numbers of
    it and of what it needs; and where a number is among them.
    """

    held: tuple[_Held, ...]
    order: tuple[tuple[Part[Any], frozenset[int]], ...]
    places: Mapping[int, int]

    def __getitem__(self, part: Part[T]) -> T:
        """KeyError when nobody registered the part."""
        value: T = self.held[self.places[part.number]].value
        return value

    def listed(self) -> tuple[Part[Any], ...]:
        """By number."""
        return tuple(part for part, _ in self.order)

    def changed(self, changes: Iterable[Change]) -> Parts:
        """With other values of parts that are there; the others stay identical."""
        held: list[_Held] | None = None
        for change in changes:
            part = change.part
            place = self.places[part.number]
            known = self.held[place] if held is None else held[place]
            assert known.part is part, f"part {part.number} is {known.part.name}, not {part.name}"
            if known.value is not change.value:
                held = list(self.held) if held is None else held
                held[place] = _Held(part, change.value)
        return self if held is None else Parts(tuple(held), self.order, self.places)

    def is_same(self, other: Parts, part: Part[Any]) -> bool:
        """Whether the part is the identical object in both."""
        place = self.places[part.number]
        return self.held[place].value is other.held[place].value

    def differing(self, other: Parts) -> list[int]:
        """Numbers of the parts that are not the identical object in both. It is asked about each entry."""
        return [
            one.part.number
            for one, known in zip(self.held, other.held, strict=True)
            if one is not known and one.value is not known.value
        ]

    def digests(self) -> tuple[tuple[str, bytes], ...]:
        """(name, digest) by number: where two nodes differ is visible at once."""
        return tuple((held.part.name, held.digest) for held in self.held)

    def validate(self, before: Parts | None = None) -> None:
        """Assert what every part says of itself; since `before`, only where it or what it needs changed."""
        differing = None if before is None else self.differing(before)
        for part, watched in self.order:
            if differing is None or not watched.isdisjoint(differing):
                part.validate(self, before)


class Registered:
    """The parts that a version knows, from the tables of its rooms. Numbers and names are unique.

    `unions`: the structs that stand where items name a protocol as the type of a field."""

    def __init__(
        self, *tables: Sequence[Part[Any]], unions: Mapping[Any, Any] = MappingProxyType({})
    ) -> None:
        self.unions = unions
        parts = sorted((part for table in tables for part in table), key=lambda part: part.number)
        self.by_number: dict[int, Part[Any]] = {part.number: part for part in parts}
        assert len(self.by_number) == len(parts), "a part's number is registered twice"
        assert len({part.name for part in parts}) == len(parts), "a part's name is registered twice"
        for number in self.by_number:
            assert HEAD_NUMBER < number < END_NUMBER, f"snapshots have use for number {number} of their own"
        order = tuple((part, frozenset(one.number for one in (part, *part.needs))) for part in parts)
        places = {part.number: place for place, part in enumerate(parts)}
        self.empty = Parts(tuple(_Held(part, part.empty) for part in parts), order, MappingProxyType(places))


# Parts of the usual shapes


class _Collected(Generic[T]):
    """A builder that keeps the items until the last one has come."""

    def __init__(self, make: Callable[[Sequence[Item]], T]) -> None:
        self._make = make
        self._items: list[Item] = []

    def add(self, kind: int, value: Any) -> None:
        self._items.append((kind, value))

    def finish(self) -> T:
        return self._make(self._items)


def collected(make: Callable[[Sequence[Item]], T]) -> Callable[[], Builder[T]]:
    """The builder of a part that `make` makes from all its items at once."""
    return lambda: _Collected(make)


def digest_of(value: Any) -> bytes:
    """Digest of a value by its canonical bytes."""
    return blake(codec.encode(value))


def element_digest(element: Any) -> bytes:
    """Digest of an immutable struct that has a dict, kept there."""
    return memo(element, "_element_digest", digest_of)


def digest_of_each(elements: Iterable[Any], *more: int) -> bytes:
    """Digest of elements in this order, and of numbers; costs 32 bytes for each that has not changed."""
    return blake(codec.encode((more, b"".join([element_digest(element) for element in elements]))))


def struct_part(name: str, number: int, empty: T, validate: Callable[[T], None] | None = None) -> Part[T]:
    """A part that is one small struct."""

    def made(items: Sequence[Item]) -> T:
        assert len(items) <= 1, f"{name} is one struct"
        return items[0][1] if items else empty

    part: Part[T] = Part(
        name=name,
        number=number,
        empty=empty,
        items=lambda value: ((0, value),),
        kinds=(type(empty),),
        builder=collected(made),
        digest=digest_of,
        validate=lambda now, before: validate(now[part]) if validate is not None else None,
    )
    return part


def tuple_part(
    name: str,
    number: int,
    element: type[T],
    validate: Callable[[Parts, Parts | None], None] = lambda now, before: None,
    needs: tuple[Part[Any], ...] = (),
) -> Part[tuple[T, ...]]:
    """A part that is a tuple of structs with dicts, each stored as an item of its own."""
    return Part(
        name=name,
        number=number,
        empty=(),
        items=lambda values: ((0, value) for value in values),
        kinds=(element,),
        builder=collected(lambda items: tuple(value for _, value in items)),
        digest=digest_of_each,
        validate=validate,
        needs=needs,
    )
