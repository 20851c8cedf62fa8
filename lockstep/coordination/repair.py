"""Blocking read repair: what a read returns is held by enough replicas before it is returned.

Invariant: a repair is planned when it is sent, carries that epoch and is judged by replicas like any
write; it succeeds when the replicas that held everything already, together with those that acknowledged,
satisfy a write of the read's level under the newest plan. So a later read of the level sees it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from lockstep.coordination.driving import again_after
from lockstep.coordination.write_terms import REPAIR
from lockstep.coordination.writes import Write, Writes, settle
from lockstep.metadata.purging import purge_before_s
from lockstep.quorum.plans import Plan
from lockstep.quorum.policies import WRITE
from lockstep.quorum.round import Round, Target
from lockstep.quorum.speculation import ExtraRequests, Latencies, Policy
from lockstep.replica.merging import lacking
from lockstep.replica.messages import ReadReply
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.rows.visible import partition_left
from lockstep.values.errors import LockstepError, ReadFailure, ReadTimeout, WriteFailure, WriteTimeout
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import REPAIRS_AT_ONCE_MAX
from lockstep.values.rows import Mutation, Partition, ReadResult
from lockstep.values.tokens import Range


class Additional:
    """When a repair turns to replicas that did not answer the read: the table's policy, and what it needs."""

    __slots__ = ("counters", "latencies", "policy")

    def __init__(self, policy: Policy, latencies: Latencies, counters: ExtraRequests) -> None:
        self.policy = policy
        self.latencies = latencies
        self.counters = counters


def _begin(
    writes: Writes,
    round_: Round[Plan],
    whole: Mutation,
    parts: Mapping[NodeId, Mutation],
    deadline_s: float,
    additional: Additional,
) -> asyncio.Future[None]:
    """Send each replica that answered what it lacks, and others the whole when those do not suffice."""
    clock, table_id = writes.runtime.clock, whole.table_id
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    began_s, tell = clock.monotonic_s(), settle(future)

    def told(error: LockstepError | None) -> None:
        if error is None or isinstance(error, WriteTimeout):
            additional.latencies.add(table_id, clock.monotonic_s() - began_s)
        tell(error)

    def extended() -> None:
        additional.counters.repairs_extended += 1

    write = Write(writes, round_, whole, deadline_s, told, REPAIR)
    writes.runtime.probes.reach("read.repaired")
    suffices = round_.plan.satisfied_by({*round_.counting(), *parts})
    wait_s = additional.latencies.wait_s(table_id, additional.policy, deadline_s - began_s)
    write.start(parts, asks_others=not suffices)
    if suffices and wait_s is not None:
        again_after(write, wait_s, extended)
    return future


async def repair(
    writes: Writes,
    new_mutation_id: Callable[[], bytes],
    table_id: int,
    merged: Sequence[Partition],
    answers: Sequence[tuple[Target, ReadReply]],
    consistency: Consistency,
    deadline_s: float,
    additional: Additional,
) -> None:
    """Bring what `merged` says to enough replicas. ReadTimeout or ReadFailure when that fails."""
    results = [reply.result for _, reply in answers]
    waiting: list[asyncio.Future[None]] = []
    for part, missing in lacking(_lasting(writes, table_id, merged, results), results):
        plan = writes.plans.write_plan(table_id, part.token, consistency)
        whole = repair_mutation(table_id, part, new_mutation_id())
        parts: dict[NodeId, Mutation] = {}
        holders: dict[NodeId, int] = {}
        for (target, reply), one in zip(answers, missing, strict=True):
            if one is None:
                holders[target.node] = reply.accepted_epoch
            else:
                parts[target.node] = repair_mutation(table_id, one, new_mutation_id())
        round_ = Round(WRITE, plan, holders=holders)
        waiting.append(_begin(writes, round_, whole, parts, deadline_s, additional))
        if len(waiting) >= REPAIRS_AT_ONCE_MAX:
            await _all_done(writes, waiting, consistency)
            waiting = []
    if waiting:
        await _all_done(writes, waiting, consistency)


def _lasting(
    writes: Writes, table_id: int, merged: Sequence[Partition], results: Sequence[ReadResult]
) -> list[Partition]:
    """Partitions in which answers differ by more than what replicas may purge, each at its own time: brought
    back to those that have, it would never be gone from all of them."""
    cluster = writes.plans.cluster
    table = cluster.table(table_id)
    if table is None:
        return list(merged)
    now_s = writes.runtime.clock.wall_us() // 1_000_000
    known = [{(p.token, p.key): p for p in result.partitions} for result in results]
    found: list[Partition] = []
    for partition in merged:
        token, key = partition.token, partition.key
        before_s = purge_before_s(cluster, table, Range(token - 1, token), now_s)
        nothing = Partition(token, key)
        left = partition_left(partition, before_s)
        if any(partition_left(source.get((token, key), nothing), before_s) != left for source in known):
            found.append(partition)
        else:
            writes.reach("repair.purged_alone")
    return found


async def _all_done(writes: Writes, waiting: list[asyncio.Future[None]], consistency: Consistency) -> None:
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, WriteTimeout):
            writes.reach("read.repair_timed_out")
            raise ReadTimeout(consistency, outcome.received, outcome.required, True) from outcome
        if isinstance(outcome, WriteFailure):
            writes.reach("read.repair_failed")
            failure = ReadFailure(
                consistency, outcome.received, outcome.required, outcome.failures, True, outcome.reasons
            )
            failure.message = outcome.message
            raise failure from outcome
        if isinstance(outcome, BaseException):
            raise outcome
