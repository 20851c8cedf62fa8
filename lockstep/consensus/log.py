"""The group's log as this member holds it: entries in memory behind a compacted base.

Owns: entries, the commit index, how far entries were handed out to persist and to apply. Invariant:
indices are dense from base_index + 1, terms never fall, the commit index never falls, and nothing at or below
it is ever truncated.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.consensus.configuration import ENTRY_OVERHEAD_BYTES
from lockstep.consensus.messages import Entry


class Log:
    __slots__ = (
        "_batch",
        "_entries",
        "base_index",
        "base_term",
        "commit_index",
        "handed_index",
        "last_index",
        "unsaved",
    )

    def __init__(self, base_index: int, base_term: int, entries: Sequence[Entry]) -> None:
        assert base_index >= 0 and base_term >= 0, "a log begins at 0"
        assert (base_index == 0) == (base_term == 0), "only what was never there has no term"
        self.base_index = base_index
        self.base_term = base_term
        self._entries: list[Entry] = []
        #: The last batch cut, (first, last_index, bytes_max, entries): all members get the same ones.
        self._batch: tuple[int, int, int, tuple[Entry, ...]] | None = None
        self.last_index = base_index
        self.commit_index = base_index
        #: Last index handed out to be applied.
        self.handed_index = base_index
        #: First index not yet handed out to be persisted.
        self.unsaved = base_index + 1
        self.extend(entries)
        self.unsaved = self.last_index + 1

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """None for what was compacted away or is not there yet."""
        offset = index - self.base_index
        if offset > 0:
            return self._entries[offset - 1].term if index <= self.last_index else None
        return self.base_term if offset == 0 else None

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def entry(self, index: int) -> Entry:
        """AssertionError when the index is compacted away or not there yet."""
        assert self.base_index < index <= self.last_index, f"no entry {index} here"
        return self._entries[index - self.base_index - 1]

    def entries(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries first..last, both inside; empty when first > last."""
        assert self.base_index < first and last <= self.last_index, f"no entries {first}..{last} here"
        return tuple(self._entries[first - self.base_index - 1 : last - self.base_index])

    def batch(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on that weigh at most bytes_max; at least one when there is one."""
        assert self.base_index < first <= self.last_index + 1, f"no entries from {first} on here"
        remembered = self._batch
        if remembered is not None and remembered[:3] == (first, self.last_index, bytes_max):
            return remembered[3]
        batch = self._cut_batch(first, bytes_max)
        self._batch = (first, self.last_index, bytes_max, batch)
        return batch

    def _cut_batch(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        start = first - self.base_index - 1
        size = 0
        for position in range(start, len(self._entries)):
            size += len(self._entries[position].data) + ENTRY_OVERHEAD_BYTES
            if size > bytes_max and position > start:
                return tuple(self._entries[start:position])
        return tuple(self._entries[start:])

    def is_current(self, last_index: int, last_term: int) -> bool:
        """Whether a log ending so holds everything that this one could make committed."""
        own_term = self.last_term
        return last_term > own_term or (last_term == own_term and last_index >= self.last_index)

    def new_part(self, entries: Sequence[Entry]) -> int:
        """Position of the first of these consecutive entries that is missing or differs here."""
        for position, entry in enumerate(entries):
            if self.term_at(entry.index) != entry.term:
                return position
        return len(entries)

    def agreement_limit(self, index: int, term: int) -> tuple[int, int]:
        """(index, term) of the last entry here at or below `index` whose term is not above `term`.

        A log whose entry at `index` has `term` cannot agree with this one beyond it, because terms never
        fall along a log. What was compacted is committed, so the base is the lowest answer.
        """
        index = min(index, self.last_index)
        while index > self.base_index:
            own_term = self._entries[index - self.base_index - 1].term
            if own_term <= term:
                return index, own_term
            index -= 1
        return self.base_index, self.base_term

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow the last one."""
        first, last = self.last_index + 1, self.last_index + len(entries)
        indices = [entry.index for entry in entries]
        assert indices == list(range(first, last + 1)), f"entries {indices} where {first}..{last} must follow"
        terms = [self.last_term, *[entry.term for entry in entries]]
        assert terms == sorted(terms), f"terms fall along {terms} from {first} on"
        self._entries.extend(entries)
        self.last_index = last

    def truncate(self, last_index: int) -> None:
        """Drop every entry after `last_index`."""
        assert last_index >= self.commit_index, f"cut at {last_index} below commit {self.commit_index}"
        assert last_index >= self.handed_index, "an applied entry cannot be cut"
        del self._entries[last_index - self.base_index :]
        self._batch = None
        self.last_index = last_index
        self.unsaved = min(self.unsaved, last_index + 1)

    def commit_to(self, index: int) -> bool:
        """Raise the commit index; False when it stays. It must lie within the log."""
        if index <= self.commit_index:
            return False
        assert index <= self.last_index, (
            f"commit {index} beyond the last entry {self.last_index}: entries were lost"
        )
        self.commit_index = index
        return True

    def take_unsaved(self) -> tuple[Entry, ...]:
        """Entries to persist that were not handed out yet."""
        if self.unsaved > self.last_index:
            return ()
        taken = self.entries(self.unsaved, self.last_index)
        self.unsaved = self.last_index + 1
        return taken

    def take_committed(self, durable_index: int) -> tuple[Entry, ...]:
        """Entries to apply that were not handed out yet: committed, and durable here."""
        last = min(self.commit_index, durable_index)
        if last <= self.handed_index:
            return ()
        taken = self.entries(self.handed_index + 1, last)
        self.handed_index = last
        return taken

    def compact(self, base_index: int) -> None:
        """Forget the entries up to base_index, which must be applied."""
        assert base_index <= self.handed_index, "only applied entries may be forgotten"
        if base_index <= self.base_index:
            return
        base_term = self.term_at(base_index)
        assert base_term is not None
        assert base_term >= self.base_term, "terms fall along the log"
        assert self.unsaved > base_index, "entries are forgotten that were never persisted"
        del self._entries[: base_index - self.base_index]
        self._batch = None
        self.base_index, self.base_term = base_index, base_term

    def reset(self, base_index: int, base_term: int) -> None:
        """Replace everything by a snapshot that ends beyond the commit index."""
        assert base_index > self.commit_index, "a snapshot must not take the commit index back"
        assert base_term >= (self.term_at(self.commit_index) or 0), "a snapshot of an older term"
        self._entries = []
        self._batch = None
        self.base_index, self.base_term = base_index, base_term
        self.last_index = self.commit_index = self.handed_index = base_index
        self.unsaved = base_index + 1

    def validate(self) -> None:
        assert self.last_index == self.base_index + len(self._entries), "the last index is off"
        assert self.base_index <= self.handed_index <= self.commit_index <= self.last_index, "indices cross"
        assert self.base_index < self.unsaved <= self.last_index + 1, "the unsaved mark is outside the log"
        term = self.base_term
        for index, entry in enumerate(self._entries, self.base_index + 1):
            assert entry.index == index and entry.term >= term, f"the log breaks at {index}"
            term = entry.term
