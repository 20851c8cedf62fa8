"""Tracked ranges of this node for the admin API: what each other replica lacks of them, and what lies in the
journal for that.

Invariant: what the journal and the last rounds say, or other replicas when they are asked; nothing is
decided here, and asking changes nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.runs import DifferingMutation, ReconcileAudit, Reconciling, ReplicaLag, SilentReplica
from lockstep.node.services import NodeServices
from lockstep.replica.lags import Lag
from lockstep.server.admin.operations import Operation, get, later, now
from lockstep.storage.witnessing import witnessed_count

PATH: Final = "/v1/reconcile"
AUDIT_PATH: Final = "/v1/reconcile/audit"


def reconcile_operations(node: NodeServices) -> list[Operation]:
    """For the admin API."""
    return [
        get(PATH, "What replicas of this node's tracked ranges lack", now(lambda *_: _document(node))),
        Operation(
            "POST",
            AUDIT_PATH,
            "Compare the entries of this node's journal with those of each other replica, by content",
            later(lambda *_: _audit(node)),
            "Which differ, and who did not answer",
        ),
    ]


async def _audit(node: NodeServices) -> dict[str, Any]:
    found = await node.data.journal_audit.run()
    told: dict[str, Any] = msgspec.to_builtins(
        ReconcileAudit(
            node=node.context.own_id(),
            ranges=found.ranges,
            compared=found.compared,
            ended=found.ended,
            differing=tuple(
                DifferingMutation(*one.shard, one.node, one.id.node, one.id.start, one.id.offset)
                for one in found.differing
            ),
            silent=tuple(SilentReplica(other, why) for other, why in found.silent.items()),
        )
    )
    return told


def _age_s(lag: Lag, now_us: int, lacking_s: int | None) -> int | None:
    """Since when a replica lacks something of a range; as long as it was seen to lack anything where no entry
    says that."""
    if lag.oldest_us is None:
        return lacking_s if lag.lacks else None
    return max(0, now_us - lag.oldest_us) // 1_000_000


def _document(node: NodeServices) -> dict[str, Any]:
    reconciler, now_us = node.data.reconciler, node.context.runtime.clock.wall_us()
    journal, tablets = reconciler.journal, node.log.cluster.tablets
    lacking_s = reconciler.oldest_lacking_s()
    lags = tuple(
        ReplicaLag(
            placement_group=lag.shard[0],
            last_token=lag.shard[1],
            node=lag.node,
            alive=bool(node.context.alive(lag.node)),
            heard=lag.heard,
            lacks=lag.lacks,
            lacks_bytes=journal.estimated_bytes(lag.lacks),
            lacks_s=_age_s(lag, now_us, lacking_s.get(lag.node)),
            is_lacked=lag.is_lacked,
            left_s=reconciler.left_s(lag.node) if node.context.alive(lag.node) else None,
            table=tablets.table_of(lag.shard[0]),
            witness=not lag.keeps,
        )
        for lag in reconciler.lags(with_ages=True)
    )
    told: dict[str, Any] = msgspec.to_builtins(
        Reconciling(
            node=node.context.own_id(),
            ranges=len(journal.shards),
            entries=journal.entry_count,
            entry_bytes=journal.estimated_bytes(journal.entry_count),
            reconciled=reconciler.reconciled,
            pulled=reconciler.pulled,
            lags=lags,
            in_cohorts=journal.apart_count,
            getting=sum(logs.taking is not None for logs in journal.shards.values()),
            witnessed=witnessed_count(journal),
            witness_bytes=reconciler.witness_bytes,
            witness_bytes_max=reconciler.witness_bytes_max,
        )
    )
    return told
