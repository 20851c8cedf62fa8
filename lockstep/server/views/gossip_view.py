"""What gossip brought: for the admin API, `system_views.gossip_info` and metrics.

Invariant: what a node says of itself comes from its soft state; address, state, tokens and place come from
the metadata of the node that is asked, in the very moment it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.node.services import NodeServices
from lockstep.schema.types import parse_uuid
from lockstep.server.metrics.samples import Sample
from lockstep.server.views.keyed_rows import Between, KeyedRows
from lockstep.server.views.live_views import view
from lockstep.server.views.virtual import VirtualTable
from lockstep.server.views.virtual_rows import VirtualRow
from lockstep.values.errors import ConfigurationError

Document = dict[str, Any]

PATH = "/v1/gossip"
_PHI_DIGITS = 2


def gossip(node: NodeServices, wanted: str | None = None) -> Document:
    """Every node that has not left, or the one with this id, host id or address. ConfigurationError."""
    rows = [_document(node, info) for info in _present(node)]
    if wanted is not None:
        rows = [row for row in rows if wanted in (str(row["node"]), row["host_id"], row["address"])]
        if not rows:
            raise ConfigurationError(f"there is no node {wanted}", hint="`lockstep status` lists them")
    return {
        "schema": "gossip/1",
        "asked": node.context.own_id(),
        "phi_threshold": node.context.configuration.gossip.phi_threshold,
        "rounds": node.membership.gossip.rounds,
        "nodes": rows,
    }


def _present(node: NodeServices) -> Iterator[NodeInfo]:
    return (info for info in node.log.cluster.directory.nodes if info.state is not NodeState.LEFT)


def _document(node: NodeServices, info: NodeInfo) -> Document:
    liveness, known = node.membership.liveness, node.membership.gossip.known(info.id)
    silent_s = liveness.silent_s(info.id)
    document: Document = {
        "node": info.id,
        "host_id": info.host_id,
        "address": info.address,
        "dc": info.dc,
        "rack": info.rack,
        "state": info.state.value,
        "tokens": len(info.tokens),
        "alive": liveness.alive(info.id),
        "excluded": info.id in node.log.cluster.excluded_by_node,
        "preferred": liveness.prefers(info.id),
        "phi": round(liveness.phi(info.id), _PHI_DIGITS),
        "silent_s": round(silent_s, 3) if silent_s is not None else None,
        "heard": known is not None,
    }
    if known is not None:
        told, now_us = known.state, node.context.runtime.clock.wall_us()
        document |= {
            "generation": known.version.generation,
            "version": known.version.version,
            "age_s": round(node.membership.gossip.age_s(known), 3),
            "ready": told.ready,
            "load_bytes": told.load_bytes if told.load_bytes >= 0 else None,
            "release": told.release,
            "epoch": told.epoch,
            "schema_version": told.schema_version.hex(),
            "streams": told.streams,
            "uptime_s": max(0, (now_us - told.started_us) // 1_000_000),
        }
    return document


class GossipTable:
    """`system_views.gossip_info`."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def table(self) -> VirtualTable:
        return view(
            "gossip_info",
            "node_id int; host_id uuid; address inet; state text; is_alive boolean; is_excluded boolean; "
            "is_preferred boolean; phi double; silent_s double; generation bigint; version bigint; "
            "age_s double; is_ready boolean; load_bytes bigint; release_version text; epoch bigint; "
            "schema_version text; streams int; uptime_s bigint",
            ("node_id",),
            (),
            KeyedRows(self._rows, self._row_of),
            "What each node says of itself, as gossip brought it here, and how strongly it is suspected",
        )

    def _rows(self) -> Iterator[VirtualRow]:
        return (self._row(info) for info in _present(self._node))

    def _row_of(self, node_id: Any, _all: Between) -> Iterator[VirtualRow]:
        info = self._node.log.cluster.directory.by_id.get(node_id)
        if info is not None and info.state is not NodeState.LEFT:
            yield self._row(info)

    def _row(self, info: NodeInfo) -> VirtualRow:
        document = _document(self._node, info)
        return {
            **document,
            "node_id": info.id,
            "host_id": parse_uuid(info.host_id),
            "is_alive": document["alive"],
            "is_excluded": document["excluded"],
            "is_preferred": document["preferred"],
            "is_ready": document.get("ready"),
            "release_version": document.get("release"),
        }


def gossip_samples(node: NodeServices) -> Iterator[Sample]:
    yield Sample("lockstep_gossip_rounds_total", node.membership.gossip.rounds)
    yield Sample("lockstep_gossip_messages_total", node.membership.gossip.sent)
    yield Sample("lockstep_gossip_failures_total", node.membership.gossip.failures)
    for info in _present(node):
        labels = (("node", str(info.id)), ("address", info.address))
        phi = round(node.membership.liveness.phi(info.id), _PHI_DIGITS)
        yield Sample("lockstep_gossip_phi", phi, labels)
