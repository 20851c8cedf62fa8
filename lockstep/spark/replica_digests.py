"""Digests of what each replica of a snapshot holds, made by its readers: for audits.

Invariant: a replica is asked for itself alone, and what it tells is of the content that it fixed. Of ranges
that it does not tell of, for whatever reason, nothing is made up: they are missing. Replicas that store the
same hold the same; where they do not, what is left of their rows decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from lockstep.scans.bucket_digests import parts as split
from lockstep.scans.content_reading import DIGESTS_SCHEMA
from lockstep.scans.messages import BatchHead, DigestsWanted, RowsWanted
from lockstep.spark.options import Options
from lockstep.spark.snapshot_reading import answer_of
from lockstep.spark.snapshots import Locations, Snapshot, close_snapshot, open_snapshot
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.ids import Consistency
from lockstep.values.tokens import Range

#: A range of tokens with the number of its parts, and digest and rows of each.
Wanted: TypeAlias = tuple[int, int, int]
#: No digest: nothing can be told.
Told: TypeAlias = list[tuple[str | None, int]]
#: With the replicas that are to be compared.
Part: TypeAlias = tuple[Wanted, tuple[int, ...]]
#: Of so many parts one is looked at first: where most buckets of it are stored differently, rows of all
#: others are looked at right away.
_PROBED_OF: Final = 8
#: Digests are small; an answer is not to end before its last range.
_ANSWER_BYTES: Final = 1 << 40
#: Replicas that one task asks at a time.
_ASKED_AT_ONCE_MAX: Final = 16
_NOTHING: Final[Mapping[int, int]] = {}


class FixedReplicas(msgspec.Struct, frozen=True):
    """A table's content at its replicas as of about one moment. Travels to tasks."""

    options: Options
    snapshot: Snapshot

    def compared(self, parts: Sequence[Part], now_s: int) -> dict[tuple[int, Wanted], Told]:
        """By node and range, of those that answer, what tells whether buckets are equal: where all replicas
        have the same files, or store the same, digests of that; else of what is left of rows."""
        told = self._of_files(parts)
        others = [part for part in parts if part not in told]
        return dict(self._of_content(others, now_s)) | {
            (node, part[0]): told[part] for part in parts if part in told for node in part[1]
        }

    def _of_files(self, parts: Sequence[Part]) -> dict[Part, Told]:
        """Of those whose replicas have the same table files, as after a load."""
        asked = _by_node({part: [part[0]] for part in parts if len(part[1]) > 1})
        told = self._told(asked, DigestsWanted((), 0, files=True))
        found: dict[Part, Told] = {}
        for part in parts:
            wanted, nodes = part
            each = [told.get((node, wanted)) for node in nodes]
            first = each[0]
            if first is None or any(one != first for one in each) or len(first) != 1 or first[0][0] is None:
                continue
            ((digest, rows),) = first
            # Nobody knows which bucket they are in, but that it is the same one everywhere.
            found[part] = [(digest, rows), *[(digest, 0)] * (wanted[2] - 1)]
        return found

    def _of_content(self, parts: Sequence[Part], now_s: int) -> Iterator[tuple[tuple[int, Wanted], Told]]:
        probed = -(-len(parts) // _PROBED_OF)
        found = self._stored(parts[:probed])
        unlike = sum(map(len, found.unlike.values()))
        rest = parts[probed:]
        if 2 * unlike <= sum(len(told) for told in found.told.values()):
            more = self._stored(rest)
            found.told.update(more.told)
            found.unlike.update(more.unlike)
            rest = ()
        alone: dict[Part, list[Wanted]] = {part: [part[0]] for part in rest}
        for part in parts[: len(parts) - len(rest)]:
            buckets = found.unlike.get(part)
            if buckets is None or 2 * len(buckets) > part[0][2]:
                alone[part] = [part[0]]
                found.told.pop(part, None)
            elif buckets:
                ranges = split(Range(*part[0][:2]), part[0][2])
                alone[part] = [(ranges[at].left, ranges[at].right, 1) for at in buckets]
        return _both(parts, found, alone, self.digests(_by_node(alone), now_s))

    def _stored(self, parts: Sequence[Part]) -> _Stored:
        """Of what replicas store, as it lies."""
        # Each replica counts the rows of some.
        counters = {part: part[1][at % len(part[1])] for at, part in enumerate(parts)}
        asked: dict[int, list[Wanted]] = {}
        counted: dict[int, int] = {}
        for counts in (True, False):
            for part, counter in counters.items():
                for node in part[1]:
                    if (node == counter) is counts:
                        asked.setdefault(node, []).append(part[0])
                        counted[node] = counted.get(node, 0) + counts
        told = self._told(asked, DigestsWanted((), 0, stored=True), counted)
        found = _Stored({}, {})
        for part, counter in counters.items():
            wanted, nodes = part
            each = [told.get((node, wanted)) for node in nodes]
            counts_ = told.get((counter, wanted))
            if counts_ is None or None in each:
                continue
            digests = [[digest for digest, _ in one or ()] for one in each]
            found.unlike[part] = [
                at for at, one in enumerate(zip(*digests, strict=True)) if len(set(one)) > 1
            ]
            found.told[part] = counts_
        return found

    def digests(self, asked: dict[int, list[Wanted]], now_s: int) -> dict[tuple[int, Wanted], Told]:
        """By node and range, of those that answer: of what is left of rows. All nodes work at a time."""
        return self._told(asked, DigestsWanted((), now_s))

    def _told(
        self, asked: dict[int, list[Wanted]], what: DigestsWanted, counted: Mapping[int, int] = _NOTHING
    ) -> dict[tuple[int, Wanted], Told]:
        """`what`, of the ranges that each node is asked for, of so many of which it counts rows."""
        locations = Locations(self.options, self.snapshot)
        places: dict[int, tuple[str, int]] = {}
        for node, ranges in asked.items():
            try:
                if ranges and self._has(node):
                    places[node] = locations.of(node)
            except LockstepError:
                continue
        found: dict[tuple[int, Wanted], Told] = {}
        if not places:
            return found

        def told_by(node: int) -> list[Told]:
            wanted = msgspec.structs.replace(what, ranges=tuple(asked[node]), counted=counted.get(node, 0))
            return self._of(places[node], wanted)

        with ThreadPoolExecutor(min(len(places), _ASKED_AT_ONCE_MAX)) as threads:
            for node, told in zip(places, threads.map(told_by, places), strict=True):
                found |= {(node, one): digests for one, digests in zip(asked[node], told, strict=False)}
        return found

    def _has(self, node: int) -> bool:
        return any(node in part.nodes for part in self.snapshot.ranges)

    def _of(self, place: tuple[str, int], asked: DigestsWanted) -> list[Told]:
        """Of the first of the ranges, as far as the node told before it failed."""
        told: list[Told] = []
        snapshot = self.snapshot
        wanted = RowsWanted(snapshot.session, snapshot.secret, (), _ANSWER_BYTES, digests=asked)
        try:
            for head, body in answer_of(self.options, place, wanted):
                if isinstance(head, BatchHead) and head.size:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(body), DIGESTS_SCHEMA)
                    digests = [one and one.hex() for one in batch.column(0).to_pylist()]
                    told.append(list(zip(digests, batch.column(1).to_pylist(), strict=True)))
        except LockstepError:
            return told
        return told

    def close(self) -> None:
        close_snapshot(self.options, self.snapshot)


