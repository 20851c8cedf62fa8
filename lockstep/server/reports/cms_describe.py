"""The metadata service in documents: who votes, how both groups fare, what changes, what the log keeps, and
what a node can prove of it: an unbroken log, and the digest of the value at an epoch.

Invariant: what voters and the leader alone know is asked of them now, bounded in time; a member that does not
answer has a row that says so, and without a leader the rest is still told. Hashes are computed anew from the
bytes of each entry, and digests from the value, so that damage and divergence show; a past value is asked for
by epoch and replayed, never remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.metadata.log.apply import part_digests, state_digest
from lockstep.metadata.log.entries import LogEntry, verify_chain
from lockstep.node.log import metadata_store as files
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.log.messages import GroupReport
from lockstep.node.log.metadata_past import Past
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.membership.group_reports import GroupWord
from lockstep.node.services import NodeServices
from lockstep.server.admin.service_requests import ServiceRequests
from lockstep.server.reports.leader_views import refuse_on_ring
from lockstep.server.views.live_views import seen_epoch
from lockstep.values.errors import ConfigurationError, CorruptFile
from lockstep.values.limits import ENTRIES_PER_TURN_MAX, LOG_CHECKPOINT_EPOCHS

Document = dict[str, Any]


async def described(node: NodeServices, service: ServiceRequests) -> Document:
    """The `cms/1` document of this node."""
    refuse_on_ring(node)
    metadata = await node.membership.groups.whole(METADATA_GROUP)
    management = await node.membership.groups.whole(MANAGEMENT_GROUP)
    voters = await service.status()
    cluster = node.log.cluster
    leader = next((report.leader for report in metadata.reports if report.leader is not None), None)
    asked = node.log.driver.raft.status() if node.log.driver is not None else None
    return {
        "schema": "cms/1",
        "epoch": cluster.epoch,
        "asked": node.context.own_id(),
        "role": asked.role.value if asked is not None else "learner",
        "leader": leader if leader is not None else node.log.leader_id,
        "term": asked.term if asked is not None else _newest_term(metadata),
        "commit_index": asked.commit_index if asked is not None else None,
        "processor": node.context.configuration.cms.processor,
        "recovery_generation": cluster.service.recovery_generation,
        "groups": {"metastorage": metadata.state.value, "cmg": management.state.value},
        "members": _members(node, metadata, await _coming(node, metadata), leader),
        "management": _management(management),
        "raft": _configuration(node.log.driver, metadata),
        "size": {
            "actual": len(cluster.service.voters),
            "wanted": voters["size"] or voters["target"],
            "set_by": "operator" if voters["size"] else "size of the cluster",
        },
        "state": voters["state"],
        "change": voters["change"],
        "waiting": voters["waiting"],
        "frozen": cluster.service.frozen,
        "paused": cluster.service.paused,
        "leaving": list(cluster.service.leaving),
        "log": _log(node),
    }


def _newest_term(word: GroupWord) -> int | None:
    return max((report.term for report in word.reports), default=None)


async def _coming(node: NodeServices, word: GroupWord) -> dict[int, GroupReport | str]:
    """What members say that are being added and have no vote yet; or why they do not answer."""
    coming = [one for one in node.log.cluster.service.members if one not in {*word.voters, *word.outgoing}]
    answers = await node.membership.groups.each(METADATA_GROUP, coming)
    return dict(zip(coming, answers, strict=True))


def _members(
    node: NodeServices, word: GroupWord, coming: Mapping[int, GroupReport | str], leader: int | None
) -> list[Document]:
    reports = {report.node: report for report in word.reports}
    silent = dict(word.unreachable)
    for member, answer in coming.items():
        if isinstance(answer, GroupReport):
            reports[member] = answer
        else:
            silent[member] = answer
    service = node.log.cluster.service
    members = []
    for member in sorted({*word.voters, *word.outgoing, *service.members}):
        info = node.log.cluster.directory.by_id.get(member)  # type: ignore[call-overload]
        report = reports.get(member)
        epoch = report.epoch if report is not None else seen_epoch(node, member)
        members.append(
            {
                "node": member,
                "address": info.address if info is not None else None,
                "dc": info.dc if info is not None else None,
                "rack": info.rack if info is not None else None,
                "alive": node.membership.liveness.alive(member),
                "leader": member == leader,
                "role": "voting member" if member in {*word.voters, *word.outgoing} else "learner",
                "state": (report.state or None) if report is not None else None,
                "epoch": epoch,
                "lag": max(0, node.log.cluster.epoch - epoch),
                "reason": report.reason if report is not None else silent.get(member, ""),
            }
        )
    return members


def _management(word: GroupWord) -> Document:
    leader = next((report.leader for report in word.reports if report.leader is not None), None)
    return {
        "state": word.state.value,
        "leader": leader,
        "term": _newest_term(word),
        "voters": list(word.voters),
        "outgoing": list(word.outgoing),
        "states": [
            {"node": report.node, "role": report.part or None, "state": report.state or None}
            for report in word.reports
        ],
        "unavailable": [m for m in sorted({*word.voters, *word.outgoing}) if m not in word.available],
    }


def _configuration(driver: RaftDriver | None, word: GroupWord) -> Document:
    """The Raft configuration, which decides who votes; of a node without a part in it as voters tell it."""
    learners: tuple[int, ...] | None = None
    if driver is not None:
        learners = driver.raft.configuration.learners
    return {
        "voters": list(word.voters),
        "outgoing": list(word.outgoing),
        "joint": bool(word.outgoing),
        "learners": None if learners is None else list(learners),
    }


def _log(node: NodeServices) -> Document:
    state, store = node.log.state, node.log.state.store
    service, latest = node.log.cluster.service, store.latest()
    age_s: float | None = None
    if latest is not None:
        age_s = max(0.0, (node.context.runtime.clock.wall_us() - latest.entry.commit_time_us) / 1e6)
    return {
        "oldest_entry": state.first_epoch,
        "oldest_value": Past(state).oldest_epoch,
        "bytes_since_snapshot": store.log_bytes if state.epoch > service.snapshot_epoch else 0,
        "snapshot_epoch": service.snapshot_epoch,
        "truncated_epoch": service.truncated_epoch,
        "snapshot_here": latest.epoch if latest is not None else None,
        "snapshot_bytes": latest.size_bytes if latest is not None else None,
        "snapshot_age_s": round(age_s, 1) if age_s is not None else None,
    }


class Proofs:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        #: One at a time: each reads the whole log and the archive.
        self._proving = asyncio.Lock()

    async def proof(self, first: int) -> Document:
        """This node's log from `first` on, as far back as it is kept here or in its archive, checked entry by
        entry; and the hashes of some epochs (each checkpoint, each snapshot, the newest) to compare."""
        if first < 1:
            raise ConfigurationError(f"epoch {first} is none; the first epoch is 1")
        async with self._proving:
            return await self._proved(first)

    async def _proved(self, first: int) -> Document:
        state = self._node.log.state
        chain = _Chain(first)
        problem: Document | None = None
        for disk in state.disks[1:]:
            for number in files.segments(disk):
                if number >= state.first_epoch:
                    break
                try:
                    chain.feed([e for e in files.read_segment(disk, number) if e.epoch < state.first_epoch])
                except CorruptFile as damage:
                    problem = problem or {"epoch": number, "reason": str(damage)}
                await asyncio.sleep(0)
        # What is dropped meanwhile was verified before; what comes meanwhile is the next proof's.
        kept, newest, newest_hash = list(state.entries), state.epoch, state.current.hash
        for at in range(0, len(kept), ENTRIES_PER_TURN_MAX):
            chain.feed(kept[at : at + ENTRIES_PER_TURN_MAX])
            await asyncio.sleep(0)
        chain.end(newest, newest_hash)
        marks = {epoch: mark for epoch, mark in state.store.checkpoints.items() if epoch >= first}
        marks |= {info.epoch: info.entry.hash for info in state.store.infos.values() if info.epoch >= first}
        for epoch, mark in chain.marks.items():
            if marks.setdefault(epoch, mark) != mark and problem is None:
                problem = {"epoch": epoch, "reason": f"checkpoint and log differ at epoch {epoch}"}
        problem = chain.problem or problem
        broken = state.broken
        return {
            "schema": "metadata-proof/1",
            "node": self._node.context.own_id(),
            "epoch": newest,
            "hash": newest_hash.hex(),
            "oldest": max(chain.oldest, first) if newest else 0,
            "oldest_value": Past(state).oldest_epoch,
            "problem": problem,
            "broken": str(broken) if broken is not None else None,
            "marks": [[epoch, marks[epoch].hex()] for epoch in sorted(marks)],
        }

    async def digest(self, epoch: int) -> Document:
        """The digest of the value at an epoch, whole and by part. Errors as of Past.value_at."""
        async with self._proving:
            value = await Past(self._node.log.state).value_at(epoch)
        return {
            "schema": "metadata-digest/1",
            "node": self._node.context.own_id(),
            "epoch": value.epoch,
            "hash": value.hash.hex(),
            "digest": state_digest(value).hex(),
            "parts": {name: digest.hex() for name, digest in part_digests(value)},
        }


class _Chain:
    """Feeds on entries in order. A gap, as an installed snapshot leaves it, begins the chain anew."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._last: LogEntry | None = None
        self.oldest = 0
        self.problem: Document | None = None
        self.marks: dict[int, bytes] = {}

    def feed(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            last = self._last
            if last is not None and entry.epoch <= last.epoch:
                continue
            if last is None or entry.epoch != last.epoch + 1:
                self.oldest, last = entry.epoch, None
            before = (last.epoch, last.hash) if last is not None else (entry.epoch - 1, entry.previous_hash)
            reason = verify_chain((entry,), epoch=before[0], previous_hash=before[1])
            if reason is not None and entry.epoch >= self._first:
                self.problem = self.problem or {"epoch": entry.epoch, "reason": reason}
            if entry.epoch % LOG_CHECKPOINT_EPOCHS == 0 and entry.epoch >= self._first:
                self.marks[entry.epoch] = entry.hash
            self._last = entry

    def end(self, epoch: int, newest_hash: bytes) -> None:
        """The log must lead to the value that is served."""
        last = self._last
        if last is None or last.epoch < epoch:
            self.oldest = epoch + 1
        elif last.epoch == epoch and last.hash != newest_hash and self.problem is None:
            self.problem = {"epoch": epoch, "reason": "the value is not the one that the log leads to"}
        if epoch:
            self.marks[epoch] = newest_hash
