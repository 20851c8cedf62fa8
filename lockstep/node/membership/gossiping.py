"""Gossip: this node's soft state goes to a few others each round, and theirs comes here.

Invariant: how many messages a node sends in a round does not depend on the size of the cluster; what is
learned orders replicas and is shown to people, and never changes the metadata. What the metadata says of a
node (state, tokens, data centre) is not gossiped: it is read from the metadata where it is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from lockstep.gossip.soft_state import (
    Ack,
    Ack2,
    Known,
    SoftState,
    SoftStates,
    Syn,
    Told,
    Version,
    believable,
    partners,
)
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.serving import Respond
from lockstep.metadata.directory import Directory
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.liveness import Liveness
from lockstep.node.work.table_damage import lacks_everything
from lockstep.values.codec import encode
from lockstep.values.errors import ConfigurationError, LockstepError, PreconditionError
from lockstep.values.ids import CASSANDRA_RELEASE, NodeId
from lockstep.values.limits import GOSSIP_BUILDING_MAX

#: Between two rounds: readiness and load change in seconds.
ROUND_INTERVAL_MS: Final = 1000
#: An ack that takes longer brings nothing new.
ACK_TIMEOUT_MS: Final = 2000
_SCHEMA_BYTES: Final = 16
#: Load is told in steps of this part of it, and of this much at least: every write would be news otherwise.
_LOAD_STEP_SHIFT: Final = 6
_LOAD_STEP_MIN: Final = 1 << 16


#: Told (node, serves) when a node said that it begins or ends to serve clients.
ServingListener = Callable[[int, bool], None]


class OwnLoad(msgspec.Struct, frozen=True):
    """What a node tells of itself. `building`: ids of views that it lacks rows of."""

    ready: bool = False
    load_bytes: int = 0
    streams: int = 0
    building: Sequence[int] = ()


class Gossip:
    """`own_load()` tells of this node when asked."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        liveness: Liveness,
        own_load: Callable[[], OwnLoad],
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._internode = context.internode
        self._liveness = liveness
        self._own_id = context.own_id
        self._identity = context.identity
        self._own_load = own_load
        self._conditions = context.conditions.told
        self._started_us = context.runtime.clock.wall_us()
        self._monotonic_s = context.runtime.clock.monotonic_s
        self._states: SoftStates | None = None
        self._directory: Directory | None = None
        self._withdrawn = False
        self._listeners: list[ServingListener] = []
        self.rounds = 0
        self.sent = 0
        self.failures = 0
        context.internode.register_fast(verbs.GOSSIP, Syn, Ack, self._asked)
        context.internode.register_fast(verbs.GOSSIP_ACK, Ack2, Ack2, self._brought)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "gossip.rounds")

    def known(self, node: int) -> Known | None:
        """The newest state heard of a node; None for one never heard of."""
        return self._states[node] if self._states is not None else None

    def age_s(self, known: Known) -> float:
        """Seconds since this node learned of it."""
        return max(0.0, self._monotonic_s() - known.learned_s)

    def has_lost_store(self, node: int) -> bool:
        """Whether the node says that it has lost its whole store, and is not filled yet."""
        known = self.known(node)
        return known is not None and lacks_everything(known.state.conditions)

    def put(
        self, node: int, changes: dict[str, Any], *, dry_run: bool
    ) -> tuple[SoftState, SoftState, Version]:
        """Have another node's state spread with these changes: the state before and after, and its version.
        PreconditionError, ConfigurationError."""
        states = self._current()
        if states is None or not self._state.current.is_on_ring:
            raise PreconditionError(
                "only on the ring without a log is a state put into gossip: with a log nothing depends on it",
                hint="lockstep gossip info",
            )
        if node == states.own or node not in self._state.current.directory.present_ids:
            raise ConfigurationError(
                f"node {node} is this node, or none of the others", hint="ask another node; `lockstep status`"
            )
        known = states[node]
        before = known.state if known is not None else SoftState(release=CASSANDRA_RELEASE)
        after, version = msgspec.structs.replace(before, **changes), states.next_version(node)
        if not believable(Told(node, version, after)):
            raise ConfigurationError(
                "no node would take this state of another one", hint="lockstep gossip info"
            )
        if not dry_run:
            states.put(node, after, self._monotonic_s())
            self._learned(states)
        return before, after, version

    def listen(self, listener: ServingListener) -> None:
        self._listeners.append(listener)

    def withdraw(self) -> None:
        """Say at once, and from now on, that this node serves no clients; requests prefer other replicas."""
        if not self._withdrawn:
            self._withdrawn = True
            self._round()

    # -- rounds -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._round()
            await asyncio.sleep(ROUND_INTERVAL_MS / 1000)

    def _round(self) -> None:
        states = self._current()
        if states is None:
            return
        now_s = self._monotonic_s()
        number = states.begin_round(self._own(), now_s)
        self.rounds += 1
        directory = self._state.current.directory
        living = [node for node in directory.present_ids if self._liveness.alive(node)]
        chosen = partners(living, states.own, number)
        syn = encode(states.syn()) if chosen else b""
        for node in chosen:
            self.sent += 1
            self._internode.submit(
                self._address(directory, node), verbs.GOSSIP, syn, now_s + ACK_TIMEOUT_MS / 1000, self, node
            )
        self._learned(states)

    def _learned(self, states: SoftStates) -> None:
        """Who serves, by what is known now."""
        before = self._liveness.opinions.avoided
        avoided = frozenset(
            node for node, known in states.items() if not known.state.ready and node != states.own
        )
        self._liveness.opinions.avoided = avoided
        if avoided == before:
            return
        for node in sorted(avoided ^ before):
            for listener in self._listeners:
                listener(node, node not in avoided)

    def _current(self) -> SoftStates | None:
        """What is known of the nodes that have not left; None while this node has no id."""
        own = self._own_id()
        if not own:
            return None
        if self._states is None:
            self._states = SoftStates(own, self._identity.value.generation)
        directory = self._state.current.directory
        if directory is not self._directory:
            self._directory = directory
            self._states.keep(directory.present_ids)
        return self._states

    def _own(self) -> SoftState:
        cluster = self._state.current
        own = self._own_load()
        load = own.load_bytes
        step = max(_LOAD_STEP_MIN, 1 << max(0, load.bit_length() - _LOAD_STEP_SHIFT))
        return SoftState(
            ready=own.ready and not self._withdrawn,
            load_bytes=load - load % step,
            release=CASSANDRA_RELEASE,
            epoch=cluster.epoch,
            schema_version=cluster.schema.digest[:_SCHEMA_BYTES],
            streams=own.streams,
            started_us=self._started_us,
            building=tuple(sorted(own.building)[:GOSSIP_BUILDING_MAX]),
            conditions=self._conditions(),
        )

    @staticmethod
    def _address(directory: Directory, node: int) -> Address:
        info = directory.by_id[NodeId(node)]
        return (info.address, info.internode_port)

    # -- messages -----------------------------------------------------------------------------------

    def _asked(self, peer: PeerInfo, syn: Syn, respond: Respond) -> None:
        states = self._current()
        if states is None:
            respond(Ack(()))
            return
        self.sent += 1
        respond(states.answer(syn))

    def replied(self, context: int, reply: Ack, sender_epoch: int) -> None:
        """A partner acknowledged."""
        states, directory = self._current(), self._state.current.directory
        if states is None:
            return
        back = states.acknowledged(reply, self._monotonic_s())
        self._learned(states)
        if back is not None and NodeId(context) in directory.by_id:
            self.sent += 1
            self._internode.send(self._address(directory, context), verbs.GOSSIP_ACK, back)

    def failed(self, context: int, error: LockstepError) -> None:
        """A partner did not answer: the next round has others, and pings tell who is dead."""
        self.failures += 1

    def _brought(self, peer: PeerInfo, ack: Ack2, respond: Respond) -> None:
        states = self._current()
        if states is not None:
            states.told(ack.told, self._monotonic_s())
            self._learned(states)
