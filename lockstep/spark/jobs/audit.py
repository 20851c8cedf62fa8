"""`audit`: whether all replicas of a table hold the same, each asked about itself alone.

Every replica counts and hashes what it stores of each bucket of tokens, tombstones and write times included;
only buckets that differ are compared row by row. What is written meanwhile is no difference: an element
counts only where nothing of it was written after the audit began, and where it still differs, in the same
way, when writes that were under way have ended. Digests are made beside the nodes, of a content that each
replica fixed; where there is none, nodes make them of what they hold.

Invariant: a replica is asked by itself and answers from its own store, so no read repair hides a difference
and none is made. A replica that cannot answer is told of, and the audit is not complete then.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from lockstep.documents.status import Placements
from lockstep.replica.merging import merge_answers
from lockstep.scans.bucket_digests import parts
from lockstep.server.admin.replica_content import DIGESTS_PATH, ROWS_PATH, position_text
from lockstep.spark.jobs.elements import Element, Naming, elements_of
from lockstep.spark.jobs.running import Progress, spread, watched
from lockstep.spark.jobs.tables import Access, Described, TableName
from lockstep.spark.replica_digests import FixedReplicas, Wanted, fix_replicas
from lockstep.spark.replica_digests import Told as DigestsTold
from lockstep.values import codec
from lockstep.values.errors import ConfigurationError, LockstepError
from lockstep.values.limits import REPAIR_RANGES_NAMED_MAX
from lockstep.values.node_limits import AUDIT_BUCKETS_MAX
from lockstep.values.rows import Partition, Position, ReadResult
from lockstep.values.tokens import Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS: Final = 4096
BUCKETS_IN_ALL_MAX: Final = 1 << 20
#: Differences that are told: a person reads no more.
DIFFERENCES: Final = 100
#: Longer than any write is under way: `timeouts.write_ms` is 2 s by default.
SETTLE_S: Final = 5.0
_RESULT: Final = codec.decoder(ReadResult)


class Door(Protocol):
    """The admin API of one node; travels to tasks."""

    def get(self, path: str, **query: str | int | None) -> dict[str, Any]: ...


class Audit(msgspec.Struct, frozen=True):
    """What is asked for. `settle_s`: how long after the first look differences are looked at again."""

    table: TableName
    buckets: int = BUCKETS
    differences_max: int = DIFFERENCES
    settle_s: float = SETTLE_S


class AuditPart(msgspec.Struct, frozen=True):
    """A range with its replicas, in buckets of which a task compares the digests."""

    left: int
    right: int
    replicas: tuple[int, ...]
    buckets: int

    @property
    def wanted(self) -> Wanted:
        """What is asked for."""
        return self.left, self.right, self.buckets


class Found(msgspec.Struct, frozen=True):
    """What a task found of one part. `unanswered`: (node, why) of replicas that were not compared. `unread`:
    those of the `unlike` buckets whose rows not all told."""

    part: AuditPart
    rows: tuple[tuple[int, int], ...]
    unlike: tuple[tuple[int, int], ...]
    elements: tuple[Element, ...]
    unanswered: tuple[tuple[int, str], ...]
    unread: tuple[tuple[int, int], ...] = ()


class Told(msgspec.Struct, frozen=True):
    """One element that replicas hold differently. `column` is a name, or what is no column, as `(row
    marker)`. `held`: (node, value as text, write time), None and 0 where the replica has nothing of it."""

    left: int
    right: int
    token: int
    key: dict[str, str]
    column: str
    held: tuple[tuple[int, str | None, int], ...]


class Unanswered(msgspec.Struct, frozen=True):
    left: int
    right: int
    node: int
    why: str


class AuditPlan(msgspec.Struct, frozen=True):
    """`replicas`: (node, ranges) of who is asked."""

    table: str
    epoch: int
    ranges: int
    buckets: int
    tasks: int
    replicas: tuple[tuple[int, int], ...]


class AuditReport(msgspec.Struct, frozen=True):
    """`rows`: (node, rows) that each replica stores, writes where files were compared. `settled`: differences
    of the first look that were gone at the second. `wrong`: the buckets that differ, as (left, right], for a
    repair. `unread`: those whose digests differ, and whose rows not all replicas told: they may differ."""

    table: str
    epoch: int
    equal: bool
    complete: bool
    buckets: int
    rows: tuple[tuple[int, int], ...]
    different: int
    settled: int
    differences: tuple[Told, ...]
    more: bool
    wrong: tuple[tuple[int, int], ...]
    unread: tuple[tuple[int, int], ...]
    unanswered: tuple[Unanswered, ...]
    elapsed_s: float


def divide(placements: Placements, buckets: int) -> list[AuditPart]:
    """The ranges that have replicas to compare, each with its share of the buckets. ConfigurationError."""
    if not 1 <= buckets <= BUCKETS_IN_ALL_MAX:
        raise ConfigurationError(f"{buckets} buckets are not 1 to {BUCKETS_IN_ALL_MAX}")
    found = []
    for placed in placements.ranges:
        width = placed.end - placed.start
        share = max(1, round(buckets * width / (1 << 64)))
        for piece in parts(Range(placed.start, placed.end), min(width, -(-share // AUDIT_BUCKETS_MAX))):
            count = max(1, round(share * (piece.right - piece.left) / width))
            count = min(count, AUDIT_BUCKETS_MAX, piece.right - piece.left)
            # A witness has no rows to be compared.
            keeping = tuple(int(node) for node in placed.reads if node not in placed.witnesses)
            found.append(AuditPart(piece.left, piece.right, keeping, count))
    if not any(len(part.replicas) > 1 for part in found):
        raise ConfigurationError(
            f"each range of {placements.keyspace} has one replica: there is nothing to compare"
        )
    return found


def plan(placements: Placements, wanted: Audit) -> AuditPlan:
    """What `run` would do. ConfigurationError."""
    found = divide(placements, wanted.buckets)
    asked: dict[int, int] = {}
    for part in found:
        for node in part.replicas:
            asked[node] = asked.get(node, 0) + 1
    return AuditPlan(
        wanted.table.text, placements.epoch, len(found), sum(part.buckets for part in found),
        len(tasks(found, 1)), tuple(sorted(asked.items())),
    )  # fmt: skip


def tasks(found: Sequence[AuditPart], cores: int) -> list[tuple[AuditPart, ...]]:
    """Parts together that one task compares: two tasks a core, and neighbours in different ones."""
    count = min(len(found), max(1, 2 * cores))
    return [tuple(found[at::count]) for at in range(count)]


def run(
    session: SparkSession,
    doors: Mapping[int, Door],
    placements: Placements,
    described: Described,
    wanted: Audit,
    progress: Progress,
    access: Access | None = None,
) -> AuditReport:
    """Compare. ConfigurationError; what replicas do not answer is in the report. `access`: how contents are
    fixed; without it nodes are asked about what they hold."""
    fixed = None if access is None else fix_replicas(access.checked(wanted.table))
    try:
        return _run(session, doors, placements, described, wanted, progress, fixed)
    finally:
        if fixed is not None:
            fixed.close()


def _run(
    session: SparkSession,
    doors: Mapping[int, Door],
    placements: Placements,
    described: Described,
    wanted: Audit,
    progress: Progress,
    fixed: FixedReplicas | None,
) -> AuditReport:
    began, began_us = time.monotonic(), time.time_ns() // 1000
    found = divide(placements, wanted.buckets)
    asked = Asking(wanted.table, dict(doors), began_us, fixed)
    chunks = tasks(found, session.sparkContext.defaultParallelism)
    with watched(session, progress, f"digests of {sum(part.buckets for part in found):,} buckets"):
        first = spread(session, chunks, asked.compared)
    suspects = [one for one in first if one.elements]
    held: list[tuple[Found, Element]] = []
    seen = sum(len(one.elements) for one in suspects)
    if suspects:
        progress.phase(f"waiting {wanted.settle_s:g} s for writes under way")
        time.sleep(wanted.settle_s)
        again = [(_narrowed(one),) for one in suspects]
        with watched(session, progress, f"looking again at {seen:,} differences"):
            second = spread(session, again, asked.looked_again)
        held = list(_both(suspects, second))
        first += [one for one in second if one.unanswered]
    unread = tuple(sorted({bucket for one in first for bucket in one.unread}))
    naming = Naming(described)
    told = tuple(_told(one, element, naming) for one, element in held[: wanted.differences_max])
    wrong = sorted({_bucket(one, element) for one, element in held})
    unanswered = tuple(
        dict.fromkeys(
            Unanswered(one.part.left, one.part.right, node, why)
            for one in first
            for node, why in one.unanswered
        )
    )
    rows: dict[int, int] = {}
    for one in first[: len(found)]:
        for node, count in one.rows:
            rows[node] = rows.get(node, 0) + count
    return AuditReport(
        wanted.table.text, placements.epoch, not held and not unread, not unanswered,
        sum(part.buckets for part in found), tuple(sorted(rows.items())), len(held), seen - len(held), told,
        len(held) > wanted.differences_max, tuple(wrong), unread, unanswered, time.monotonic() - began,
    )  # fmt: skip


def repair_ranges(report: AuditReport) -> tuple[tuple[int, int], ...]:
    """What a repair is asked for: the buckets that differ, as one where they touch; () for the whole table
    where those are more than a repair may name."""
    joined: list[tuple[int, int]] = []
    for left, right in report.wrong:
        if joined and joined[-1][1] == left:
            joined[-1] = (joined[-1][0], right)
        else:
            joined.append((left, right))
    return tuple(joined) if len(joined) <= REPAIR_RANGES_NAMED_MAX else ()


class Asking(msgspec.Struct, frozen=True):
    """How tasks ask replicas; `began_us` is when the audit began, by the clock of who drives it. `fixed`:
    what they fixed."""

    table: TableName
    doors: dict[int, Any]
    began_us: int
    fixed: FixedReplicas | None = None

    def compared(self, chunk: Sequence[AuditPart]) -> list[Found]:
        """One task: digests of its parts, and the elements of buckets that differ."""
        told: dict[tuple[int, Wanted], DigestsTold] = {}
        if self.fixed is not None:
            told = self.fixed.compared([(part.wanted, part.replicas) for part in chunk], self._now_s)
        return [self._part(part, told) for part in chunk]

    def looked_again(self, chunk: Sequence[Found]) -> list[Found]:
        """One task: the elements of buckets that differed."""
        return [self._elements(one.part, one.rows, one.unlike, one.unanswered) for one in chunk]

    def _part(self, part: AuditPart, told: Mapping[tuple[int, Wanted], DigestsTold]) -> Found:
        digests: dict[int, DigestsTold] = {}
        unanswered = []
        for node in part.replicas:
            fixed = told.get((node, part.wanted))
            if fixed is not None:
                digests[node] = fixed
                continue
            try:
                answer = self._get(node, DIGESTS_PATH, part.left, part.right, buckets=part.buckets)
            except LockstepError as error:
                unanswered.append((node, error.message))
                continue
            digests[node] = list(zip(answer["digests"], answer["rows"], strict=True))
        rows = tuple((node, sum(count for _, count in of)) for node, of in digests.items())
        ranges = parts(Range(part.left, part.right), part.buckets)
        unlike = tuple(
            (range_.left, range_.right)
            for at, range_ in enumerate(ranges)
            if len({of[at] for of in digests.values()}) > 1
        )
        return self._elements(part, rows, unlike, tuple(unanswered))

    def _elements(
        self,
        part: AuditPart,
        rows: tuple[tuple[int, int], ...],
        unlike: tuple[tuple[int, int], ...],
        unanswered: tuple[tuple[int, str], ...],
    ) -> Found:
        # What is of a whole partition comes with each page of it.
        found: dict[Element, None] = {}
        unread: list[tuple[int, int]] = []
        silent = dict(unanswered)
        nodes = [node for node in part.replicas if node not in silent]
        for left, right in unlike:
            try:
                for results, names in self._pages(nodes, left, right):
                    found |= dict.fromkeys(elements_of(results, names, self.began_us))
            except _NotTold as error:
                unanswered = (*unanswered, (error.node, f"rows of ({left}, {right}]: {error.why}"))
                unread.append((left, right))
        return Found(part, rows, unlike, tuple(found), unanswered, tuple(unread))

    def _pages(
        self, nodes: Sequence[int], left: int, right: int
    ) -> Iterator[tuple[dict[int, ReadResult], dict[int, str]]]:
        """What each node holds of the range, as far as all have told, page after page; names of columns."""
        after: Position | None = None
        while True:
            text = None if after is None else position_text(after)
            results: dict[int, ReadResult] = {}
            names: dict[int, str] = {}
            for node in nodes:
                try:
                    answer = self._get(node, ROWS_PATH, left, right, after=text)
                except LockstepError as error:
                    raise _NotTold(node, error.message) from error
                results[node] = _RESULT.decode(base64.b64decode(answer["content"]))
                names |= {int(column): name for column, name in answer["columns"].items()}
            _, after = merge_answers(list(results.values()), False)
            yield {node: until(result, after) for node, result in results.items()}, names
            if after is None:
                return

    @property
    def _now_s(self) -> int:
        return self.began_us // 1_000_000

    def _get(self, node: int, path: str, left: int, right: int, **more: str | int | None) -> dict[str, Any]:
        door = self.doors.get(node)
        if door is None:
            raise ConfigurationError(f"node {node} is not in the list of nodes")
        found: dict[str, Any] = door.get(
            path, keyspace=self.table.keyspace, table=self.table.table, left=left, right=right,
            now_s=self._now_s, **more,
        )  # fmt: skip
        return found


class _NotTold(Exception):
    """A replica did not answer with rows."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


