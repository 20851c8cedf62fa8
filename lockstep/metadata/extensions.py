"""Named values that tools keep in the metadata.

Invariant: immutable; a change costs what it changes, also of the digest, and whatever is listed is sorted by
name. The tree behind the digest lags: it is brought up to date when somebody asks, or after so many changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

import msgspec
from rpds import HashTrieMap, List

from lockstep.metadata.log.comparison import ABSENT, Difference, text_of
from lockstep.metadata.part import Part, collected
from lockstep.values import codec
from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, key_of_text, tree_of

#: Changes that the tree may lack: few enough that bringing it up to date is a short pause.
CHANGES_BEHIND_MAX: Final = 1024
_UNCHANGED: List[str] = List()


class Extensions(msgspec.Struct, frozen=True, dict=True, eq=False):
    """In memory only; `items` is the canonical form, made back by `extensions_of`.

    `base` is the tree of an earlier value, and `changed` names what has been set or removed since.
    """

    by_name: HashTrieMap[str, bytes]
    base: HashTree[bytes]
    changed: List[str]

    @cached_property
    def tree(self) -> HashTree[bytes]:
        tree = self.base
        for name in dict.fromkeys(self.changed):
            key, value = key_of_text(name), self.by_name.get(name)
            if value is not None:
                tree = tree.with_value(key, value, _digest(name, value))
            elif tree.get(key) is not None:
                tree = tree.without(key)
        assert tree.count == len(self.by_name), "what changed since is all in the tree"
        return tree

    @property
    def digest(self) -> bytes:
        return self.tree.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extensions) and self.by_name == other.by_name

    def __hash__(self) -> int:
        return hash(len(self.by_name))

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.by_name))

    def get(self, name: str) -> bytes | None:
        return self.by_name.get(name)

    def items(self) -> list[tuple[str, bytes]]:
        """(name, value), by name."""
        return sorted(self.by_name.items())

    def insert(self, name: str, value: bytes) -> Extensions:
        return self._changed(self.by_name.insert(name, value), name)

    def discard(self, name: str) -> Extensions:
        """Without a name, if it is there."""
        return self._changed(self.by_name.remove(name), name) if name in self.by_name else self

    def _changed(self, by_name: HashTrieMap[str, bytes], name: str) -> Extensions:
        if "tree" in self.__dict__ or len(self.changed) >= CHANGES_BEHIND_MAX:
            return Extensions(by_name, self.tree, _UNCHANGED.push_front(name))
        return Extensions(by_name, self.base, self.changed.push_front(name))


def _digest(name: str, value: bytes) -> bytes:
    return blake(codec.encode((name, value)))


def extensions_of(pairs: Iterable[tuple[str, bytes]]) -> Extensions:
    """From (name, value) pairs with unique names."""
    named = dict(pairs)
    triples = ((key_of_text(name), value, _digest(name, value)) for name, value in named.items())
    return Extensions(HashTrieMap(named), tree_of(triples), _UNCHANGED)


NO_EXTENSIONS = Extensions(HashTrieMap(), EMPTY_TREE, _UNCHANGED)


def _compare(path: str, before: Extensions, after: Extensions) -> Iterator[Difference]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            old_text, new_text = (ABSENT if value is None else text_of(value) for value in (old, new))
            yield Difference(f"{path}[{name}]", old_text, new_text)


EXTENSIONS: Final[Part[Extensions]] = Part(
    name="extensions",
    number=7,
    empty=NO_EXTENSIONS,
    items=lambda value: ((0, named) for named in value.items()),
    kinds=(tuple[str, bytes],),
    builder=collected(lambda items: extensions_of(named for _, named in items)),
    digest=lambda value: value.digest,
    compare=_compare,
)