class _Stored(msgspec.Struct):
    """By part: what one replica told, and the buckets in which not all store the same."""

    told: dict[Part, Told]
    unlike: dict[Part, list[int]]


def _by_node(alone: Mapping[Part, Sequence[Wanted]]) -> dict[int, list[Wanted]]:
    asked: dict[int, list[Wanted]] = {}
    for (_, nodes), ranges in alone.items():
        for node in nodes:
            asked.setdefault(node, []).extend(ranges)
    return asked


def _both(
    parts: Sequence[Part],
    found: _Stored,
    alone: Mapping[Part, Sequence[Wanted]],
    told: Mapping[tuple[int, Wanted], Told],
) -> Iterator[tuple[tuple[int, Wanted], Told]]:
    """What each replica tells of a part: what all store, and in its place what each was asked for alone."""
    for part in parts:
        wanted, nodes = part
        stored, ranges = found.told.get(part), alone.get(part, ())
        for node in nodes:
            answers = [told.get((node, one)) for one in ranges]
            if None in answers:
                continue
            if stored is None:
                yield (node, wanted), answers[0] or []
                continue
            mine = list(stored)
            for at, answer in zip(found.unlike[part], answers, strict=True):
                ((mine[at]),) = answer or []
            yield (node, wanted), mine


def fix_replicas(options: Options) -> FixedReplicas | None:
    """None where nodes fix no content of the table, as of counters."""
    options = msgspec.structs.replace(options, consistency=Consistency.ONE)
    try:
        return FixedReplicas(options, open_snapshot(options))
    except InvalidRequest:
        return None
