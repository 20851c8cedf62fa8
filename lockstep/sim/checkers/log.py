"""LOG-1, LOG-2 and one leader per term, from what nodes say they applied.

Invariant: the monitor sees every applied epoch of every incarnation; it remembers the first value seen
at each epoch, and all later ones must equal it.

LOG-1 on disks: what a power cut would leave of the metadata log begins at or before the newest snapshot.

Invariant: judged by names and bytes that are durable; a segment or snapshot that is not counts as not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.log.digest import state_digest
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.tip import Refused, Tip
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.runtime.disk import SimDisk

_SEGMENT = "metadata/log-"
_SNAPSHOT = "metadata/snapshot-"


def check_metadata_files(name: str, disk: SimDisk) -> None:
    """Raises Violation when the node could not start from its files after a power cut now."""
    files = disk.durable_sizes()
    segments = sorted(_number(path, _SEGMENT) for path in files if path.startswith(_SEGMENT))
    snapshots = sorted(
        _number(path, _SNAPSHOT)
        for path, (durable, whole) in files.items()
        if path.startswith(_SNAPSHOT) and not path.endswith(".part") and durable == whole
    )
    newest = snapshots[-1] if snapshots else 0
    if segments and segments[0] > newest + 1:
        raise Violation(
            "LOG-1",
            f"{name}: after a power cut the log would begin at epoch {segments[0]}, the newest snapshot is "
            f"of {newest or 'none'}",
        )


def _number(path: str, prefix: str) -> int:
    digits = path.removeprefix(prefix)
    return int(digits) if digits.isdecimal() else 0


#: Told (value before, value after, label of the process) when an epoch is first applied anywhere.
FirstApplied = Callable[[ClusterMetadata, ClusterMetadata, str], None]


#: (process name, value, epoch) -> the values after it up to the epoch, from that node's own log. A node
#: that crashed between a sync and its telling is the first to be at several epochs when it is back.
Replayed = Callable[[str, ClusterMetadata, int], Iterable[ClusterMetadata]]


def _nothing_replayed(_name: str, _value: ClusterMetadata, _epoch: int) -> Iterable[ClusterMetadata]:
    return ()


class LogMonitor:
    """`values[e]` is the value of epoch e, `digests[e]` its digest; `seen` the newest epoch each node (by
    process name) applied."""

    def __init__(self, first_applied: FirstApplied, replayed: Replayed = _nothing_replayed) -> None:
        self.values: list[ClusterMetadata] = [empty_cluster()]
        self.seen: dict[str, int] = {}
        #: (group, term) -> who led it.
        self.leaders: dict[tuple[int, int], str] = {}
        self.digests: list[bytes] = [b""]
        #: The newest epoch that each incarnation (name.number) applied.
        self.incarnations: dict[str, int] = {}
        self._first_applied = first_applied
        self._replayed = replayed

    def __call__(self, _now_ns: int, label: str, kind: str, facts: dict[str, Any]) -> None:
        if kind == "metadata.applied":
            cluster = facts["cluster"]
            self.applied(label, cluster, state_digest(cluster), installed=facts["installed"])
        elif kind == "raft.role" and facts["role"] == "leader":
            self.elected(label, facts["group"], facts["term"])

    def forget(self, name: str) -> None:
        """The node's disk was emptied on purpose: it begins anew."""
        self.seen.pop(name, None)

    def elected(self, label: str, group: int, term: int) -> None:
        former = self.leaders.setdefault((group, term), label)
        if former != label:
            raise Violation("LOG-1", f"{former} and {label} both lead term {term} of group {group}")

    def applied(
        self, label: str, cluster: ClusterMetadata, digest: bytes, *, installed: bool = False
    ) -> None:
        """`label` is name.incarnation. `installed`: a snapshot, which may cross a gap but never go back."""
        name, epoch = label.rpartition(".")[0], cluster.epoch
        if label not in self.incarnations:
            before = self.seen.get(name, 0)
            if epoch < before:
                raise Violation("LOG-1", f"{label} is back at epoch {epoch}, after {before}")
        elif epoch != self.incarnations[label] + 1 and not (installed and epoch > self.incarnations[label]):
            raise Violation("LOG-1", f"{label} applied {epoch} after {self.incarnations[label]}")
        self.incarnations[label] = epoch
        self.seen[name] = max(epoch, self.seen.get(name, 0))
        if epoch < len(self.values):
            self._same(label, cluster, digest)
            return
        for value in self._replayed(name, self.values[-1], epoch - 1):
            self._first(label, value, state_digest(value))
        if epoch > len(self.values):
            raise Violation("LOG-1", f"{label} is at epoch {epoch}; nobody applied {len(self.values)}")
        self._first(label, cluster, digest)

    def _first(self, label: str, cluster: ClusterMetadata, digest: bytes) -> None:
        before = self.values[-1]
        self.values.append(cluster)
        self.digests.append(digest)
        self._first_applied(before, cluster, label)

    def _same(self, label: str, cluster: ClusterMetadata, digest: bytes) -> None:
        epoch = cluster.epoch
        if epoch == 0:
            return
        if cluster.hash != self.values[epoch].hash:
            raise Violation("LOG-1", f"{label} applied another entry at epoch {epoch}")
        if digest != self.digests[epoch]:
            raise Violation("LOG-1", f"{label} has another state at epoch {epoch}")


