"""How the metadata group and the management group fare: this node's own word, and the voters' words together.

Invariant: what a node says of itself needs nobody else, so it can be asked when no leader is left; what is
said of a whole group says who was asked and what each answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from lockstep.internode import verbs
from lockstep.metadata.groups.management import GENESIS
from lockstep.metadata.groups.service import (
    GlobalState,
    LocalFacts,
    LocalState,
    available_count,
    global_state,
    has_majority,
    local_state,
    part_of,
)
from lockstep.node.context import NodeContext
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.log.messages import AskGroup, GroupReport
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.management import Management
from lockstep.values.errors import LockstepError

#: A voter that does not answer in this time does not take part just now.
ASK_TIMEOUT_MS = 1000
#: A node that applies what it has just heard of is not called behind.
SETTLE_MS = 200
#: The end of a member's log that it does not yet know to be committed: it hears so with a heartbeat.
UNCOMMITTED_ENTRIES = 16
#: Nodes asked at once when all of a large cluster are.
ASKED_AT_ONCE_MAX = 64


class GroupWord(msgspec.Struct, frozen=True):
    """A group's state as this node found it. `unreachable`: voters that did not answer, and why."""

    state: GlobalState
    voters: tuple[int, ...]
    outgoing: tuple[int, ...]
    available: tuple[int, ...]
    reports: tuple[GroupReport, ...]
    unreachable: tuple[tuple[int, str], ...]


class Peers(msgspec.Struct, frozen=True):
    """Of a group's voters, how many seem alive from here. `available`: whether they are a majority."""

    available: bool
    count: int
    state: GlobalState


