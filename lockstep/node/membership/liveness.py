"""Signs of life: pings to known nodes, who seems alive, and this node's clock among those of the others.

A ping is a request: a connection that went silent shows by its missing answer, and is replaced. In each round
a bounded number of nodes is asked, in turn; where that is fewer than all, silence is suspected later.

Invariant: liveness is an opinion of this node. It orders replicas, refuses hopeless requests early and tells
clients; it never changes the metadata. Nobody's clock is set and no timestamp is moved by what is known here:
it is shown, clients are warned, and a newcomer whose clock is far off does not join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.gossip.failure_detector import ClockOffsets, Offset, Opinions, measured, own_skew
from lockstep.gossip.pulling import PINGED_AT_ONCE, ping_rounds, pinged
from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.serving import Respond
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.node.configuration import ClockSection
from lockstep.node.log.messages import Answers, AskForMe, Ping
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.stamps import Stamps
from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import ASKED_FOR_ME_MAX
from lockstep.values.node_limits import CLOCK_STEP_US


class Clocks:
    """`answered` takes what other nodes say; the rest tells of it."""

    def __init__(
        self, runtime: Runtime, stamps: Stamps, conditions: Conditions, settings: ClockSection
    ) -> None:
        self._clock = runtime.clock
        self._stamps = stamps
        self._conditions = conditions
        self._settings = settings
        self._offsets = ClockOffsets()
        #: What clients are told who leave timestamps to this node; empty when its clock is not far off.
        self.warning = ""
        #: Wall time less steady time at the last look, in microseconds.
        self._base_us = self._difference_us()
        conditions.watch(self._look)

    def asks(self) -> int:
        """What a question carries, to be brought back by its answer: the steady clock in microseconds."""
        return int(self._clock.monotonic_s() * 1e6)

    def answered(self, node: int, asked_us: int, other_us: int) -> None:
        """`node` answered what was asked at `asked_us` of the steady clock, when its wall clock was at
        `other_us`; 0: it does not say."""
        self._notice_step()
        if other_us > 0 and asked_us > 0:
            self._offsets.heard(node, self.measured(asked_us, other_us), self._clock.monotonic_s())
            self._judge()

    def measured(self, asked_us: int, other_us: int) -> Offset:
        """The offset of a clock that was at `other_us` at some time since `asked_us`."""
        round_trip_us = self.asks() - asked_us
        return measured(self._clock.wall_us() - round_trip_us, other_us, round_trip_us)

    def forget(self, node: int) -> None:
        self._offsets.forget(node)

    def offsets(self) -> dict[int, Offset]:
        """Of other nodes that were heard lately."""
        self._notice_step()
        return self._offsets.known(self._clock.monotonic_s())

    def skew(self) -> Offset:
        """How far this node's clock is ahead of the middle of all; nothing is known alone."""
        return own_skew(self.offsets().values())

    def too_far(self, offset: Offset) -> bool:
        """Whether a node whose clock is so far from a member's does not join."""
        return offset.certain_us > self._settings.skew_fail_ms * 1000

    # -- what is shown --------------------------------------------------------------------------------

    def _look(self) -> None:
        skew, warn_us = self._judge(), self._settings.skew_warn_ms * 1000
        self._conditions.follow(
            skew.certain_us > warn_us, "CLOCK_SKEW", detail=f"{shown(skew.offset_us)} the other nodes'"
        )
        ahead_us = self._stamps.ahead_us
        self._conditions.follow(ahead_us > warn_us, "CLOCK_SET_BACK", detail=length(ahead_us))

    def _judge(self) -> Offset:
        skew = self.skew()
        self.warning = ""
        if self.too_far(skew):
            self.warning = (
                f"The clock of this coordinator is {shown(skew.offset_us)} the other nodes': of writes "
                "without a timestamp of their own an earlier one may win over a later one"
            )
        return skew

    def _difference_us(self) -> int:
        return self._clock.wall_us() - self.asks()

    def _notice_step(self) -> None:
        now_us = self._difference_us()
        if abs(now_us - self._base_us) > CLOCK_STEP_US:
            self._offsets.stepped()
        self._base_us = now_us


