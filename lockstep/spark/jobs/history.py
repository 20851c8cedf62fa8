"""`history`: every epoch of the metadata log, who changed what, and the proof that its quorums meet.

Invariant: nothing is taken from a node's word: tasks apply the entries to the value that a dump begins with,
verify the hash chain as they go, and check each value by itself and against the one before. An epoch whose
entry the cluster keeps no more is not in the history, and the report says where it begins.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import apply_entry, diff
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.snapshot_file import Dump, load_file
from lockstep.node.kinds import every_kind
from lockstep.server.reports.stories import entry_summary, kind_name
from lockstep.spark.jobs.files import uri
from lockstep.spark.jobs.running import Progress, spread, watched
from lockstep.topology.invariants import violations
from lockstep.values.errors import ConfigurationError, LogTruncated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Epochs of one task: at some milliseconds each, a task runs for seconds.
EPOCHS_PER_TASK: Final = 500
#: Places of the metadata that are named for one entry.
_CHANGES_NAMED_MAX: Final = 5

#: The file of a dump of that epoch, with the entries since the snapshot before it; LogTruncated.
FetchDump = Callable[[int], bytes]


class ProvedEpoch(msgspec.Struct, frozen=True):
    """`at` is when the entry was committed, by the leader's clock. `ranges`: those whose replicas are proved.
    `problems` is empty where everything holds."""

    epoch: int
    at: str
    actor: str
    kind: str
    summary: str
    changed: tuple[str, ...]
    hash: str
    groups: int
    ranges: int
    problems: tuple[str, ...]


class HistoryPlan(msgspec.Struct, frozen=True):
    first: int
    last: int
    dumps: int
    bytes: int
    tasks: int


class HistoryReport(msgspec.Struct, frozen=True):
    first: int
    last: int
    proved: int
    wrong: int
    to: str
    elapsed_s: float
    epochs: tuple[ProvedEpoch, ...]


class Segment(msgspec.Struct, frozen=True):
    """A dump, and the epochs of it that a task proves: `first` to `last`, both included."""

    dump: bytes
    first: int
    last: int


def fetch(dump_of: FetchDump, first: int, last: int) -> list[tuple[bytes, Dump]]:
    """The dumps that hold the entries from `first`, or as far back as any are kept, to `last`; oldest first.

    ConfigurationError when not even the last one is there.
    """
    found: list[tuple[bytes, Dump]] = []
    registry, at = every_kind(), last
    while at >= max(first, 1):
        try:
            data = dump_of(at)
        except LogTruncated:
            break
        dump = load_file([data], registry, f"the dump of epoch {at}")
        if not dump.entries:
            break
        found.append((data, dump))
        at = dump.base.epoch
    if not found:
        raise ConfigurationError(
            f"no entry from {first} to {last} is kept", hint="lockstep cms snapshots list"
        )
    return found[::-1]


def segments(dumps: Sequence[tuple[bytes, Dump]], first: int, last: int) -> list[Segment]:
    """What tasks prove, EPOCHS_PER_TASK each."""
    found = []
    for data, dump in dumps:
        begin, end = max(first, dump.base.epoch + 1), min(last, dump.value.epoch)
        for at in range(begin, end + 1, EPOCHS_PER_TASK):
            found.append(Segment(data, at, min(end, at + EPOCHS_PER_TASK - 1)))
    return found


def plan(dump_of: FetchDump, first: int, last: int) -> HistoryPlan:
    """What `run` would do. Errors as `fetch`."""
    dumps = fetch(dump_of, first, last)
    found = segments(dumps, first, last)
    return HistoryPlan(
        found[0].first, found[-1].last, len(dumps), sum(len(data) for data, _ in dumps), len(found)
    )


def run(
    session: SparkSession, dump_of: FetchDump, first: int, last: int, to: str, progress: Progress
) -> HistoryReport:
    """Prove the epochs; with `to` they are written there as Parquet. Errors as `fetch`."""
    began = time.monotonic()
    progress.phase("fetching the log")
    found = segments(fetch(dump_of, first, last), first, last)
    with watched(session, progress, f"proving epochs {found[0].first} to {found[-1].last}"):
        epochs = tuple(sorted(spread(session, found, proved), key=lambda one: one.epoch))
    if to:
        place = Path(to).expanduser().absolute()
        with watched(session, progress, f"writing {place}"):
            frame(session, epochs).coalesce(1).write.mode("error").parquet(uri(place))
    wrong = sum(bool(one.problems) for one in epochs)
    return HistoryReport(
        epochs[0].epoch, epochs[-1].epoch, len(epochs), wrong, to, time.monotonic() - began, epochs
    )


def frame(session: SparkSession, epochs: Sequence[ProvedEpoch]) -> DataFrame:
    """One row an epoch."""
    rows: list[tuple[Any, ...]] = [
        (
            one.epoch, datetime.datetime.fromisoformat(one.at), one.actor, one.kind, one.summary,
            list(one.changed), one.hash, one.groups, one.ranges, list(one.problems),
        )
        for one in epochs
    ]  # fmt: skip
    return session.createDataFrame(rows, _SCHEMA)


_SCHEMA: Final = (
    "epoch bigint, at timestamp, actor string, kind string, summary string, changed array<string>, "
    "hash string, groups int, ranges int, problems array<string>"
)


def proved(segment: Segment) -> list[ProvedEpoch]:
    """One task: the epochs of its segment. CorruptFile, CannotApply."""
    registry = every_kind()
    dump = load_file([segment.dump], registry)
    value, found = dump.base, []
    for entry in dump.entries:
        if entry.epoch > segment.last:
            break
        before, value = value, apply_entry(value, entry, registry)
        if entry.epoch >= segment.first:
            found.append(proved_step(before, value, entry))
    return found


def proved_step(before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> ProvedEpoch:
    """What an entry changed, and what is wrong with its value or with the step to it."""
    changed = [one.path for one in diff(before, after) if one.path not in ("epoch", "hash")]
    more = len(changed) - _CHANGES_NAMED_MAX
    named = (*changed[:_CHANGES_NAMED_MAX], *([f"{more} more"] if more > 0 else []))
    rings = after.placements.rings
    at = datetime.datetime.fromtimestamp(entry.commit_time_us / 1e6, datetime.UTC)
    return ProvedEpoch(
        entry.epoch,
        at.isoformat(timespec="milliseconds"),
        entry.actor,
        kind_name(entry.kind),
        entry_summary(every_kind(), entry),
        named,
        after.hash.hex(),
        len(rings),
        sum(len(ring.ranges) for ring in rings),
        tuple(violations(before, after)),
    )
