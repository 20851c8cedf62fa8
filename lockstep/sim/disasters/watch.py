"""What must hold at every step while groups are lost and repaired (REC-1).

One history for each cluster id, of the metadata and of the management group; one leader for each group, term
and cluster id; a node's metadata never goes back; each repair continues the history of the id before it; what
a repair wiped for a cluster id is wiped once; nobody is bound to a cluster that has another history.

Invariant: it looks at what nodes apply, elect and log, and knows nothing of how repairs are made.
"""

from __future__ import annotations

from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import LINEAGE, Reset
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.disasters.nodes import DisasterNodes

#: What a node logs once it has carried a repair out, or has come to the cluster of one.
_ONCE = ("recovery.applied", "recovery.followed", "recovery.migrated")
#: What no node may ever say of its files or its log.
_NEVER = ("is corrupt", "the log has forked", "follows the one that ended", "an invariant of the consensus")


class DisasterWatch:
    def __init__(self) -> None:
        self.nodes: DisasterNodes | None = None
        #: (cluster id, epoch) -> hash; (cluster id, index) -> hash of the management group.
        self._hashes: dict[tuple[str, int], bytes] = {}
        self._managed: dict[tuple[str, int], bytes] = {}
        #: (cluster id, group, term) -> who led.
        self._led: dict[tuple[str, int, int], str] = {}
        #: Node -> under which id it applied what last: epoch and hash.
        self._applied: dict[str, tuple[str, int, bytes]] = {}
        #: (node, cluster id) -> what it did to get there.
        self._arrived: dict[tuple[str, str], str] = {}
        #: What began each cluster id but the first, and the id before it.
        self.forks: dict[str, tuple[str, Reset]] = {}
        #: (epoch, hash) of changes that were acknowledged, by the cluster id that they were in.
        self.acknowledged: dict[str, list[int]] = {}
        self.steps = 0

    def __call__(self, _now_ns: int, label: str, kind: str, facts: dict[str, Any]) -> None:
        name = label.rpartition(".")[0]
        if kind == "metadata.applied":
            self.steps += 1
            self._metadata(name, facts["cluster"])
        elif kind in ("management.applied", "management.installed"):
            self.steps += 1
            self._management(name, facts["state"])
        elif kind == "raft.role" and facts["role"] == "leader":
            self.steps += 1
            self._leader(name, facts)

    def _metadata(self, name: str, cluster: ClusterMetadata) -> None:
        identity, repairs = cluster.identity, cluster.parts[LINEAGE]
        for at, repaired in enumerate(repairs):
            before = (identity.lineage[at], repaired)
            if self.forks.setdefault(repaired.cluster_id, before) != before:
                raise Violation("REC-1", f"{name} tells otherwise how cluster {repaired.cluster_id} began")
        key = (identity.cluster_id, cluster.epoch)
        if self._hashes.setdefault(key, cluster.hash) != cluster.hash:
            raise Violation("REC-1", f"{name} has another entry at epoch {cluster.epoch} of {key[0]}")
        former, epoch, hash_ = self._applied.get(name, ("", 0, b""))
        if cluster.epoch < epoch and former in identity.lineage:
            raise Violation("LOG-1", f"{name} went back from epoch {epoch} to {cluster.epoch}")
        self._applied[name] = (*key, cluster.hash)
        if former in identity.lineage[:-1]:
            _, repaired = self.forks[identity.lineage[identity.lineage.index(former) + 1]]
            if epoch > repaired.epoch or (epoch == repaired.epoch and hash_ != repaired.hash):
                raise Violation(
                    "REC-1",
                    f"{name} had applied epoch {epoch}, and its new cluster continues another history",
                )

    def _management(self, name: str, state: Any) -> None:
        key = (state.cluster_id, state.index)
        if state.cluster_id and self._managed.setdefault(key, state.hash) != state.hash:
            raise Violation(
                "REC-1", f"{name} has another command {state.index} of the management group of {key[0]}"
            )

    def _leader(self, name: str, facts: dict[str, Any]) -> None:
        assert self.nodes is not None, "nodes are watched"
        if name not in self.nodes.nodes:
            return
        cluster_id = self.nodes.bound(int(name[1:]))
        led = self._led.setdefault((cluster_id, facts["group"], facts["term"]), name)
        if led != name:
            raise Violation(
                "REC-1", f"{led} and {name} both lead term {facts['term']} of group {facts['group']}"
            )

    def newest(self) -> list[tuple[str, int]]:
        """(cluster id, epoch) that each node applied last."""
        return [(cluster_id, epoch) for cluster_id, epoch, _ in self._applied.values()]

    def logged(self, name: str, event: str, facts: dict[str, Any]) -> None:
        """A node said something."""
        if event in _ONCE:
            key = (name, facts["cluster"])
            if key in self._arrived:
                raise Violation("WIPE-1", f"{name} began anew under {key[1]} twice: {event}")
            self._arrived[key] = event
        text = str(facts.get("error", ""))
        if event in ("node.ended", "node.broken") and any(one in text for one in _NEVER):
            raise Violation("REC-1", f"{name}: {text}")

    def check_bound(self, number: int) -> None:
        """What the node holds is a part of the history of the cluster that it is bound to."""
        assert self.nodes is not None, "nodes are watched"
        state, bound = self.nodes.node(number).log.state, self.nodes.bound(number)
        lineage = state.current.identity.lineage
        if bound in lineage[:-1]:
            raise Violation("REC-1", f"n{number} is of cluster {lineage[-1]} and bound to {bound}")
        while bound in self.forks and bound not in lineage:
            bound, repaired = self.forks[bound]
            if state.epoch > repaired.epoch:
                raise Violation("REC-1", f"n{number} went on by itself behind epoch {repaired.epoch}")
            known = self._hashes.get((bound, state.epoch))
            if bound in lineage and known is not None and known != state.current.hash:
                raise Violation("REC-1", f"n{number} has another entry at epoch {state.epoch}")
