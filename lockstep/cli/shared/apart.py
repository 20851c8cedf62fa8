"""Owns which nodes that seem down run under another id of the cluster, and which side is to go to the other.

Invariant: only what such a node answers itself counts; one that does not answer in time is just down.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.recovery import ClusterState
from lockstep.documents.status import ListedNode
from lockstep.values.errors import LockstepError

#: For a node that seems down to answer: a machine that is gone is not to hold up the command for longer.
ANSWER_S: Final = 2.0
_ASKED_AT_ONCE: Final = 16
_MIGRATE: Final = "lockstep recovery cluster migrate"
_DIFF: Final = "lockstep recovery diff"


class Apart(msgspec.Struct, frozen=True):
    """Nodes that run under one other id, and the command that is next. `is_ahead`: theirs was made anew from
    the asked node's cluster, which is to follow."""

    is_ahead: bool
    sentence: str
    hint: str

    @property
    def next_step(self) -> str:
        return f"{self.sentence}: `{self.hint}`"


def found(asked: ClusterClient, own: ClusterState, listed: Sequence[ListedNode]) -> list[Apart]:
    """Of those of `listed` that seem down and are not shut out, by the id under which they run."""
    down = [one for one in listed if not one.alive and not one.excluded]
    if not down:
        return []
    with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(down))) as asking:
        states = list(asking.map(lambda node: _state_of(asked, node), down))
    by_id: dict[str, list[tuple[ListedNode, ClusterState]]] = {}
    for node, state in zip(down, states, strict=True):
        if state is not None and state.cluster_id != own.cluster_id and _ids(state) & _ids(own):
            by_id.setdefault(state.cluster_id, []).append((node, state))
    here = f"{asked.admin.host}:{asked.admin.port}"
    return [_told(own, members, here) for members in by_id.values()]


def _state_of(asked: ClusterClient, node: ListedNode) -> ClusterState | None:
    at = asked.at(node.address, node.admin_port, min(ANSWER_S, asked.admin.timeout_s))
    try:
        state = read(ClusterState, at.cluster_state())
    except LockstepError:
        return None
    return state if state.node == node.id else None


def _ids(state: ClusterState) -> set[str]:
    return {state.cluster_id, *(one.cluster_id for one in state.lineage)}


def _told(own: ClusterState, members: Sequence[tuple[ListedNode, ClusterState]], here: str) -> Apart:
    (first, state), ids = members[0], tuple(node.id for node, _ in members)
    there = f"{first.address}:{first.admin_port}"
    verb = f"node {ids[0]} runs" if len(ids) == 1 else f"nodes {', '.join(map(str, ids))} run"
    urls = f"--old-cluster-url {there} --new-cluster-url {here}"
    if own.cluster_id in _ids(state):
        urls = f"--old-cluster-url {here} --new-cluster-url {there}"
        how, command, is_ahead = "which was made anew from this one", _MIGRATE, True
    elif state.cluster_id in _ids(own):
        how, command, is_ahead = "from which this one was made anew", _MIGRATE, False
    else:
        how, command, is_ahead = "which was made anew apart from this one", _DIFF, False
    return Apart(is_ahead, f"{verb} as cluster {state.cluster_id}, {how}", f"{command} {urls}")
