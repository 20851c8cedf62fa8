"""What the proof holds a history against: atomic registers, and rows that are written once.

Every value is written at most once, so a history falls into clusters: a write and the reads that returned
its value. A history is linearizable if and only if no two clusters each have an operation that ended before
one of the other began: in every order one of the two would then be torn apart. Neither timestamps nor
replicas are known here. That reads never go back, and that a client sees its own writes, follows.
Invariant: the check is exact, for registers as for what was written once (`check_kept`).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome

#: Quorum reads are monotonic; of clocks that agree, that makes a register atomic.
_RULE = "REP-2a"
_NEVER_NS = 1 << 62
_SHOWN_MAX = 10


class Access(msgspec.Struct, frozen=True):
    """A write of `value`, or a read that returned it; None is a register that nobody wrote."""

    client: str
    key: str
    writes: bool
    value: str | None
    start_ns: int
    end_ns: int
    outcome: Outcome = Outcome.OK

    def text(self) -> str:
        what = "wrote" if self.writes else "read"
        span = f"[{self.start_ns / 1e9:.6f}, {self.end_ns / 1e9:.6f}]"
        return f"{self.client} {span} {what} {self.key} {self.value or 'nothing'} {self.outcome}"


class _Cluster:
    """`first` ended before all others of the cluster did, `last` began after all others."""

    def __init__(self, access: Access, end_ns: int) -> None:
        self.first = self.last = access
        self.low_ns, self.high_ns = end_ns, access.start_ns

    def add(self, access: Access) -> None:
        if access.end_ns < self.low_ns:
            self.first, self.low_ns = access, access.end_ns
        if access.start_ns > self.high_ns:
            self.last, self.high_ns = access, access.start_ns


def check_atomic(accesses: Iterable[Access]) -> int:
    """The number of judged reads. Raises the first Violation."""
    by_key: dict[str, list[Access]] = {}
    for access in accesses:
        by_key.setdefault(access.key, []).append(access)
    return sum(_check_register(by_key[key]) for key in sorted(by_key))


def _check_register(accesses: Sequence[Access]) -> int:
    writes: dict[str | None, Access] = {}
    for access in accesses:
        if access.writes:
            assert access.value not in writes, "clients never write one value twice"
            writes[access.value] = access
    begin = Access("nobody", accesses[0].key, True, None, -1, -1)
    clusters: dict[str | None, _Cluster] = {None: _Cluster(begin, -1)}
    judged = 0
    for value, write in writes.items():
        if write.outcome is Outcome.OK:
            clusters[value] = _Cluster(write, write.end_ns)
    for read in accesses:
        if read.writes or read.outcome is not Outcome.OK:
            continue
        judged += 1
        if read.value not in clusters:
            clusters[read.value] = _Cluster(_source(read, writes), _NEVER_NS)
        cluster = clusters[read.value]
        if read.value is not None and read.end_ns < writes[read.value].start_ns:
            raise Violation(_RULE, f"{read.text()}, before {writes[read.value].text()}")
        cluster.add(read)
    _check_clusters(list(clusters.values()))
    return judged


def _source(read: Access, writes: dict[str | None, Access]) -> Access:
    """The write of unknown outcome that was seen."""
    write = writes.get(read.value)
    if write is None:
        raise Violation("REP-1", f"{read.text()}, which nobody wrote")
    if write.outcome is Outcome.FAILED:
        raise Violation("REP-1", f"{read.text()}, though {write.text()}")
    return write


def _check_clusters(clusters: list[_Cluster]) -> None:
    # Where an operation ended before another one of its cluster began, nothing else fits in between.
    spanning = sorted((c for c in clusters if c.low_ns < c.high_ns), key=lambda c: c.low_ns)
    for one, other in itertools.pairwise(spanning):
        _check_pair(one, other)
    lows = [cluster.low_ns for cluster in spanning]
    for cluster in clusters:
        if cluster.low_ns >= cluster.high_ns:
            at = bisect.bisect_left(lows, cluster.high_ns)
            if at:
                _check_pair(spanning[at - 1], cluster)


def _check_pair(one: _Cluster, other: _Cluster) -> None:
    if one.low_ns < other.high_ns and other.low_ns < one.high_ns:
        story = sorted(
            {a.text(): a for a in (one.first, one.last, other.first, other.last)}.values(), key=_began
        )
        raise Violation(_RULE, "; ".join(access.text() for access in story))


def _began(access: Access) -> int:
    return access.start_ns


def check_kept(
    acknowledged: Collection[int], refused: Collection[int], unknown: Collection[int], found: Collection[int]
) -> int:
    """REP-1 of rows that are written once: what was acknowledged is found, what was refused is not, and
    nothing else is there. The number of rows found whose outcome was unknown."""
    lost = sorted(set(acknowledged).difference(found))
    if lost:
        raise Violation("REP-1", f"{len(lost)} acknowledged rows are lost: {_some(lost)}")
    there = set(found)
    wrong = sorted(there.intersection(refused))
    if wrong:
        raise Violation("REP-1", f"{len(wrong)} refused rows were written: {_some(wrong)}")
    late = there.intersection(unknown)
    strange = sorted(there.difference(acknowledged, late))
    if strange:
        raise Violation("REP-1", f"nobody wrote {_some(strange)}")
    return len(late)


def _some(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:_SHOWN_MAX])) + (" ..." if len(rows) > _SHOWN_MAX else "")
