"""Getting a command to the leader of the management group from any node.

Invariant: a command keeps one id and one base index over all its attempts, so it is applied at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.metadata.management import Outcome
from lockstep.metadata.management_commands import COMMAND_ID_BYTES, Action, Command
from lockstep.node.group_submitter import Group, GroupSubmitter
from lockstep.node.management_group import ManagementGroup
from lockstep.node.management_messages import Manage, Managed
from lockstep.node.voters import Voters
from lockstep.replication import verbs
from lockstep.replication.handshake import Address
from lockstep.replication.internode import Internode
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import NotLeader

_GROUP: Final = Group(
    name="leader of the management group",
    effect="it may be done yet",
    hint="lockstep recovery cluster states cmg --global",
    unreachable_hint="lockstep recovery cluster states cmg --global",
    pause_ms=(50, 200),
)
#: The base index of a command whose submitter is no member: the first one asked names it.
UNKNOWN_INDEX = -1


class ManagementSubmitter:
    """`group()` is this node's member, if it has one."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        voters: Voters,
        own_address: Address,
        host_id: Callable[[], str],
        group: Callable[[], ManagementGroup | None],
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._voters = voters
        self._own_address = own_address
        self._host_id = host_id
        self._group = group
        self._members = GroupSubmitter(runtime, _GROUP, self._addresses)
        internode.register(verbs.MANAGE, Manage, Managed, self._serve)

    async def submit(self, action: Action, timeout_ms: int) -> Outcome:
        """The committed outcome of a command, from any node.

        PeerUnreachable: nothing was sent to a leader. OutcomeUnknown: it may have been applied.
        """
        command_id = self._runtime.random.bytes(COMMAND_ID_BYTES)
        command = Command(command_id, UNKNOWN_INDEX, self._host_id(), action)

        async def ask(address: Address, limit_ms: int) -> Outcome | None:
            nonlocal command
            group = self._group()
            if address == self._own_address and group is not None:
                if command.base_index == UNKNOWN_INDEX:
                    command = msgspec.structs.replace(command, base_index=group.base_index())
                async with asyncio.timeout(limit_ms / 1000):
                    return await group.submit(command)
            for _ in range(2):
                reply: Managed = await self._internode.request(
                    address, verbs.MANAGE, Manage(command), limit_ms
                )
                if reply.index:
                    return Outcome(command.id, reply.index, reply.refusal)
                # The first leader asked said so; it stays over all retries.
                command = msgspec.structs.replace(command, base_index=reply.base_index)
            return None

        outcome, _ = await self._members.settle(ask, timeout_ms)
        return outcome

    def _addresses(self) -> list[Address]:
        """Members of the group as far as known, the likeliest leader first."""
        group = self._group()
        known = {member.address: None for member in self._voters.members().values()}
        if group is not None:
            known[self._own_address] = None
            for voter in group.driver.raft.configuration.members():
                member = self._voters.member(voter)
                if member is not None:
                    known[member.address] = None
        leader = group.driver.leader_address if group is not None else None
        if leader is None:
            return list(known)
        return [leader, *(address for address in known if address != leader)]

    async def _serve(self, _peer: object, request: Manage) -> Managed:
        group = self._group()
        if group is None:
            raise NotLeader(None)
        if request.command.base_index == UNKNOWN_INDEX:
            return Managed(0, None, group.base_index())
        outcome = await group.submit(request.command)
        return Managed(outcome.index, outcome.refusal)
