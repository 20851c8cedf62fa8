"""Getting a command to the leader of the management group from any node.

Invariants: a command keeps one id and one base index over all its retries, so it is applied at most once;
when the deadline passes and some attempt may have been appended, OutcomeUnknown is raised, never a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from lockstep.metadata.management import Outcome
from lockstep.metadata.management_commands import COMMAND_ID_BYTES, Action, Command
from lockstep.node.management_group import ManagementGroup
from lockstep.node.management_messages import Manage, Managed
from lockstep.node.voters import Voters
from lockstep.replication import verbs
from lockstep.replication.handshake import Address
from lockstep.replication.internode import Internode
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import (
    LockstepError,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
)

#: One attempt at one member.
ATTEMPT_TIMEOUT_MS = 2000
#: Pause between rounds over all members.
RETRY_PAUSE_MS = (50, 200)
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
        internode.register(verbs.MANAGE, Manage, Managed, self._serve)

    async def submit(self, action: Action, timeout_ms: int) -> Outcome:
        """The committed outcome of a command, from any node.

        PeerUnreachable: nothing was sent to a leader. OutcomeUnknown: it may have been applied.
        """
        command_id = self._runtime.random.bytes(COMMAND_ID_BYTES)
        command = Command(command_id, UNKNOWN_INDEX, self._host_id(), action)
        deadline = self._runtime.clock.monotonic_s() + timeout_ms / 1000
        attempts = _Attempts(command)
        while True:
            for address in self._addresses():
                left_ms = int((deadline - self._runtime.clock.monotonic_s()) * 1000)
                if left_ms <= 0:
                    raise attempts.verdict(timeout_ms)
                outcome = await self._attempt(address, attempts, min(left_ms, ATTEMPT_TIMEOUT_MS))
                if outcome is not None:
                    return outcome
            low, high = RETRY_PAUSE_MS
            await asyncio.sleep((low + self._runtime.random.below(high - low)) / 1000)
            if self._runtime.clock.monotonic_s() >= deadline:
                raise attempts.verdict(timeout_ms)

    async def _attempt(self, address: Address, attempts: _Attempts, limit_ms: int) -> Outcome | None:
        """None: this member gave no answer that settles it."""
        group = self._group()
        try:
            if address == self._own_address and group is not None:
                if attempts.command.base_index == UNKNOWN_INDEX:
                    attempts.base(group.base_index())
                async with asyncio.timeout(limit_ms / 1000):
                    return await group.submit(attempts.command)
            for _ in range(2):
                asked = Manage(attempts.command)
                reply: Managed = await self._internode.request(address, verbs.MANAGE, asked, limit_ms)
                if reply.index:
                    return Outcome(attempts.command.id, reply.index, reply.refusal)
                attempts.base(reply.base_index)
        except (NotLeader, PeerUnreachable, Overloaded) as error:
            attempts.last = error
        except (LockstepError, TimeoutError) as error:
            # Whatever went wrong, it may have been after the append.
            attempts.maybe_appended, attempts.last = True, error
        return None

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


class _Attempts:
    """What is known of a command after some attempts."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.maybe_appended = False
        self.last: Exception | None = None

    def base(self, index: int) -> None:
        """The first leader asked said so; it stays over all retries."""
        self.command = msgspec.structs.replace(self.command, base_index=index)

    def verdict(self, timeout_ms: int) -> LockstepError:
        if self.maybe_appended:
            return OutcomeUnknown(
                f"no leader of the management group answered within {timeout_ms} ms; it may be done yet",
                hint="lockstep recovery cluster states cmg --global",
            )
        return PeerUnreachable(
            f"no leader of the management group could be reached within {timeout_ms} ms: {self.last}",
            hint="lockstep recovery cluster states cmg --global",
        )
