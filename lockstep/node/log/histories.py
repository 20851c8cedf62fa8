"""Whether a peer's history is this node's, and who is right when it is not.

Every node tells the hash of a past epoch and its last entry, with or without a leader. A contradiction is
put to the voters: what a majority of them holds is the history. Invariant: a peer that contradicts what this
node has applied cannot stop it, and a node that a majority contradicts stops serving and voting; without a
majority nothing is claimed. A well-formed entry after the newest one is believed from any member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.entries import LogEntry, verify_chain
from lockstep.node.log.messages import HashAt, HashReply
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.voters import Member
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import CannotApply, LockstepError
from lockstep.values.limits import HASH_WITNESSES_MAX, LOG_CHECKPOINT_EPOCHS

#: One question to the voters; who does not answer in it does not count.
VOTE_TIMEOUT_MS = 1000


class Histories:
    """`voters()` are the voters that this node knows; `goes_to()` is the cluster id that it was brought to
    and whose log it lacks yet, or empty. `forks_seen` counts contradictions of peers."""

    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        internode: Internode,
        voters: Callable[[], Sequence[Member]],
        own_host_id: Callable[[], str],
        log: Callable[..., None],
        goes_to: Callable[[], str] = str,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._internode = internode
        self.goes_to = goes_to
        self.known_voters = voters
        self._own_host_id = own_host_id
        self._log = log
        self._judging = False
        self.forks_seen = 0
        internode.register_fast(verbs.HASH_AT, HashAt, HashReply, self._tell)

    def _tell(self, _peer: object, question: HashAt, respond: Callable[[HashReply], None]) -> None:
        epoch, last_hash = self._state.current.epoch, self._state.current.hash
        found = self._state.hash_at(question.epoch) if question.epoch > 0 else None
        entries = self._state.entries
        last_term = entries[-1].term if entries else 0
        respond(HashReply(found or b"", last_term, epoch, last_hash))

    def contradiction(self, entries: Sequence[LogEntry]) -> tuple[int, bytes] | None:
        """(epoch, the other hash) where `entries`, a chain, are of another history than this node's."""
        epoch, tail_hash = self._state.tail
        for entry in entries:
            known = self._state.hash_at(entry.epoch) if entry.epoch <= self._state.epoch else None
            if known is not None and known != entry.hash:
                return entry.epoch, entry.hash
            if entry.epoch == epoch + 1 and entry.previous_hash != tail_hash:
                return epoch, entry.previous_hash
        return None

    def contradicts(self, epoch: int, other: bytes) -> bool:
        """Whether this node knows another hash of `epoch`."""
        known = self._state.hash_at(epoch) if 0 < epoch <= self._state.epoch else None
        return known is not None and bool(other) and known != other

    def dispute(self, peer: Address, epoch: int, other: bytes) -> None:
        """`peer` claims another hash of `epoch`: find out who is right, in the background."""
        self.forks_seen += 1
        if not self._judging:
            self._judging = True
            self._runtime.tasks.spawn(self._judge(peer, epoch, other), "metadata.judge")

    async def _judge(self, peer: Address, epoch: int, other: bytes) -> None:
        try:
            confirmed = await self.majority_hash(epoch, self.known_voters())
        finally:
            self._judging = False
        if not self._lost(epoch, confirmed):
            self._log("metadata.fork_refused", peer=peer[0], epoch=epoch, confirmed=confirmed is not None)

    async def diverged(self) -> bool:
        """Whether a majority of the voters has another history than this node, which then gives up.

        They are asked for this node's newest epoch, or where they do not keep it, the last one of which
        everybody keeps the hash. False also when neither is known to them.
        """
        newest = self._state.epoch
        for epoch in (newest, newest - newest % LOG_CHECKPOINT_EPOCHS):
            if epoch and self._state.hash_at(epoch) is not None:
                confirmed = await self.majority_hash(epoch, self.known_voters())
                if confirmed is not None:
                    return self._lost(epoch, confirmed)
        return False

    def _lost(self, epoch: int, confirmed: bytes | None) -> bool:
        """Give up when the voters have confirmed another hash than this node's."""
        own = self._state.hash_at(epoch)
        if confirmed is None or own is None or confirmed == own:
            return False
        self._log("metadata.fork_lost", epoch=epoch, own=own.hex(), voters=confirmed.hex())
        self._state.give_up(
            CannotApply(
                f"the log has forked: this node holds the entry {own.hex()[:16]} at epoch {epoch}, and a "
                f"majority of the voters holds {confirmed.hex()[:16]}",
                hint="keep its data directory for analysis; remove or replace this node",
            )
        )
        return True

    async def majority_hash(self, epoch: int, voters: Sequence[Member]) -> bytes | None:
        """What more than half of `voters` hold at `epoch`; None when that cannot be found out now."""
        answers: list[bytes] = []
        others: list[Address] = []
        for voter in voters:
            if voter.host_id == self._own_host_id():
                answers.append(self._state.hash_at(epoch) or b"")
            else:
                others.append(voter.address)
        answers.extend(await self._ask(others, epoch))
        needed = len(voters) // 2 + 1
        for answer in answers:
            if answer and answers.count(answer) >= needed:
                return answer
        return None

    async def prevailing_hash(self, epoch: int) -> bytes | None:
        """What more than half of the nodes hold at `epoch` that this node knows and that answer; two at
        least, where it knows so many, so that nobody who alone is heard decides."""
        cluster, own = self._state.current, self._own_host_id()
        known = [
            (node.address, node.internode_port)
            for node in cluster.directory.nodes
            if node.state is not NodeState.LEFT and node.host_id != own
        ]
        answers = [answer for answer in await self._ask(known[:HASH_WITNESSES_MAX], epoch) if answer]
        needed = max(len(answers) // 2 + 1, min(2, len(known)))
        for answer in answers:
            if answers.count(answer) >= needed:
                return answer
        return None

    async def _ask(self, addresses: Sequence[Address], epoch: int) -> list[bytes]:
        """Answers of those that gave one in time."""
        if not addresses:
            return []
        votes = _Votes(len(addresses))
        deadline_s = self._runtime.clock.monotonic_s() + VOTE_TIMEOUT_MS / 1000
        question = encode(HashAt(epoch))
        for address in addresses:
            self._internode.submit(address, verbs.HASH_AT, question, deadline_s, votes, None)
        await votes.all_in.wait()
        return votes.hashes


class _Votes:
    """Collects answers; every question ends in an answer or an error."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.hashes: list[bytes] = []
        self.all_in = asyncio.Event()

    def replied(self, context: object, reply: HashReply, sender_epoch: int) -> None:
        self.hashes.append(reply.hash)
        self._one_less()

    def failed(self, context: object, error: LockstepError) -> None:
        """No vote."""
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.all_in.set()


def whole_part(entries: Sequence[LogEntry]) -> tuple[Sequence[LogEntry], str, bool]:
    """(the entries up to the first hole, what is wrong, whether that is damage); "" when nothing is.

    A hole, or an entry out of order, is only of no use; a wrong hash or link nobody sends by mistake, and
    then no entry is taken.
    """
    if not entries:
        return entries, "", False
    epoch, previous_hash = entries[0].epoch - 1, entries[0].previous_hash
    for count, entry in enumerate(entries):
        problem = verify_chain((entry,), epoch=epoch, previous_hash=previous_hash)
        if problem is not None:
            damaged = entry.epoch == epoch + 1
            return (() if damaged else entries[:count]), problem, damaged
        epoch, previous_hash = entry.epoch, entry.hash
    return entries, "", False
