"""The scripted nodes: real internode endpoints that answer requests only when a step says so.

What keeps the real node content is answered at once: pings, and questions about hashes, epochs and members.
Invariant: a WRITE, READ or REPAIR that arrives waits until a step takes it; a fetch of the log waits until
the peer serves the log. A peer's epoch is what the case says that it knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from lockstep.internode import verbs
from lockstep.internode.handshake import PROTOCOL_VERSION, Address, Hello, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.responding import Respond
from lockstep.node.log.messages import (
    Announce,
    AskMembers,
    EpochQuery,
    EpochReply,
    FetchLog,
    HashAt,
    HashReply,
    KnownMember,
    LogEntries,
    MemberList,
    Ping,
)
from lockstep.replica.messages import ReadReply, ReadRequest, WriteReply, WriteRequest
from lockstep.runtime.ports import Runtime
from lockstep.sim.coordinator.history import CLUSTER_ID, CaseHistory, host_id_of, host_of
from lockstep.sim.runtime.process import Process
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError

#: Node 2 is the only voter of the metadata.
VOTER = 2
PORT = 7000
#: What a scripted coordinator waits for an answer.
_PATIENCE_S = 20.0


class Heard:
    """Hears the answer to what a scripted coordinator sent."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
        self._tell(reply)

    def failed(self, context: Any, error: LockstepError) -> None:
        self._tell(error)


class ScriptedPeer:
    """`came` is told the words of every request of the request path, in the order of arrival."""

    def __init__(
        self, number: int, process: Process, history: CaseHistory, came: Callable[[int, int, Any], None]
    ) -> None:
        self.number = number
        self.process = process
        #: The epoch it says it is at.
        self.knows = history.base_epoch
        self.serves_log = False
        self.fetches = 0
        #: (verb, request, respond) not yet named by a step.
        self.arrived: deque[tuple[int, Any, Respond]] = deque()
        #: (request, respond) named by a step and not yet answered.
        self.named: deque[tuple[Any, Respond]] = deque()
        #: Answers to what it sent as a coordinator.
        self.answers: deque[Any] = deque()
        self._history = history
        self._came = came
        self._held: list[tuple[FetchLog, Respond]] = []
        self._internode: Internode | None = None

    async def main(self, runtime: Runtime) -> None:
        """Serve until the process ends."""
        internode = self._internode = Internode(
            runtime, self._hello, lambda: self.knows, _nothing, lambda hello: None, _nothing
        )
        internode.register_fast(verbs.WRITE, WriteRequest, WriteReply, self._taker(verbs.WRITE))
        internode.register_fast(verbs.READ_REPAIR, WriteRequest, WriteReply, self._taker(verbs.READ_REPAIR))
        internode.register_fast(verbs.READ, ReadRequest, ReadReply, self._taker(verbs.READ))
        internode.register_fast(verbs.PING, Ping, Ping, self._ping)
        internode.register_fast(verbs.ANNOUNCE, Announce, Announce, _nothing)
        internode.register_fast(verbs.FETCH_LOG, FetchLog, LogEntries, self._fetch)
        internode.register_fast(verbs.HASH_AT, HashAt, HashReply, self._hash)
        internode.register_fast(verbs.EPOCH_QUERY, EpochQuery, EpochReply, self._query)
        internode.register_fast(verbs.MEMBERS, AskMembers, MemberList, self._members)
        await internode.start(host_of(self.number), PORT)
        await asyncio.Event().wait()

    # -- what steps do, between two callbacks of the world ---------------------------------------------

    def answer(self, reply: Any) -> None:
        """Answer the oldest named request."""
        assert self.named, f"n{self.number} has nothing to answer"
        _, respond = self.named.popleft()
        self._later(respond, reply)

    def forget(self) -> None:
        """Never answer the oldest named request."""
        assert self.named, f"n{self.number} has nothing to be silent about"
        self.named.popleft()

    def serve_log(self, serves: bool) -> None:
        self.serves_log = serves
        if serves:
            held, self._held = self._held, []
            for request, respond in held:
                self._later(respond, self._entries(request))

    def announce(self, address: Address) -> None:
        self._later(self._announce, address)

    def send(self, address: Address, verb: int, request: Any) -> None:
        """Ask as a coordinator; the answer is in `answers`."""
        self._later(self._submit, address, verb, request)

    def _later(self, act: Callable[..., None], *facts: Any) -> None:
        async def work(_runtime: Runtime) -> None:
            act(*facts)

        self.process.submit(work)

    # -- what it does on its own loop ------------------------------------------------------------------

    def _announce(self, address: Address) -> None:
        assert self._internode is not None, "peers are started first"
        value = self._history.values[self.knows]
        self._internode.send(address, verbs.ANNOUNCE, Announce(value.epoch, value.hash))

    def _submit(self, address: Address, verb: int, request: Any) -> None:
        assert self._internode is not None, "peers are started first"
        deadline_s = self._internode.runtime.clock.monotonic_s() + _PATIENCE_S
        heard = Heard(self.answers.append)
        self._internode.submit(address, verb, encode(request), deadline_s, heard, None)

    def _taker(self, verb: int) -> Callable[[PeerInfo, Any, Respond], None]:
        def take(_peer: PeerInfo, request: Any, respond: Respond) -> None:
            self.arrived.append((verb, request, respond))
            self._came(self.number, verb, request)

        return take

    def _hello(self) -> Hello:
        return Hello(
            PROTOCOL_VERSION, CLUSTER_ID, "lockstep", (CLUSTER_ID.encode(),), host_id_of(self.number),
            self.number, host_of(self.number), PORT,
        )  # fmt: skip

    def _ping(self, _peer: PeerInfo, _ping: Ping, respond: Respond) -> None:
        respond(Ping(1, self.number == VOTER, self.number))

    def _fetch(self, _peer: PeerInfo, request: FetchLog, respond: Respond) -> None:
        self.fetches += 1
        if self.serves_log:
            respond(self._entries(request))
        else:
            self._held.append((request, respond))

    def _entries(self, request: FetchLog) -> LogEntries:
        return LogEntries(self.knows, tuple(self._history.entries[request.after : self.knows]))

    def _hash(self, _peer: PeerInfo, question: HashAt, respond: Respond) -> None:
        known = question.epoch <= self.knows
        value = self._history.values[self.knows]
        respond(
            HashReply(self._history.values[question.epoch].hash if known else b"", 1, value.epoch, value.hash)
        )

    def _query(self, _peer: PeerInfo, _query: EpochQuery, respond: Respond) -> None:
        respond(EpochReply(self.knows, self.number))

    def _members(self, _peer: PeerInfo, _question: AskMembers, respond: Respond) -> None:
        nodes = self._history.values[self.knows].directory.nodes
        members = tuple(
            KnownMember(node.id, node.host_id, node.address, node.internode_port, node.id == VOTER)
            for node in nodes
        )
        respond(MemberList(CLUSTER_ID, self.knows, members))


def _nothing(*_facts: Any, **_more: Any) -> None:
    """Peers keep no opinion and write no log."""
