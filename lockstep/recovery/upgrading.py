"""Whether the members of a ring agree enough to build a log of what they have, and who is to keep it.

All nodes that are not ignored by name say what their metadata is, part by part, at the epoch of now.
Invariant: the log is built only where all of them said the same, so no node begins with what another one does
not have; who is silent, or differs, for longer than others may wait, ends the attempt for all. Equal answers
give equal decisions, whoever asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import METADATA_LOG, NodeState
from lockstep.metadata.groups.ringed import RINGED, Upgrading
from lockstep.metadata.groups.upgrade_entries import AbortUpgrade, BuildLog, able_to_vote
from lockstep.metadata.groups.voter_choice import size_for
from lockstep.metadata.log.apply import part_digests
from lockstep.values.codec import encode
from lockstep.values.hash_tree import blake
from lockstep.values.ids import NodeId

#: How long all nodes may take to say the same: several times what a node needs to restart, and short enough
#: for changes to wait.
UPGRADE_AGREE_MS: Final = 20_000


class Described(msgspec.Struct, frozen=True, array_like=True):
    """What a node has: hashes of its directory, of who owns which tokens, and of its schema, and the hash of
    the last entry."""

    node: NodeId
    epoch: int
    hash: bytes
    directory: bytes
    tokens: bytes
    schema: bytes
    features: tuple[str, ...] = ()


def described(cluster: ClusterMetadata, node: NodeId, features: tuple[str, ...]) -> Described:
    digests = dict(part_digests(cluster))
    owned = [(one.id, one.state, one.tokens) for one in cluster.directory.nodes]
    return Described(
        node,
        cluster.epoch,
        cluster.hash,
        digests["directory"],
        blake(encode(owned)),
        digests["schema"],
        features,
    )


class Await(msgspec.Struct, frozen=True):
    """Ask again. `why`: what is missing, for people."""

    why: str


Step = Await | BuildLog | AbortUpgrade


def asked(cluster: ClusterMetadata, running: Upgrading) -> tuple[NodeId, ...]:
    """Who must say what it has, ascending: everybody who may take part, but who is ignored by name."""
    apart = {*running.ignored, *cluster.parts[RINGED].silenced}
    return tuple(node for node in cluster.directory.present_ids if node not in apart)


def next_step(
    cluster: ClusterMetadata,
    running: Upgrading,
    answers: Sequence[Described],
    silent: Mapping[int, str],
    waited_ms: int,
    at_ms: int,
) -> Step:
    """What to do with these answers. `silent`: why a node gave none. `waited_ms`: since this node began to
    ask."""
    wanted = asked(cluster, running)
    assert {one.node for one in answers} <= {*wanted}, "only who is asked answers"
    heard = {one.node: one for one in answers}
    own = described(cluster, NodeId(0), ())
    late = [node for node, one in heard.items() if one.epoch != own.epoch]
    missing = [node for node in wanted if node not in heard]
    differs = _difference(own, [one for one in answers if one.epoch == own.epoch])
    old = [node for node, one in sorted(heard.items()) if METADATA_LOG not in one.features]
    if differs or old:
        why = differs or f"nodes {_listed(old)} do not support {METADATA_LOG}"
        return AbortUpgrade(running.begun_epoch, why)
    if missing or late:
        said = "; ".join(f"node {node}: {silent.get(node, 'no answer')}" for node in missing)
        behind = f"nodes {_listed(sorted(late))} are not at epoch {own.epoch}" if late else ""
        why = "; ".join(text for text in (said, behind) if text)
        if waited_ms >= UPGRADE_AGREE_MS:
            return AbortUpgrade(running.begun_epoch, f"not all nodes said what they have: {why}")
        return Await(why)
    voters = first_voters(cluster, running)
    if not voters:
        return AbortUpgrade(running.begun_epoch, "no node is able to keep the log")
    return BuildLog(running.begun_epoch, voters, at_ms)


def _difference(own: Described, answers: Sequence[Described]) -> str:
    """Which nodes have something else at one epoch, and what; empty when all have the same."""
    for name in ("hash", "directory", "tokens", "schema"):
        wanted = getattr(own, name)
        others = sorted(one.node for one in answers if getattr(one, name) != wanted)
        if others:
            what = "another last entry" if name == "hash" else f"another digest of {name}"
            return f"nodes {_listed(others)} have {what} at epoch {own.epoch}"
    return ""


def first_voters(cluster: ClusterMetadata, running: Upgrading) -> tuple[NodeId, ...]:
    """As many as suit the cluster, each next one from the data centre and rack with the fewest so far."""
    able = able_to_vote(cluster, running.ignored)
    size = min(size_for(len(able)), len(able))
    size -= 1 - size % 2 if size else 0
    chosen: list[NodeId] = []
    dcs, racks = Counter[str](), Counter[tuple[str, str]]()
    while len(chosen) < size:
        left = [node for node in able if node.id not in chosen]
        best = min(left, key=lambda node: (dcs[node.dc], racks[node.dc, node.rack], node.id))
        chosen.append(best.id)
        dcs[best.dc] += 1
        racks[best.dc, best.rack] += 1
    assert all(cluster.directory.by_id[one].state is not NodeState.LEFT for one in chosen), (
        "who votes is there"
    )
    return tuple(sorted(chosen))


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(str(node) for node in nodes)
