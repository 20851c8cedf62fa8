"""Blocking read repair: what a read returns is held by enough replicas before it is returned.

Invariant: a repair is planned when it is sent, carries that epoch and is judged by replicas like any
write; it succeeds when the replicas that held everything already, together with those that acknowledged,
satisfy a write of the read's level under the newest plan. So a later read of the level sees it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lockstep.metadata.purging import purge_before_s
from lockstep.replication import verbs
from lockstep.replication.merging import lacking
from lockstep.replication.messages import ReadReply, WriteRequest
from lockstep.replication.plans import Plan, Target
from lockstep.replication.speculation import ExtraRequests, Latencies, Policy
from lockstep.replication.writes import Told, Write, Writes, settle
from lockstep.storage.difference import repair_mutation
from lockstep.storage.purgeable import partition_left
from lockstep.values.codec import encode
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


class RepairWrite(Write):
    """Sends each replica that answered what it lacks, and others the whole when those do not suffice."""

    __slots__ = ("_additional", "_parts", "_started_s")
    noted_as = "read-repair"

    #: What a read saw to be lacking is no write of a client: the next read sees it again.
    leaves_hints = False

    def __init__(
        self,
        owner: Writes,
        plan: Plan,
        whole: Mutation,
        parts: dict[NodeId, Mutation],
        holders: dict[NodeId, int],
        deadline_s: float,
        told: Told,
        additional: Additional,
    ) -> None:
        super().__init__(owner, plan, whole, deadline_s, "SIMPLE", told)
        self._verb = verbs.READ_REPAIR
        self._additional = additional
        self._started_s = owner.runtime.clock.monotonic_s()
        self._parts = parts
        self._accepted.update(holders)

    def start(self) -> None:
        """Ask the replicas seen to lack something; all others only when those cannot suffice, or later."""
        reachable = {*self._counting(), *self._parts}
        if not self._plan.satisfied_by(sorted(reachable)):
            self._send_missing()
            return
        for target in self._plan.targets:
            if target.node in self._parts:
                self._outstanding[target.node] = 1
                if target.node == self._owner.own_id():
                    self.apply_here(target)
                else:
                    self._send((target,))
        if self._retry is None and not self.done:
            policy, table_id = self._additional.policy, self._mutation.table_id
            left_s = self.deadline_s - self._started_s
            wait_s = self._additional.latencies.wait_s(table_id, policy, left_s)
            if wait_s is not None:
                self._retry = asyncio.get_running_loop().call_later(wait_s, self._ask_others)
        self._judge()

    def _ask_others(self) -> None:
        self._additional.counters.repairs_extended += 1
        self._try_again()

    def _end(self, error: LockstepError | None) -> None:
        if error is None or isinstance(error, WriteTimeout):
            took_s = self._owner.runtime.clock.monotonic_s() - self._started_s
            self._additional.latencies.add(self._mutation.table_id, took_s)
        super()._end(error)

    def _still_fits(self) -> bool:
        # Cells of dropped columns are repaired like others: nobody sees them.
        return True

    def _request_for(self, target: Target) -> WriteRequest:
        part = self._parts.get(target.node)
        if part is None:
            return self._request
        return WriteRequest(self._plan.epoch, self._plan.needs_epoch, part)

    def _send(self, targets: Sequence[Target]) -> None:
        whole = [target for target in targets if target.node not in self._parts]
        if whole:
            super()._send(whole)
        for target in targets:
            if target.node in self._parts:
                body = encode(self._request_for(target))
                self._owner.internode.submit(target.address, self._verb, body, self.deadline_s, self, target)

    def _prepare(self) -> None:
        # Under a newer plan a replica may have been emptied since it answered: it gets the whole.
        self._parts = {}
        super()._prepare()


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
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        write = RepairWrite(writes, plan, whole, parts, holders, deadline_s, settle(future), additional)
        writes.runtime.probes.reach("read.repaired")
        write.start()
        waiting.append(future)
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