def until(result: ReadResult, end: Position | None) -> ReadResult:
    """What of an answer lies at or before the place up to which all have told."""
    if end is None:
        return result
    place = (end.token, end.key)
    kept: list[Partition] = []
    for part in result.partitions:
        if (part.token, part.key) > place:
            break
        if (part.token, part.key) == place and end.clustering is not None:
            rows = tuple(row for row in part.rows if row.clustering <= end.clustering)
            kept.append(msgspec.structs.replace(part, rows=rows))
        else:
            kept.append(part)
    return ReadResult(tuple(kept))


def _narrowed(one: Found) -> Found:
    """The buckets of it that have a difference, which are looked at again."""
    return msgspec.structs.replace(one, unlike=tuple(sorted({_bucket(one, each) for each in one.elements})))


def _bucket(one: Found, element: Element) -> tuple[int, int]:
    return next((left, right) for left, right in one.unlike if left < element.place.token <= right)


def _both(first: Sequence[Found], second: Sequence[Found]) -> Iterator[tuple[Found, Element]]:
    """Differences that both looks have, with the same states."""
    for one, other in zip(first, second, strict=True):
        assert one.part == other.part, "answers come in the order of the questions"
        still = dict.fromkeys(other.elements)
        for element in one.elements:
            if element in still:
                yield one, element


def _told(one: Found, element: Element, naming: Naming) -> Told:
    left, right = _bucket(one, element)
    place = element.place
    held = tuple(
        (node, naming.value(place, state), 0 if state is None else state.at_us)
        for node, state in sorted(element.held, key=lambda one: one[0])
    )
    return Told(left, right, place.token, naming.key(place), place.column, held)
