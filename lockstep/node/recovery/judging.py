"""Whether this node may go to a repaired cluster, by what it keeps of its log; and what others may be judged
by that want to come to this one.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.directory import LINEAGE, Reset
from lockstep.node.log.metadata_past import Past
from lockstep.node.log_service import NodeLog
from lockstep.recovery.fences import Fenced, Target, judge
from lockstep.recovery.harmless import waived
from lockstep.recovery.steps import Diverged
from lockstep.values.errors import CannotApply, CorruptFile, LogTruncated


class Judged(msgspec.Struct, frozen=True):
    """`fenced`: why it may not go. `epoch`: what it goes with; `harmless` are the classes of the entries that
    it has beyond that, and gives up."""

    epoch: int
    harmless: str = ""
    fenced: Fenced | None = None

    @property
    def given_up(self) -> str:
        """For the record of it; empty for nothing."""
        return f", and gives up entries from {self.epoch + 1} on: {self.harmless}" if self.harmless else ""


async def judged(log: NodeLog, target: Target, now_ms: int) -> Judged:
    """Rejected for a target that makes no sense."""
    state = log.state
    cluster = state.current
    repairs: tuple[Reset, ...] = cluster.parts[LINEAGE]
    fenced = judge(cluster.identity, repairs, cluster.epoch, cluster.hash, target, state.hash_at)
    if fenced is None:
        return Judged(cluster.epoch)
    harmless = await _harmless(log, fenced, now_ms)
    return Judged(fenced.diverged_at - 1, harmless) if harmless else Judged(cluster.epoch, fenced=fenced)


async def _harmless(log: NodeLog, fenced: Fenced, now_ms: int) -> str:
    """The classes of what this node alone has, where all of it is harmless and it can do without."""
    state = log.state
    entries = state.retained(fenced.diverged_at, state.epoch) if fenced.only_more else []
    if not entries or entries[0].epoch != fenced.diverged_at:
        return ""
    try:
        await Past(state).value_at(fenced.diverged_at - 1)
    except (LogTruncated, CorruptFile):
        return ""
    return waived(entries, state.registry, now_ms)


def parted(record: Diverged) -> CannotApply:
    """Why a zombie serves nobody."""
    hashes = (
        f"{record.own_hash.hex()[:12] or 'unknown'} here, {record.other_hash.hex()[:12] or 'unknown'} there"
    )
    return CannotApply(
        f"this node is a zombie: it has another entry at epoch {record.epoch} than cluster "
        f"{record.cluster_id} ({hashes}): {record.reason}",
        hint="`lockstep recovery export` saves what it holds; then empty its data directory, and let it join",
    )


def as_target(log: NodeLog, epochs_back: int) -> Target:
    """The cluster of this node as one that others may be brought to: with the hashes of so many epochs before
    each repair, and of as many of the sparse ones that are kept of older epochs."""
    cluster, state = log.cluster, log.state
    repairs: tuple[Reset, ...] = cluster.parts[LINEAGE]
    forks = [one.epoch for one in repairs]
    sparse = sorted(epoch for epoch in state.store.checkpoints if epoch <= max(forks, default=0))
    near = (epoch for fork in forks for epoch in range(max(1, fork - epochs_back), fork + 1))
    found = {
        epoch: known
        for epoch in (*sparse[-epochs_back:], *near)
        if (known := state.hash_at(epoch)) is not None
    }
    return Target(
        cluster.identity.cluster_name,
        cluster.identity.lineage,
        repairs,
        tuple(sorted(found.items())),
        tuple((node.address, node.internode_port) for node in cluster.directory.nodes),
        tuple(cluster.voters),
    )
