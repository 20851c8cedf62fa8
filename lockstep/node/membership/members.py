"""Where the nodes of the cluster are, kept on disk and checked again with whoever answers.

A node that starts asks everybody it ever knew of until somebody answers, and asks again whenever nobody else
seems alive: so it finds the cluster although its seeds are gone and its peers have moved. Invariant: the list
is a hint. It says whom to ask; who is a member, and what is true, is said by the log alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import AskMembers, KnownMember, MemberList
from lockstep.node.log.metadata_state import MetadataState
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile, LockstepError
from lockstep.values.limits import MEMBERS_ASKED_AT_ONCE_MAX, MEMBERS_FILE_BYTES_MAX

MEMBERS_PATH = "members"
_NEW_PATH = "members.new"
#: Between two rounds of asking while nobody answers.
ASK_AGAIN_MS = 1000
#: One question.
ASK_TIMEOUT_MS = 1000
#: Between two writings of the file, however fast the cluster changes.
SAVE_PAUSE_MS = 1000

_DECODER = decoder(MemberList)
_NOTHING = MemberList("", 0, ())


def members_of(cluster: ClusterMetadata) -> MemberList:
    voters = dict.fromkeys(cluster.voters)
    present = [cluster.directory.by_id[node_id] for node_id in cluster.directory.present_ids]
    known = [KnownMember(n.id, n.host_id, n.address, n.internode_port, n.id in voters) for n in present]
    return MemberList(cluster.identity.cluster_id, cluster.epoch, tuple(known))


class Members:
    """`configured` are the addresses that the configuration names."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        configured: Sequence[Address],
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._internode = context.internode
        self._own = context.address
        self._configured = tuple(configured)
        self._alive = context.alive
        self._log = context.log
        #: The newest list heard of: from the file, or from a member.
        self._heard = _NOTHING
        #: What the file holds.
        self._saved = _NOTHING
        self._changed = asyncio.Event()
        self._asked = 0
        self._answered = False
        context.internode.register_fast(verbs.MEMBERS, AskMembers, MemberList, self._tell)
        state.listen(self._applied, parts_only=True)

    def load(self) -> None:
        """Read the file; one that is damaged is as good as none."""
        disk = self._runtime.disk
        if not disk.exists(MEMBERS_PATH):
            return
        try:
            records = scan_records(
                MEMBERS_PATH, disk.read(MEMBERS_PATH), record_bytes_max=MEMBERS_FILE_BYTES_MAX
            )
            for _, body in records:
                self._heard = self._saved = _DECODER.decode(body)
        except (CorruptFile, *UNREADABLE) as damage:
            self._log("members.unreadable", error=str(damage))

    def start(self) -> None:
        self._runtime.tasks.spawn(self._ask_loop(), "members.ask")
        self._runtime.tasks.spawn(self._save_loop(), "members.save")

    # -- whom to ask ---------------------------------------------------------------------------------

    def addresses(self) -> tuple[Address, ...]:
        """Everybody this node ever knew of, the configured ones first, voters before others."""
        current = members_of(self._state.current).members
        known = sorted((*current, *self._heard.members), key=lambda member: not member.voter)
        found = dict.fromkeys(self._configured)
        found.update(dict.fromkeys((member.address, member.internode_port) for member in known))
        found.pop(self._own, None)
        return tuple(found)

    def learn(self, heard: MemberList) -> None:
        """A member told who is in the cluster."""
        self._answered = True
        if heard.epoch > max(self._heard.epoch, self._state.epoch):
            self._heard = heard
            self._changed.set()

    def _tell(self, _peer: object, _question: AskMembers, respond: Callable[[MemberList], None]) -> None:
        respond(members_of(self._state.current))

    async def _ask_loop(self) -> None:
        """The answers' epochs start the catch-up, as those of all messages do."""
        while True:
            if self._state.epoch and (not self._answered or self._lonely()):
                self._ask_some()
            await asyncio.sleep(ASK_AGAIN_MS / 1000)

    def _lonely(self) -> bool:
        """There are others, and none of them seems alive."""
        own = self._state.current.directory.by_address.get(self._own)
        own_id = own.id if own is not None else 0
        others = [node_id for node_id in self._state.current.directory.present_ids if node_id != own_id]
        return bool(others) and not any(self._alive(node_id) for node_id in others)

    def _ask_some(self) -> None:
        """The next ones in turn."""
        addresses = self.addresses()
        deadline_s = self._runtime.clock.monotonic_s() + ASK_TIMEOUT_MS / 1000
        question = encode(AskMembers(self._state.epoch))
        for step in range(min(len(addresses), MEMBERS_ASKED_AT_ONCE_MAX)):
            address = addresses[(self._asked + step) % len(addresses)]
            self._internode.submit(address, verbs.MEMBERS, question, deadline_s, self, address)
        self._asked += MEMBERS_ASKED_AT_ONCE_MAX

    def replied(self, context: Address, reply: MemberList, sender_epoch: int) -> None:
        self.learn(reply)

    def failed(self, context: Address, error: LockstepError) -> None:
        """Nobody there, or somebody else: the next ones are asked in the next round."""

    # -- the file ------------------------------------------------------------------------------------

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.directory is not after.directory or before.voters != after.voters:
            self._changed.set()

    async def _save_loop(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            own = members_of(self._state.current)
            newest = own if own.epoch >= self._heard.epoch else self._heard
            if (newest.cluster_id, newest.members) != (self._saved.cluster_id, self._saved.members):
                try:
                    await self._save(newest)
                except (LockstepError, OSError) as error:
                    self._log("members.not_saved", error=str(error))
                    self._changed.set()
            await asyncio.sleep(SAVE_PAUSE_MS / 1000)

    async def _save(self, members: MemberList) -> None:
        """Durable on return; a crash leaves the old file or the new one."""
        disk = self._runtime.disk
        if disk.exists(_NEW_PATH):
            disk.remove(_NEW_PATH)
        disk.append(_NEW_PATH, frame_record(encode(members)))
        await disk.sync(_NEW_PATH)
        disk.rename(_NEW_PATH, MEMBERS_PATH)
        await disk.sync_names("")
        self._saved = members