class Submitted(msgspec.Struct, kw_only=True):
    """One submission of the harness. outcome: ok (then `epoch` is set), unknown, rejected or failed.

    `base_epoch` was there before it was first sent; `refusals` are (epoch it was judged at, text).
    """

    entry_id: bytes
    outcome: str
    epoch: int = 0
    kind: int = 0
    body: bytes = b""
    base_epoch: int = 0
    refusals: list[tuple[int, str]] = []


def check_submissions(ids: Iterable[tuple[int, bytes]], submissions: Iterable[Submitted]) -> None:
    """LOG-2 over (epoch, entry id) of the whole log."""
    at: dict[bytes, int] = {}
    for epoch, entry_id in ids:
        if entry_id in at:
            raise Violation("LOG-2", f"one entry id at epochs {at[entry_id]} and {epoch}")
        at[entry_id] = epoch
    for submission in submissions:
        found = at.get(submission.entry_id)
        if submission.outcome == "ok" and found != submission.epoch:
            raise Violation("LOG-2", f"acknowledged at epoch {submission.epoch}, found at {found}")
        if submission.outcome in ("rejected", "failed") and found is not None:
            raise Violation("LOG-2", f"{submission.outcome}, but in the log at epoch {found}")
        if found is not None and found <= submission.base_epoch:
            raise Violation("LOG-2", f"at epoch {found}, before it was sent at {submission.base_epoch}")


def check_refusals(
    values: Sequence[ClusterMetadata], submissions: Iterable[Submitted], registry: Registry
) -> int:
    """LOG-2: a refusal holds at the epoch it names, which is none older than what was known when it was
    first asked for (a repeated question has the first answer). The number of refusals judged."""
    judged = 0
    for submission in submissions:
        for epoch, text in submission.refusals:
            if epoch < submission.base_epoch:
                raise Violation(
                    "LOG-2", f"refused at epoch {epoch}, asked at {submission.base_epoch}: {text}"
                )
            if epoch >= len(values):
                raise Violation("LOG-2", f"refused at epoch {epoch}, which nobody has reached: {text}")
            outcome = Tip(values[epoch], registry).judge(
                submission.entry_id, submission.kind, submission.body, "checker", 0, 0
            )
            if not isinstance(outcome, Refused):
                raise Violation("LOG-2", f"refused at epoch {epoch}, where it is in order: {text}")
            judged += 1
    return judged
