"""Named values that tools keep in the metadata.

Invariant: immutable; a change costs what it changes, also of the digest, and whatever is listed is sorted by
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from rpds import HashTrieMap

from lockstep.values import codec
from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, key_of_text, tree_of


class Extensions(msgspec.Struct, frozen=True, dict=True):
    """In memory only; `items` is the canonical form, made back by `extensions_of`."""

    by_name: HashTrieMap[str, bytes]
    tree: HashTree[bytes]

    @property
    def digest(self) -> bytes:
        return self.tree.digest

    def __len__(self) -> int:
        return self.tree.count

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
        tree = self.tree.with_value(key_of_text(name), value, _digest(name, value))
        return Extensions(self.by_name.insert(name, value), tree)

    def discard(self, name: str) -> Extensions:
        """Without a name, if it is there."""
        if name not in self.by_name:
            return self
        return Extensions(self.by_name.remove(name), self.tree.without(key_of_text(name)))


def _digest(name: str, value: bytes) -> bytes:
    return blake(codec.encode((name, value)))


def extensions_of(pairs: Iterable[tuple[str, bytes]]) -> Extensions:
    """From (name, value) pairs with unique names."""
    named = dict(pairs)
    triples = ((key_of_text(name), value, _digest(name, value)) for name, value in named.items())
    return Extensions(HashTrieMap(named), tree_of(triples))


NO_EXTENSIONS = Extensions(HashTrieMap(), EMPTY_TREE)