def shown(ahead_us: int) -> str:
    """How far a clock is ahead of others, or behind them."""
    return f"{length(abs(ahead_us))} {'ahead of' if ahead_us >= 0 else 'behind'}"


def length(us: int) -> str:
    """In seconds, in steps coarse enough that it is no news every second."""
    return f"{us / 1e6:.1f} s" if us < 10_000_000 else f"{us / 1e6:.0f} s"


#: Between two rounds of pings; the detector needs a few from one node to suspect it.
PING_INTERVAL_MS = 500
#: A node that wakes so much later than it meant to was not listening: paused, or its machine overloaded.
PAUSED_MS = 500
#: An answer that takes longer is no sign of life.
PING_TIMEOUT_MS = 2000

#: A node that is asked because somebody takes it for dead has this long: a life round trip takes far less.
PROBE_TIMEOUT_MS = 1000

#: A node that is heard so long after it was said to be dead has come back.
CAME_BACK_AFTER_MS = 3000

#: Told (node, alive) when this node's opinion changes.
LivenessListener = Callable[[NodeId, bool], None]


class Liveness:
    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        internode: Internode,
        opinions: Opinions,
        leads: Callable[[], bool],
        identity: IdentityFile,
        clocks: Clocks,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._internode = internode
        self._detector = opinions.detector
        self._own_id = opinions.own_id
        self.opinions = opinions
        self.alive, self.silent_s = opinions.alive, opinions.silent_s
        self._leads = leads
        #: The node that last said it leads the metadata group.
        self._leading: int | None = None
        self._identity = identity
        self._clocks = clocks
        self._monotonic_s = runtime.clock.monotonic_s
        self._told: dict[int, bool] = {}
        self._round = 0
        self._listeners: list[LivenessListener] = []
        internode.register_fast(verbs.PING, Ping, Ping, self._receive)
        internode.register(verbs.ASK_FOR_ME, AskForMe, Answers, self._ask_for)

    @property
    def _generation(self) -> int:
        """Of this start; 0 before the identity was read."""
        return self._identity.value.generation

    def start(self) -> None:
        self._state.listen(self._applied, parts_only=True)
        self._runtime.tasks.spawn(self._ping_loop(), "liveness.ping")

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        """A newcomer that learns of others asks them at once: it may soon need to know who is there.

        Who came while this node was in the cluster counts as heard: it may own ranges before it is asked for
        a sign of life, and a request must not fail because its coordinator has only just learned of it.
        """
        if not before.directory.nodes:
            if after.directory.nodes:
                self._ping(self._chosen())
            return
        if before.directory is after.directory:
            return
        came = [node for node in after.directory.present_ids if NodeId(node) not in before.directory.by_id]
        now_s = self._monotonic_s()
        for node in came:
            self._detector.heard(node, now_s)
        present = frozenset(after.directory.present_ids)
        for node in before.directory.present_ids:
            if node not in present and node != self._own_id():
                self._detector.forget(node)
                self._clocks.forget(node)
                self._told.pop(node, None)

    def listen(self, listener: LivenessListener) -> None:
        self._listeners.append(listener)

    def heard_since(self, node: int, wall_us: int) -> bool:
        """Whether a live node gave a sign of life after this time of the wall clock, with room for one that
        was on its way and for clocks that differ."""
        silent_s = self.silent_s(node)
        if silent_s is None or not self.alive(node):
            return False
        return self._runtime.clock.wall_us() - silent_s * 1e6 > wall_us + CAME_BACK_AFTER_MS * 1000

    async def answers(self, node: int) -> bool:
        """Ask the node now, whatever was heard of it before: True once it answered for itself."""
        info = self._state.current.directory.by_id.get(NodeId(node))
        if info is None or node in self._state.current.directory.shadowed:
            return False
        ping = Ping(self._generation, self._leads(), self._own_id())
        address = (info.address, info.internode_port)
        try:
            reply: Ping = await self._internode.request(address, verbs.PING, ping, PROBE_TIMEOUT_MS)
        except LockstepError:
            return False  # Whatever the reason: it gave no sign of life.
        if reply.node == node:
            self._heard(node)
        return reply.node == node

    async def answers_somebody(self, node: int) -> bool:
        """As `answers`, and when it does not, ask a few others the same: only the link may be broken."""
        if await self.answers(node):
            return True
        directory = self._state.current.directory
        others = [
            directory.by_id[other]
            for other in directory.present_ids
            if other not in (node, self._own_id()) and self.alive(other)
        ]
        asked = [
            self._internode.begin(
                (info.address, info.internode_port), verbs.ASK_FOR_ME, AskForMe(node), 2 * PROBE_TIMEOUT_MS
            )
            for info in others[:ASKED_FOR_ME_MAX]
        ]
        told = await asyncio.gather(*asked, return_exceptions=True)
        return any(isinstance(answer, Answers) and answer.alive for answer in told)

    async def _ask_for(self, _peer: PeerInfo, question: AskForMe) -> Answers:
        return Answers(await self.answers(question.node))

    def heard(self, peer: PeerInfo) -> None:
        """A sign of life of a peer that has introduced itself."""
        if peer.node_id:
            self._heard(peer.node_id)

    def _heard(self, node: int) -> None:
        info = self._state.current.directory.by_id.get(NodeId(node))
        if info is not None and info.state is NodeState.LEFT:
            return  # It is forgotten, whatever it still says.
        self._detector.heard(node, self._monotonic_s())
        if not self._told.get(node, False):
            self._tell(node, True)

    @property
    def leading(self) -> int | None:
        """Who leads the metadata group by its own word, while it seems alive."""
        return self._leading if self._leading is not None and self.alive(self._leading) else None

    def _receive(self, peer: PeerInfo, ping: Ping, respond: Respond) -> None:
        self.heard(peer)
        self._hear_leading(peer.node_id, ping)
        wall_us = self._runtime.clock.wall_us()
        respond(Ping(self._generation, self._leads(), self._own_id(), ping.asked_us, wall_us))

    def replied(self, context: NodeId, reply: Ping, sender_epoch: int) -> None:
        """A ping to the node `context` was answered, maybe by another one that stands at its address now."""
        if reply.node != context:
            return
        self._heard(context)
        self._hear_leading(context, reply)
        self._clocks.answered(context, reply.asked_us, reply.wall_us)

    def _hear_leading(self, node: int, ping: Ping) -> None:
        if ping.leads and node:
            self._leading = node
        elif self._leading == node:
            self._leading = None

    def failed(self, context: NodeId, error: LockstepError) -> None:
        """A ping was not answered: silence speaks for itself."""

    async def _ping_loop(self) -> None:
        while True:
            chosen = self._chosen()
            groups = max(1, -(-len(chosen) // PINGED_AT_ONCE))
            for first in range(0, groups * PINGED_AT_ONCE, PINGED_AT_ONCE):
                self._ping(chosen[first : first + PINGED_AT_ONCE])
                await self._rest(PING_INTERVAL_MS / 1000 / groups)
            for node in self._state.current.directory.nodes:
                alive = self.alive(node.id)
                if self._told.get(node.id, alive) != alive:
                    self._tell(node.id, alive)

    async def _rest(self, seconds: float) -> None:
        """Sleep; what was slept too much is silence that this node made itself."""
        due_s = self._monotonic_s() + seconds
        await asyncio.sleep(seconds)
        now_s = self._monotonic_s()
        if now_s - due_s > PAUSED_MS / 1000:
            self._detector.excuse(now_s - due_s, now_s)

    def _chosen(self) -> tuple[int, ...]:
        """Whom this round asks; the detector is told how often that is."""
        present = self._state.current.directory.present_ids
        self._round += 1
        self._detector.expect(PING_INTERVAL_MS / 1000 * ping_rounds(len(present)))
        return pinged(present, self._own_id(), self._round)

    def _ping(self, chosen: tuple[int, ...]) -> None:
        directory = self._state.current.directory
        ping = encode(Ping(self._generation, self._leads(), self._own_id(), self._clocks.asks()))
        deadline_s = self._monotonic_s() + PING_TIMEOUT_MS / 1000
        for node_id in chosen:
            node = directory.by_id[NodeId(node_id)]
            address = (node.address, node.internode_port)
            self._internode.submit(address, verbs.PING, ping, deadline_s, self, node.id)

    def _tell(self, node: int, alive: bool) -> None:
        self._told[node] = alive
        for listener in self._listeners:
            listener(NodeId(node), alive)
