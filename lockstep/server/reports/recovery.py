"""What the admin API says of how the two consensus groups fare, under the paths that recovery tools know.

Owns the names by which people call the groups: `cmg` is the management group, `metastorage` the metadata
group. Invariant: everything is asked anew for each answer; nothing is kept here.
"""

from __future__ import annotations

from typing import Any, Final

from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.node.log.raft_transport import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.membership.management_messages import GroupReport
from lockstep.node.services import NodeServices
from lockstep.server.admin.http import HttpRequest
from lockstep.values.errors import ConfigurationError

#: Name in paths, commands and gauges -> group.
GROUPS: Final = {"cmg": MANAGEMENT_GROUP, "metastorage": METADATA_GROUP}
PATH: Final = "/management/v1/recovery/{group}/state"

Document = dict[str, Any]


class GroupAnswers:
    """The answers about one group, at one node."""

    def __init__(self, node: NodeServices, name: str) -> None:
        self._node = node
        self._name = name

    async def local(self, request: HttpRequest, _values: dict[str, str]) -> Document:
        """What each node says of itself: of those named (ids, host ids or addresses, with commas), else of
        all that take part in the group. A node that does not answer has a row with the reason."""
        group = GROUPS[self._name]
        nodes = request.query.get("nodes")
        asked = _named(self._node, nodes) if nodes else _all(self._node)
        answers = await self._node.membership.groups.each(group, [info.id for info in asked])
        rows = [_row(info, answer) for info, answer in zip(asked, answers, strict=True)]
        if not nodes:
            rows = [row for row in rows if row["state"] is not None or not row["answered"]]
        return {
            "schema": "group-local-states/1",
            "group": self._name,
            "asked": self._node.context.own_id(),
            "states": rows,
        }

    async def whole(self, _request: HttpRequest, _values: dict[str, str]) -> Document:
        """The group as a whole, from what its voters answer now."""
        word = await self._node.membership.groups.whole(GROUPS[self._name])
        reports = {report.node: report for report in word.reports}
        silent = dict(word.unreachable)
        members = []
        for voter in sorted({*word.voters, *word.outgoing}):
            report = reports.get(voter)
            members.append(
                {
                    "node": voter,
                    "available": voter in word.available,
                    "state": report.state or None if report is not None else None,
                    "reason": report.reason if report is not None else silent.get(voter, ""),
                }
            )
        return {
            "schema": "group-global-state/1",
            "group": self._name,
            "asked": self._node.context.own_id(),
            "state": word.state.value,
            "voters": list(word.voters),
            "outgoing": list(word.outgoing),
            "available_peers": sum(1 for voter in word.voters if voter in word.available),
            "members": members,
        }


def words(node: NodeServices) -> Document:
    """Both groups at a glance, from signs of life alone: for status answers, which wait for nobody."""
    found = {name: node.membership.groups.peers(group) for name, group in GROUPS.items()}
    return {
        name: {"state": peers.state.value, "available": peers.available, "available_peers": peers.count}
        for name, peers in found.items()
    }


def _all(node: NodeServices) -> list[NodeInfo]:
    return [info for info in node.log.cluster.directory.nodes if info.state is not NodeState.LEFT]


def _named(node: NodeServices, texts: str) -> list[NodeInfo]:
    known = _all(node)
    found = []
    for text in dict.fromkeys(part.strip() for part in texts.split(",") if part.strip()):
        fitting = [info for info in known if text in (str(info.id), info.host_id, info.address)]
        if not fitting:
            raise ConfigurationError(f"no node is called {text}", hint="lockstep status lists the nodes")
        found.append(fitting[0])
    return found


def _row(info: NodeInfo, answer: GroupReport | str) -> Document:
    if isinstance(answer, str):
        blank = dict.fromkeys(("state", "role", "term", "index", "epoch", "hash", "leader"))
        return {"node": info.id, "address": info.address, "answered": False, **blank, "reason": answer}
    return {
        "node": info.id,
        "address": info.address,
        "answered": True,
        "state": answer.state or None,
        "role": answer.part or None,
        "term": answer.term,
        "index": answer.index,
        "epoch": answer.epoch,
        "hash": answer.hash.hex(),
        "leader": answer.leader,
        "reason": answer.reason,
    }
