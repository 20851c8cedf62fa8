"""A node's member of the ring: what reaches it, one thing after another, and what comes of that.

Mail, time, changes to propose and entries that were applied here are steps of `ring.member`. Invariant: each
step is carried out whole before the next one: what it found agreed on is applied here, then what the member
keeps is written, then its mail is sent. What other members agreed on comes as every entry does, from peers
(`node.log.catch_up`), and the member is told of it once it is applied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from lockstep.documents.ring import Pending, Proposing, RingReport
from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ring_entries import EndRing
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.tip import Appended, Duplicate, Expired, Refused, Tip
from lockstep.node.configuration import split_address
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import Submit
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.voters import Voters, designated
from lockstep.node.processors.base import TERM, expired
from lockstep.node.ring.carrying import (
    carried_by,
    entry_in,
    judge,
    name_of,
    proposal_name,
    ring_of,
)
from lockstep.node.ring.messages import RingMail
from lockstep.node.ring.processor import (
    RingProcessor,
    Waiting,
    blocked,
    own_name,
    silent,
)
from lockstep.node.ring.ring_file import RingFile
from lockstep.ring.limits import RING_ASK_MS
from lockstep.ring.member import Effects, Ended, Outcome, RingMember
from lockstep.ring.messages import Deltas, Proposal, Summary, Whole
from lockstep.ring.ring import Delta, Ring
from lockstep.values.codec import encode
from lockstep.values.errors import (
    LeadershipLost,
    LockstepError,
    Overloaded,
    PreconditionError,
    Rejected,
)
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import RING_INBOX_MAX, RING_REMEMBERED_MAX

#: How often a member is told that time has passed: well below the pause between two repetitions.
TICK_MS: Final = 100
_DRAWS: Final = 1 << 30

Step = Callable[[RingMember, int], Effects]


class RingService:
    """`fail(error)` is called when the node must not go on."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        voters: Voters,
        fail: Callable[[LockstepError], None],
    ) -> None:
        self._runtime = context.runtime
        self._context = context
        self._state = state
        self._fail = fail
        self._log = context.log
        self.file = RingFile(context.runtime.disk)
        self.processor = RingProcessor(context, state, voters, self._woken)
        self._inbox: asyncio.Queue[Step] = asyncio.Queue()
        #: Changes that were applied here and the member was not told of, in order.
        self._applied: deque[Delta] = deque()
        self._member: RingMember | None = None
        #: The submission that is being agreed on, and the name of its proposal.
        self._current: Waiting | None = None
        self._current_name = ""
        #: What was accepted here and not seen to end, and since when.
        self._pending_name = ""
        self._pending_ms = 0
        #: What an operator ended last.
        self._aborted_name = ""
        self._alarms: deque[str] = deque(maxlen=RING_REMEMBERED_MAX)
        self._ended: deque[str] = deque(maxlen=RING_REMEMBERED_MAX)
        #: Counts of proposals of this node by how they ended, and of contradictions seen.
        self.ended_counts: dict[str, int] = {outcome.value: 0 for outcome in Outcome}
        self.alarm_count = 0
        self.lost_count = 0
        context.internode.register_fast(verbs.RING_MAIL, RingMail, RingMail, self._mail)
        state.listen(self._note_applied)

    def start(self) -> None:
        self._mark(self._state.current)
        # Who asks a node that has just started is told of its ring.
        self._woken()
        self._runtime.tasks.spawn(self._run(), "ring.member")

    # -- what reaches the member -----------------------------------------------------------------------

    def _mail(self, peer: PeerInfo, mail: RingMail, _respond: object) -> None:
        message = mail.message
        newer = message.sequence if isinstance(message, Summary) else 0
        if isinstance(message, Deltas):
            newer = max((delta.sequence for delta in message.deltas), default=0)
        elif isinstance(message, Whole):
            newer = message.ring.sequence
        if newer > self._state.epoch:
            # Its entries come the way that all entries come, and are checked there.
            self._context.catch_up.heard(peer.endpoint, newer)
        if not isinstance(message, Deltas | Whole):
            self._put(lambda member, now_ms: member.received(mail.sender, message, now_ms))

    def _mark(self, cluster: ClusterMetadata) -> None:
        """Have requests for data say which ring they are planned with."""
        if cluster.is_on_ring:
            self._context.internode.own.note_ring(cluster.epoch, ring_of(cluster).fingerprint)

    def _note_applied(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        self._mark(after)
        if before.is_on_ring and after.epoch == before.epoch + 1:
            self._applied.append(carried_by(before, after, entry))
        self._woken()

    def _woken(self) -> None:
        if self._inbox.empty():
            self._put(self._nothing)

    def _put(self, step: Step) -> None:
        if self._inbox.qsize() < RING_INBOX_MAX:
            self._inbox.put_nowait(step)
        else:
            self.lost_count += 1

    @staticmethod
    def _nothing(member: RingMember, now_ms: int) -> Effects:
        """A look at what was applied here, and at what waits."""
        return Effects(None, (), (), ())

    def _tick(self, member: RingMember, now_ms: int) -> Effects:
        below = self._runtime.random.below
        return member.tick(now_ms, (below(_DRAWS) / _DRAWS, below(_DRAWS) / _DRAWS))

    @property
    def _now_ms(self) -> int:
        return int(self._runtime.clock.monotonic_s() * 1000)

    # -- one thing after another -----------------------------------------------------------------------

    async def _run(self) -> None:
        ticked_ms = self._now_ms
        while True:
            left_ms = max(1, ticked_ms + TICK_MS - self._now_ms)
            try:
                async with asyncio.timeout(left_ms / 1000):
                    step = await self._inbox.get()
            except TimeoutError:
                ticked_ms, step = self._now_ms, self._tick
            try:
                await self._take(step)
                await self._see_to_submissions()
                await self._finish_others()
            except LockstepError as error:
                # Its disk failed, or what was agreed on cannot be applied: it promises nothing any more.
                self._fail(error)
                return

    async def _take(self, step: Step) -> None:
        member = await self._up_to_date()
        if member is not None:
            await self._carry_out(step(member, self._now_ms))

    async def _up_to_date(self) -> RingMember | None:
        """This node's member with the ring that its metadata makes; None while it is no node of a ring."""
        cluster, own = self._state.current, self._context.own_id()
        if not own or (self._member is None and not cluster.is_on_ring):
            return None
        if self._member is None:
            ring = ring_of(cluster)
            kept = self.file.kept(ring)
            self._member = RingMember(
                own_name(own), kept, self._seeds(cluster), {}, self._now_ms, self._judge
            )
            await self._carry_out(self._member.start())
        member = self._member
        while self._applied:
            delta = self._applied.popleft()
            if delta.sequence > member.ring.sequence:
                self._see_end(delta)
                await self._carry_out(member.follow(delta, self._now_ms))
        if not cluster.is_on_ring:
            # The last change built the log: there is nothing to agree on here any more.
            self._member = None
            self._applied.clear()
        return self._member

    def _seeds(self, cluster: ClusterMetadata) -> tuple[str, ...]:
        """The members that the configuration names."""
        settings = self._context.configuration
        port = settings.network.internode_port
        named = (*settings.cluster.seeds, *settings.cluster.founders)
        found = (cluster.directory.by_address.get(split_address(text, port)) for text in named)
        return tuple(dict.fromkeys(name_of(node.id) for node in found if node is not None))

    async def _carry_out(self, effects: Effects) -> None:
        for delta in effects.decided:
            entry = entry_in(delta)
            self._state.offer([entry])
            await self._state.wait_for(entry.epoch)
            self._see_end(delta)
        if effects.kept is not None:
            await self.file.write(effects.kept)
        nodes, sender = self._state.current.directory.by_id, own_name(self._context.own_id())
        for name, message in effects.messages:
            node = nodes.get(NodeId(int(name)))
            # Who asks may be known by entries that have not come here yet; it asks again.
            if node is not None:
                address = (node.address, node.internode_port)
                self._context.internode.send(address, verbs.RING_MAIL, RingMail(sender, message))
        for alarm in effects.alarms:
            self.alarm_count += 1
            self._alarms.append(alarm)
            self._log("ring.alarm", text=alarm)
        for ended in effects.ended:
            self._note_ended(ended)

    def _judge(self, ring: Ring, proposal: Proposal) -> str:
        cluster = self._state.current
        if ring_of(cluster).fingerprint != ring.fingerprint:
            return "this member has not applied its ring yet"
        return judge(cluster, self._state.registry, proposal)

    # -- changes to be agreed on -----------------------------------------------------------------------

    async def _see_to_submissions(self) -> None:
        while self._current is None:
            waiting = self.processor.next()
            if waiting is None:
                return
            await self._begin(waiting)

    async def _finish_others(self) -> None:
        """What was accepted here long ago may be decided, and its initiator dead: the designated member finds
        out, and finishes it."""
        member = self._member
        pending = member.standing.pending if member is not None and not member.unanimous else None
        if member is None or pending is None or pending.op != self._pending_name:
            self._pending_name, self._pending_ms = pending.op if pending is not None else "", self._now_ms
            return
        late = self._now_ms >= self._pending_ms + RING_ASK_MS
        if late and self.processor.leads and member.standing.proposing is None:
            self._pending_ms = self._now_ms
            self._log("ring.finishes", name=pending.op, of=pending.initiator)
            await self._carry_out(member.finish(self._now_ms))

    async def _begin(self, waiting: Waiting) -> None:
        member = await self._up_to_date()
        if member is not None and member.standing.proposing is not None:
            self.processor.settled(waiting, Overloaded("this node is proposing another change"))
            return
        cluster = self._state.current
        if cluster.epoch < waiting.submit.base_epoch:
            text = f"this node has not applied epoch {waiting.submit.base_epoch} yet"
            self.processor.settled(waiting, Overloaded(text))
            return
        try:
            entry, after = self._judged(cluster, waiting.submit)
        except LockstepError as error:
            self.processor.settled(waiting, error)
            return
        if entry is None or after is None:
            self.processor.settled(waiting, cluster.recent_ids.epoch_of(waiting.submit.entry_id) or 0)
        elif not cluster.epoch:
            # The founders have written down who they are: the first ring needs no other word.
            self._state.offer([entry])
            await self._state.wait_for(entry.epoch)
            self.processor.settled(waiting, entry.epoch)
        elif member is None:
            self.processor.settled(waiting, Overloaded("this node is no member of the ring yet"))
        else:
            self._current, self._current_name = waiting, proposal_name(entry)
            self._log("ring.proposes", name=self._current_name, kind=EntryKind(entry.kind).name.lower())
            delta = carried_by(cluster, after, entry)
            await self._carry_out(member.offer(delta, self._now_ms))

    @property
    def _term(self) -> int:
        """Of the next entry: that of the last one, so that terms never go back, whatever was before the
        ring."""
        epoch = self._state.epoch
        last = self._state.retained(epoch, epoch)
        return max(TERM, last[-1].term if last else TERM)

    def _judged(
        self, cluster: ClusterMetadata, submit: Submit
    ) -> tuple[LogEntry | None, ClusterMetadata | None]:
        """The entry and the value that it makes; nothing when it was agreed on before. Raises what to tell
        whoever submitted it."""
        tip = Tip(cluster, self._state.registry)
        outcome = tip.judge(
            submit.entry_id,
            submit.kind,
            submit.body,
            submit.actor,
            self._runtime.clock.wall_us(),
            self._term,
            base_epoch=submit.base_epoch,
        )
        match outcome:
            case Appended():
                return outcome.entry, tip.value
            case Duplicate():
                return None, None
            case Refused():
                raise outcome.rejection
            case Expired():
                raise expired(outcome)

    def _note_ended(self, ended: Ended) -> None:
        self.ended_counts[ended.outcome.value] += 1
        said = f"{ended.op} {ended.outcome}" + (f": {ended.text}" if ended.text else "")
        self._ended.append(said)
        self._log("ring.ended", name=ended.op, outcome=ended.outcome.value, why=ended.text)
        if self._current is None or ended.op != self._current_name:
            return
        waiting, self._current = self._current, None
        if ended.outcome is Outcome.COMMITTED:
            known = self._state.current.recent_ids.epoch_of(waiting.submit.entry_id)
            assert known is not None, "what was committed is applied here"
            self.processor.settled(waiting, known)
        elif ended.outcome is Outcome.UNKNOWN:
            self.processor.settled(waiting, LeadershipLost(None))
        elif self._aborted_name == ended.op:
            refusal = Rejected(f"an operator aborted {ended.op}", hint="lockstep ring status")
            refusal.epoch = self._state.epoch
            self.processor.settled(waiting, refusal)
        else:
            self.processor.settled(waiting, Overloaded(f"the proposal was aborted: {ended.text}"))

    def _see_end(self, delta: Delta) -> None:
        """What an operator ended is not proposed again."""
        entry = entry_in(delta)
        if entry.kind == EntryKind.END_RING:
            ended = self._state.registry.decode(entry.kind, entry.body)
            assert isinstance(ended, EndRing), "a kind has one type"
            self._aborted_name = ended.op
            self._log("ring.ended_without_change", epoch=entry.epoch, name=ended.op, actor=entry.actor)

    # -- operators -------------------------------------------------------------------------------------

    async def abort(self, name: str, *, force: bool) -> str:
        """End the pending proposal of that name, as far as this mode lets this node; what was done, for
        people. PreconditionError when there is none, or when its initiator may have committed it and nobody
        forced it."""
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def step(member: RingMember, now_ms: int) -> Effects:
            try:
                text, effects = self._abort(member, name, force, now_ms)
            except LockstepError as error:
                told.set_exception(error)
                return self._nothing(member, now_ms)
            told.set_result(text)
            return effects

        self._put(step)
        try:
            async with asyncio.timeout(self._context.configuration.timeouts.metadata_ms / 1000):
                return await told
        except TimeoutError:
            raise Overloaded("this node's member of the ring did not get to it in time") from None

    def _abort(self, member: RingMember, name: str, force: bool, now_ms: int) -> tuple[str, Effects]:
        standing = member.standing
        known = [one for one in (standing.pending, standing.proposing) if one is not None and one.op == name]
        if not known:
            raise PreconditionError(f"no proposal {name} is pending here", hint="lockstep ring promises")
        risk = member.abort_risk(name)
        if risk and not force:
            raise PreconditionError(risk, hint="--force does it all the same; docs/operate/ring.md")
        ending = None if member.unanimous else self._ending(name)
        refused, effects = member.abort(name, known[0].base, now_ms, ending)
        if refused:
            raise PreconditionError(refused, hint="lockstep ring status")
        if member.unanimous:
            return f"{name} is aborted here" + (f"; {risk}" if risk else ""), effects
        return f"the ring is to be ended without a change; if {name} may be decided, it is finished", effects

    def _ending(self, name: str) -> Proposal:
        cluster, registry, own = self._state.current, self._state.registry, self._context.own_id()
        ending, tip = EndRing(name), Tip(self._state.current, self._state.registry)
        entry_id = self._runtime.random.bytes(16)
        kind, body = registry.kind_of(ending), encode(ending)
        outcome = tip.judge(entry_id, kind, body, f"node {own}", self._runtime.clock.wall_us(), self._term)
        assert isinstance(outcome, Appended), "a ring can always be ended"
        delta = carried_by(cluster, tip.value, outcome.entry)
        return Proposal(delta.op, own_name(own), (), delta, ends=True)

    def blocked(self) -> str:
        """Why nothing can be agreed on now; "" when something can, or this node is of no ring."""
        cluster = self._state.current
        if not cluster.is_on_ring:
            return ""
        return blocked(ring_of(cluster), silent(cluster, self._context.own_id(), self._context.alive))

    def report(self) -> RingReport:
        """PreconditionError where this node is no member of a ring (yet)."""
        member, cluster, own = self._member, self._state.current, self._context.own_id()
        if member is None or not cluster.is_on_ring:
            raise PreconditionError("this node is no member of a ring", hint="lockstep status")
        standing, alive = member.standing, self._context.alive
        ring = standing.ring
        dead = silent(cluster, own, alive)
        pending, proposing = standing.pending, standing.proposing
        return RingReport(
            node=own,
            mode=ring.mode.value,
            epoch=ring.sequence,
            fingerprint=ring.fingerprint.hex(),
            designated=designated(cluster, own, alive),
            members={one.node: one.status.value for one in ring.members},
            voters=ring.voters,
            silent=dead,
            laggards=standing.laggards,
            pending=Pending(pending.op, pending.initiator, *_what(pending)) if pending is not None else None,
            proposing=(
                Proposing(proposing.op, _what(proposing)[0], standing.missing)
                if proposing is not None
                else None
            ),
            waiting=self.processor.waiting,
            blocked=blocked(ring, dead),
            alarms=tuple(self._alarms),
            ended=tuple(self._ended),
        )


def _what(proposal: Proposal) -> tuple[str, str]:
    """What it carries, and who asked for it."""
    entry = entry_in(proposal.delta)
    return EntryKind(entry.kind).name.lower(), entry.actor
