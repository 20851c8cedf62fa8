"""The metadata service in one document: who votes, how both groups fare, what changes, what the log keeps.

Invariant: what voters and the leader alone know is asked of them now, bounded in time; a member that does
not answer has a row that says so, and without a leader the rest is still told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.node.log.metadata_past import Past
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.log.raft_transport import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.membership.group_reports import GroupWord
from lockstep.node.membership.management_messages import GroupReport
from lockstep.node.services import NodeServices
from lockstep.server.admin.service_requests import ServiceRequests
from lockstep.server.views.live_views import seen_epoch

Document = dict[str, Any]


async def described(node: NodeServices, service: ServiceRequests) -> Document:
    """The `cms/1` document of this node."""
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