class GroupReports:
    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        management: Management,
    ) -> None:
        self._runtime = context.runtime
        self._internode = context.internode
        self._metadata = log.state
        self._catch_up = context.catch_up
        self._voters = log.voters
        self._management = management
        self._member = log.member
        self._own_id = context.own_id
        self._alive = context.alive
        context.internode.register(verbs.GROUP_REPORT, AskGroup, GroupReport, self._serve)

    async def _serve(self, _peer: object, question: AskGroup) -> GroupReport:
        return await self.local(question.group)

    async def local(self, group: int) -> GroupReport:
        """What this node says of itself; without a leader and without asking anyone."""
        if group == METADATA_GROUP:
            await self._settle()
            return self._metadata_report()
        return self._management_report()

    async def _settle(self) -> None:
        """Let entries that were just heard of arrive; a busy cluster always has some on their way."""
        deadline = self._runtime.clock.monotonic_s() + SETTLE_MS / 1000
        while self._metadata.broken is None and self._behind():
            if self._runtime.clock.monotonic_s() >= deadline:
                return
            await asyncio.sleep(SETTLE_MS / 1000 / 8)

    def _behind(self) -> bool:
        return self._catch_up.newest_heard > self._metadata.epoch

    def _metadata_report(self) -> GroupReport:
        driver, cluster, broken = self._member.driver, self._metadata.current, self._metadata.broken
        voters, outgoing = self.configuration(METADATA_GROUP)
        facts = LocalFacts(
            broken=broken is not None,
            initialized=cluster.epoch > 0,
            installing=self._catch_up.installing,
            applied=cluster.epoch,
            known=self._catch_up.newest_heard,
        )
        last = self._metadata.entries_after(cluster.epoch - 1) if cluster.epoch else ()
        raft = driver.raft if driver is not None else None
        return GroupReport(
            group=METADATA_GROUP,
            node=self._own_id(),
            state=local_state(facts),
            part=part_of(self._own_id(), (*voters, *outgoing)),
            term=last[-1].term if last else (raft.term if raft is not None else 0),
            index=raft.last_index if raft is not None else 0,
            epoch=cluster.epoch,
            hash=cluster.hash,
            voters=voters,
            outgoing=outgoing,
            leader=raft.leader if raft is not None else None,
            reason=str(broken) if broken is not None else "",
        )

    def _management_report(self) -> GroupReport:
        group = self._management.group
        voters, outgoing = self.configuration(MANAGEMENT_GROUP)
        if group is None:
            return GroupReport(
                MANAGEMENT_GROUP, self._own_id(), "", "", 0, 0, 0, GENESIS, voters,
                reason="this node is no member of the group",
            )  # fmt: skip
        raft, state = group.driver.raft, group.state
        facts = LocalFacts(
            broken=group.broken is not None,
            initialized=bool(state.cluster_id),
            installing=False,
            applied=raft.commit_index,
            known=max(raft.commit_index, raft.last_index - UNCOMMITTED_ENTRIES),
        )
        return GroupReport(
            group=MANAGEMENT_GROUP,
            node=raft.identity,
            state=local_state(facts),
            part=part_of(raft.identity, (*voters, *outgoing)),
            term=raft.term_at(raft.last_index) or 0,
            index=raft.last_index,
            epoch=state.index,
            hash=state.hash,
            voters=voters,
            outgoing=outgoing,
            leader=raft.leader,
            reason=str(group.broken) if group.broken is not None else "",
            learners=raft.configuration.learners,
            settled=raft.state.configurations.changed_at <= raft.commit_index,
        )

    def configuration(self, group: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(voters, outgoing voters) of a group, as this node knows them."""
        driver = self._member.driver if group == METADATA_GROUP else None
        if group == MANAGEMENT_GROUP and self._management.group is not None:
            driver = self._management.group.driver
        if driver is not None and driver.raft.configuration.voters:
            return driver.raft.configuration.voters, driver.raft.configuration.outgoing
        named = self._voters.named_managers() if group == MANAGEMENT_GROUP else ()
        return tuple(named or self._voters.ids()), ()

    def peers(self, group: int) -> Peers:
        """From signs of life alone, for gauges: asks nobody."""
        voters, outgoing = self.configuration(group)
        alive = [voter for voter in (*voters, *outgoing) if self._counts(group, voter)]
        state = global_state(voters, alive, outgoing)
        return Peers(has_majority(voters, alive, outgoing), available_count(voters, alive), state)

    def _counts(self, group: int, voter: int) -> bool:
        if voter != self._own_id():
            return self._alive(voter)
        if group == METADATA_GROUP:
            return self._metadata.broken is None
        return self._management.group is not None and self._management.group.broken is None

    async def whole(self, group: int) -> GroupWord:
        """Ask all voters how they are. Bounded by one round trip, twice when the voters changed meanwhile."""
        voters, outgoing = self.configuration(group)
        reports: dict[int, GroupReport] = {}
        silent: dict[int, str] = {}
        for _ in range(2):
            asked = [voter for voter in (*voters, *outgoing) if voter not in reports and voter not in silent]
            await self._ask(group, asked, reports, silent)
            newest = max(reports.values(), key=lambda report: (report.term, report.index), default=None)
            if newest is None or (newest.voters, newest.outgoing) == (voters, outgoing):
                break
            voters, outgoing = newest.voters, newest.outgoing
        members = sorted({*voters, *outgoing})
        healthy = tuple(
            member for member in members if member in reports and reports[member].state == LocalState.HEALTHY
        )
        return GroupWord(
            state=global_state(voters, healthy, outgoing),
            voters=voters,
            outgoing=outgoing,
            available=healthy,
            reports=tuple(reports[member] for member in members if member in reports),
            unreachable=tuple((member, silent[member]) for member in members if member in silent),
        )

    async def each(self, group: int, nodes: Sequence[int]) -> list[GroupReport | str]:
        """What each of these nodes says of itself, or why it did not answer; a bounded number at once."""
        spawn = self._runtime.tasks.spawn
        answers: list[GroupReport | str] = []
        for first in range(0, len(nodes), ASKED_AT_ONCE_MAX):
            part = nodes[first : first + ASKED_AT_ONCE_MAX]
            tasks = [spawn(self._ask_one(group, node), f"group.ask.{node}") for node in part]
            answers += await asyncio.gather(*tasks)
        return answers

    async def _ask(
        self, group: int, asked: list[int], reports: dict[int, GroupReport], silent: dict[int, str]
    ) -> None:
        answers = await self.each(group, asked)
        for voter, answer in zip(asked, answers, strict=True):
            if isinstance(answer, GroupReport):
                reports[voter] = answer
            else:
                silent[voter] = answer

    async def _ask_one(self, group: int, voter: int) -> GroupReport | str:
        """Its report, or why there is none."""
        if voter == self._own_id():
            return await self.local(group)
        member = self._voters.member(voter)
        if member is None:
            return "it is in no directory"
        try:
            report: GroupReport = await self._internode.request(
                member.address, verbs.GROUP_REPORT, AskGroup(group), ASK_TIMEOUT_MS
            )
        except LockstepError as error:
            return error.message
        return report
