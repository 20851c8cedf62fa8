"""Reads of virtual tables that list named things of keyspaces, such as tables: what is asked for is made.

The partition key is the keyspace's name, the first clustering column the name of the thing; a thing may have
several rows. A read of one name costs that thing's rows, a page of a scan the rows of the page.

Invariant: a read answers what a replica holding all rows would answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from lockstep.schema.clustering import after_prefix
from lockstep.schema.model import Keyspace, Table
from lockstep.server.views.virtual_rows import RowEncoder, VirtualRow
from lockstep.values.limits import VIRTUAL_ROWS_AT_ONCE_MAX
from lockstep.values.rows import Partition, Position, ReadCommand, ReadResult, Row, Slice
from lockstep.values.tokens import token_of


class NamedRows(msgspec.Struct, frozen=True):
    """`keyspaces`: those that are listed. `keyspace`: one of them by name. `things`: all of one, each with a
    `name`, by name. `thing`: one by name. `rows`: of one thing, in any order; of
    several with one key the last counts. `at_once`: how many rows at most are made in one go. `before`: what
    is done before that, told of the things that rows may be made of, and of more."""

    keyspaces: Callable[[], Iterable[Keyspace]]
    keyspace: Callable[[str], Keyspace | None]
    things: Callable[[Keyspace], Sequence[Any]]
    thing: Callable[[Keyspace, str], Any]
    rows: Callable[[Any], Iterable[VirtualRow]]
    at_once: int = VIRTUAL_ROWS_AT_ONCE_MAX
    before: Callable[[Iterator[Any]], Awaitable[None]] | None = None


class NamedReader:
    """Answers reads of one table."""

    def __init__(self, table: Table, source: NamedRows) -> None:
        self._source = source
        self._encoder = RowEncoder(table)
        self._type = self._encoder.clustering_types[0]
        #: Ends every component of a text, and is in none.
        self._end = self._type.component(b"")

    async def prepare(self, command: ReadCommand) -> None:
        """What is to be done before a read, which has to follow at once."""
        if self._source.before is not None:
            await self._source.before(self._things(command))

    def _things(self, command: ReadCommand) -> Iterator[Any]:
        for _, _, keyspace, edge in self._asked(command):
            for part in sorted(command.slices, key=attrgetter("start"), reverse=command.reverse):
                yield from self._between(keyspace, _behind(part, edge, command.reverse), command.reverse)

    def read(self, command: ReadCommand) -> ReadResult:
        """As many rows as are made at once; `more` when it stopped there or at the command's limit."""
        room = self._source.at_once
        if command.row_limit > 0:
            room = min(room, command.row_limit)
        partitions: list[Partition] = []
        for token, key, keyspace, edge in self._asked(command):
            if room == 0:
                last = partitions[-1]
                return ReadResult(tuple(partitions), True, Position(last.token, last.key))
            bound = min(room, command.partition_row_limit or room)
            rows: list[Row] = []
            for row in self._rows(keyspace, command, edge):
                if len(rows) == bound:
                    break
                rows.append(row)
            else:
                bound = 0
            if rows:
                partitions.append(Partition(token, key, None, (), None, tuple(rows)))
                room -= len(rows)
            if bound and bound != command.partition_row_limit:
                return ReadResult(tuple(partitions), True, Position(token, key, rows[-1].clustering))
        return ReadResult(tuple(partitions))

    def _asked(self, command: ReadCommand) -> Iterator[tuple[int, bytes, Keyspace, bytes | None]]:
        """(token, key, keyspace, clustering behind which to go on) of the partitions that are asked for."""
        if command.key is not None:
            keyspace = self._source.keyspace(command.key.decode(errors="replace"))
            found = [(token_of(command.key), command.key, keyspace)] if keyspace is not None else []
        else:
            keys = [(found.name.encode(), found) for found in self._source.keyspaces()]
            listed = [(token_of(key), key, keyspace) for key, keyspace in keys]
            found = sorted(
                (one for one in listed if command.left < one[0] <= command.right), key=lambda one: one[:2]
            )
        after = command.after
        for token, key, keyspace in found:
            if after is None or (after.token, after.key) < (token, key):
                yield token, key, keyspace, None
            elif after.key == key and after.clustering is not None:
                yield token, key, keyspace, after.clustering

    def _rows(self, keyspace: Keyspace, command: ReadCommand, edge: bytes | None) -> Iterator[Row]:
        """Rows in the order of the command that lie in its slices and behind the edge."""
        reverse = command.reverse
        for part in sorted(command.slices, key=attrgetter("start"), reverse=reverse):
            for thing in self._between(keyspace, _behind(part, edge, reverse), reverse):
                rows = {row.clustering: row for row in map(self._encoder.row, self._source.rows(thing))}
                for at in sorted(rows, reverse=reverse):
                    if part.contains(at) and (edge is None or (at < edge if reverse else at > edge)):
                        yield rows[at]
                        edge = at

    def _between(self, keyspace: Keyspace, part: Slice, reverse: bool) -> Iterable[Any]:
        """The things that have rows within a slice, and maybe one more at its beginning."""
        end = part.start.find(self._end)
        if end >= 0 and part.end and part.end <= after_prefix(part.start[: end + len(self._end)]):
            name, _ = self._type.take_component(part.start, 0)
            thing = self._source.thing(keyspace, name.decode(errors="replace"))
            return () if thing is None else (thing,)
        things = self._source.things(keyspace)
        first = max(0, bisect_left(things, part.start, key=self._encoded) - 1)
        last = bisect_left(things, part.end, key=self._encoded) if part.end else len(things)
        places = range(first, last)
        return (things[at] for at in (reversed(places) if reverse else places))

    def _encoded(self, thing: Any) -> bytes:
        return self._type.component(thing.name.encode())


def _behind(part: Slice, edge: bytes | None, reverse: bool) -> Slice:
    """The part of a slice that is left behind an edge, which may itself be in it."""
    if edge is None:
        return part
    if not reverse:
        return Slice(max(part.start, edge), part.end)
    upper = edge + b"\x00"
    return Slice(part.start, min(part.end, upper) if part.end else upper)
