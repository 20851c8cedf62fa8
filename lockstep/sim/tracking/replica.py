"""One simulated replica: the room's machines over a disk, and what they send.

Invariant: a step changes the log and stages for the disk; `Replica.write` makes both durable before any
message of the step leaves, so a crash between loses all of a step or only messages.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lockstep.sim.tracking import messages as msg
from lockstep.sim.tracking.store import Mutation, Rows, Store
from lockstep.tracking.bounds import BoundRound, Close, Phase
from lockstep.tracking.held import NOTHING, all_of
from lockstep.tracking.range_log import RangeLog, Source, Verdict, bound_for
from lockstep.tracking.reading import Action, AskData, Bring, TrackedRead
from lockstep.tracking.reconciling import Reconciler, TokenBucket, Urgency
from lockstep.tracking.summaries import Summary, pack

#: Who was not heard of for so long is taken for away, and for longer than the second for long.
SILENT_MS = 1_500
ABSENT_MS = 6_000
#: What one mutation counts for in the bucket.
MUTATION_BYTES = 500

Sent = list[tuple[int, msg.Message]]


class WriteOp(msgspec.Struct):
    mutation: Mutation
    holders: set[int]


class ReadOp(msgspec.Struct):
    partition: str
    floor: Rows
    machine: TrackedRead[Rows]


class Replica:
    """Of one run of a process; `number` counts operations over all runs."""

    def __init__(
        self, node: int, participants: tuple[int, ...], full: frozenset[int], store: Store, now_ms: int
    ) -> None:
        self.node = node
        self.store = store
        self.log = RangeLog(node, participants, store.kept)
        self.peers = tuple(peer for peer in participants if peer != node)
        self.full = full
        self.writes: dict[int, WriteOp] = {}
        self.reads: dict[int, ReadOp] = {}
        self.bound: BoundRound | None = None
        self.given: list[Mutation] = []
        self.facts: dict[str, int] = {}
        self._reconciler = Reconciler(node, self.peers)
        self._bucket = TokenBucket(now_ms)
        self._met_ms = dict.fromkeys(self.peers, now_ms)
        self._waiting: dict[int, set[int]] = {}

    def fact(self, name: str, count: int = 1) -> None:
        self.facts[name] = self.facts.get(name, 0) + count

    def write(self) -> None:
        """All of a step, at once."""
        retired = len(self.store.kept.summary.held.logs) - len(self.log.held.logs)
        if retired > 0:
            self.fact("a log was retired", retired)
        self.store.write(self.log.kept, self.log.reconciled, self.log.cohorts.ids)

    # -- clients ------------------------------------------------------------------------------------

    def begin_write(self, op: int, partition: str, deleted: bool, now_us: int) -> Sent:
        mutation = Mutation(self.log.give(now_us), partition, deleted)
        self.store.stage(mutation)
        self.given.append(mutation)
        self.writes[op] = WriteOp(mutation, {self.node})
        return [(peer, msg.Write(op, mutation)) for peer in self.peers]

    def begin_read(self, op: int, partition: str, floor: Rows, order: tuple[int, ...], now_ms: int) -> Sent:
        machine: TrackedRead[Rows] = TrackedRead(order, self.full, len(order) // 2 + 1, now_ms)
        self.reads[op] = ReadOp(partition, floor, machine)
        return self._actions(op, machine.start())

    def _actions(self, op: int, actions: list[Action]) -> Sent:
        sent: Sent = []
        partition = self.reads[op].partition
        for action in actions:
            if isinstance(action, Bring):
                self.fact("a read brought what lacked")
                sent.append((action.replica, msg.Fetch(op, action.source, action.ids)))
            else:
                sent.append((action.replica, msg.Ask(op, partition, isinstance(action, AskData))))
        return sent

    # -- time ---------------------------------------------------------------------------------------

    def alive(self, now_ms: int, silent_ms: int = SILENT_MS) -> frozenset[int]:
        return frozenset(peer for peer, met in self._met_ms.items() if now_ms - met < silent_ms)

    def tick(self, now_ms: int) -> Sent:
        sent: Sent = []
        for peer in self.peers:
            news = self._reconciler.news(peer, self.log.held, now_ms)
            told = self.log.tell()
            added = NOTHING if news is None else news.added
            told = msgspec.structs.replace(told, summary=Summary(told.summary.floors, added))
            sent.append((peer, msg.Tell(0 if news is None else news.number, told)))
        alive = self.alive(now_ms)
        told_by = {peer: self.log.told_of(peer) for peer in self.peers}
        for source, ids in self._reconciler.fetch(self.log.lacking(), told_by, alive, now_ms).items():
            self.fact("background fetch")
            sent.append((source, msg.Pull(0, ids)))
        for op, read in self.reads.items():
            actions = read.machine.tick(now_ms)
            if actions:
                self.fact("another replica in the place of a silent one")
            sent += self._actions(op, actions)
        self._reconciler.validate()
        return sent

    def collapse(self, now_ms: int) -> None:
        """Without witnesses only: those have no data that ids could go to."""
        live = self.alive(now_ms, ABSENT_MS) | {self.node}
        if len(live) > 1 and len(live) < len(self.peers) + 1 and len(self.full) == len(self.peers) + 1:
            collapsed = self.log.collapse(live)
            if collapsed:
                self.fact("ids went to cohorts", collapsed.count)

    def propose_bound(self, now_us: int) -> Sent:
        if self.bound is None or self.bound.phase in (Phase.RAISED, Phase.REFUSED):
            self.bound = BoundRound(self.log.participants, bound_for(now_us))
        sent: Sent = []
        if self.bound.phase is Phase.CLOSING:
            self._close(self.node, self.bound.until_us, now_us)
        for one in self.bound.due():
            if isinstance(one, Close) and one.replica != self.node:
                sent.append((one.replica, msg.CloseBound(one.until_us)))
        return sent

    def _close(self, proposer: int, until_us: int, now_us: int) -> msg.Closed:
        accepted = self.log.close(until_us, now_us)
        closed = msg.Closed(until_us, accepted, self.log.summary)
        if proposer == self.node and self.bound is not None and self.bound.until_us == until_us:
            self.bound.closed(self.node, accepted, self.log.summary)
        return closed

    def raise_if_due(self) -> Sent:
        """Once the round is over; the own bound with the others'."""
        bound = self.bound
        if bound is None:
            return []
        bound.holds(self.node, self.log.summary)
        if bound.phase is not Phase.RAISED:
            return []
        self.bound = None
        self.log.raise_bound(bound.until_us)
        self.fact("a bound was raised")
        return [(peer, msg.Raised(bound.until_us)) for peer in self.peers]

    # -- messages -----------------------------------------------------------------------------------

    def receive(self, source: int, message: msg.Message, now_ms: int, now_us: int) -> Sent:
        if source in self._met_ms:
            self._met_ms[source] = now_ms
        handlers: dict[type, Callable[..., Sent]] = {
            msg.Write: self._on_write,
            msg.Written: self._on_written,
            msg.Tell: self._on_tell,
            msg.Heard: self._on_heard,
            msg.Pulled: self._on_pulled,
            msg.Ask: self._on_ask,
            msg.Fetch: self._on_fetch,
            msg.Closed: self._on_closed,
        }
        if isinstance(message, msg.CloseBound):
            return [(source, self._close(source, message.until_us, now_us))]
        if isinstance(message, msg.Raised):
            self.log.raise_bound(message.until_us)
            return []
        if isinstance(message, msg.Pull):
            return self._on_pull(source, message, now_ms)
        if isinstance(message, msg.Answer):
            return self._on_answer(source, message, now_ms)
        return handlers[type(message)](source, message)

    def _on_write(self, source: int, message: msg.Write) -> Sent:
        verdict = self.log.take(message.mutation.given, Source.COORDINATOR)
        if verdict is Verdict.TAKEN:
            self.store.stage(message.mutation)
        self.fact(f"write {verdict.value}")
        return [(source, msg.Written(message.op, message.mutation.given, verdict))]

    def _on_written(self, source: int, message: msg.Written) -> Sent:
        op = self.writes.get(message.op)
        # A late one has the giver, from whom it is delivered: it counts once the replica tells of it.
        if op is not None and message.verdict is not Verdict.LATE:
            op.holders.add(source)
        return []

    def _on_tell(self, source: int, message: msg.Tell) -> Sent:
        self._reconciler.met(source, message.told.start)
        self.log.hear(message.told)
        for op in self.writes.values():
            if self.log.told_of(source).contains(op.mutation.given):
                op.holders.add(source)
        if self.bound is not None:
            self.bound.holds(source, Summary(message.told.summary.floors, self.log.told_of(source)))
        return [(source, msg.Heard(message.number, self.log.start))]

    def _on_heard(self, source: int, message: msg.Heard) -> Sent:
        if message.number:
            self._reconciler.acknowledged(source, message.number)
        return []

    def _on_pull(self, source: int, message: msg.Pull, now_ms: int) -> Sent:
        found = [one for one in self.store.journal.values() if message.ids.contains(one.given)]
        bulks = tuple(bulk for bulk in self.store.bulks if bulk.ids.intersection(message.ids))
        size = len(pack(Summary((), all_of(bulk.ids for bulk in bulks)))) + MUTATION_BYTES * len(found)
        urgency = Urgency.READ if message.op else Urgency.BACKGROUND
        if not self._bucket.take(now_ms, size, urgency):
            self.fact("the bucket was empty")
            return []
        if bulks:
            self.fact("a cohort's data was sent")
        return [(source, msg.Pulled(message.op, tuple(found), bulks))]

    def _on_pulled(self, source: int, message: msg.Pulled) -> Sent:
        for mutation in message.mutations:
            taken = self.log.take(mutation.given, Source.DELIVERY) is Verdict.TAKEN
            self.fact("shipped and lacking" if taken else "shipped and known")
            if taken:
                self.store.stage(mutation)
        for bulk in message.bulks:
            if not self.log.summary.covers(Summary((), bulk.ids)):
                self.log.take_all(bulk.ids)
                self.store.stage_bulk(bulk)
                self.fact("a cohort's data was taken")
        self._reconciler.fetched(source)
        if not message.op:
            return []
        return [
            (reader, msg.Answer(message.op, self.log.summary, None))
            for reader in sorted(self._waiting.pop(message.op, ()))
        ]

    def _on_ask(self, source: int, message: msg.Ask) -> Sent:
        rows = self.store.read(message.partition) if message.data else None
        return [(source, msg.Answer(message.op, self.log.summary, rows))]

    def _on_fetch(self, source: int, message: msg.Fetch) -> Sent:
        rest = self.log.summary.lacking(Summary((), message.ids))
        if not rest:
            return [(source, msg.Answer(message.op, self.log.summary, None))]
        self._waiting.setdefault(message.op, set()).add(source)
        return [(message.source, msg.Pull(message.op, rest))]

    def _on_answer(self, source: int, message: msg.Answer, now_ms: int) -> Sent:
        read = self.reads.get(message.op)
        if read is None:
            return []
        if message.rows is None:
            return self._actions(message.op, read.machine.summary(source, message.told, now_ms))
        return self._actions(message.op, read.machine.data(source, message.rows, message.told, now_ms))

    def _on_closed(self, source: int, message: msg.Closed) -> Sent:
        if self.bound is not None and self.bound.until_us == message.until_us:
            self.bound.closed(source, message.accepted, message.told)
        return []
