"""`status/1` and `nodes/1`, the verdict on a cluster, what is wrong, its nodes, and what runs; `gossip/1`,
what nodes say of themselves; `placements/1`, who holds each range of a keyspace; `describe/1`, the CQL that
makes it; `features/1`, what nodes can do.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from lockstep.documents.requests import Request
from lockstep.documents.runs import LoadRun, ReadSessionRun


class ClusterName(msgspec.Struct, frozen=True):
    id: str = ""
    name: str = "?"


class AskedNode(msgspec.Struct, frozen=True):
    """The node that answers."""

    id: int = 0
    host_id: str = ""
    address: str = "?"


class Condition(msgspec.Struct, frozen=True):
    """Something that is wrong; `node` is null for the whole cluster."""

    code: str
    level: str
    node: int | None = None
    subject: str = ""
    since_us: int | None = None
    detail: str = ""
    summary: str = ""
    at_risk: str = ""
    hint: str = ""
    page: str = ""


class Excluded(msgspec.Struct, frozen=True):
    node: int
    since_epoch: int
    reason: str = ""


class ExcludedNodes(msgspec.Struct, frozen=True):
    """`excluded/1`: who is shut out, or would be."""

    schema: str = "excluded/1"
    epoch: int = 0
    dry_run: bool | UnsetType = UNSET
    excluded: tuple[Excluded, ...] = ()
    base: dict[str, Any] | UnsetType = UNSET


class GroupGlance(msgspec.Struct, frozen=True):
    """A consensus group by signs of life alone."""

    state: str
    available: bool = False
    available_peers: int = 0


class ListedNode(msgspec.Struct, frozen=True):
    """`owns` is its share of all tokens, `epoch` the newest that was heard of it."""

    id: int
    host_id: str = ""
    address: str = ""
    cql_port: int = 0
    internode_port: int = 0
    admin_port: int = 0
    dc: str = ""
    rack: str = ""
    state: str = ""
    alive: bool = False
    excluded: bool = False
    tokens: int = 0
    owns: float | None = None
    voter: bool = False
    epoch: int | None = None


class Nodes(msgspec.Struct, frozen=True):
    schema: str = "nodes/1"
    epoch: int = 0
    nodes: tuple[ListedNode, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """`level` is healthy, degraded or unavailable; `broken` says why this node stopped taking entries."""

    schema: str = "status/1"
    ready: bool = False
    cluster: ClusterName = ClusterName()
    epoch: int = 0
    hash: str = ""
    node: AskedNode = AskedNode()
    leader: int | None = None
    level: str = "unavailable"
    verdict: str = "unknown"
    conditions: tuple[Condition, ...] = ()
    broken: str | None = None
    frozen: str = ""
    excluded: tuple[Excluded, ...] = ()
    groups: dict[str, GroupGlance] = {}
    nodes: tuple[ListedNode, ...] = ()
    operations: tuple[Request, ...] = ()
    loads: tuple[LoadRun, ...] = ()
    read_sessions: tuple[ReadSessionRun, ...] = ()
    #: How changes are agreed on where the cluster runs on the ring without a log; empty where it has one.
    ring_mode: str = ""


class GossipNode(msgspec.Struct, frozen=True):
    """What follows `heard` is of the node's own words, and there once some have come here."""

    node: int
    host_id: str = ""
    address: str = ""
    dc: str = ""
    rack: str = ""
    state: str = ""
    tokens: int = 0
    alive: bool = False
    excluded: bool = False
    preferred: bool = False
    phi: float = 0.0
    silent_s: float | None = None
    heard: bool = False
    generation: int | UnsetType = UNSET
    version: int | UnsetType = UNSET
    age_s: float | UnsetType = UNSET
    ready: bool | UnsetType = UNSET
    load_bytes: int | UnsetType | None = UNSET
    release: str | UnsetType = UNSET
    epoch: int | UnsetType = UNSET
    schema_version: str | UnsetType = UNSET
    streams: int | UnsetType = UNSET
    uptime_s: int | UnsetType = UNSET


class Gossip(msgspec.Struct, frozen=True):
    schema: str = "gossip/1"
    asked: int = 0
    phi_threshold: float = 0.0
    rounds: int = 0
    nodes: tuple[GossipNode, ...] = ()


class InjectedState(msgspec.Struct, frozen=True):
    """`load_bytes` -1: not known."""

    ready: bool = False
    epoch: int = 0
    load_bytes: int = -1
    release: str = ""


class GossipInjection(msgspec.Struct, frozen=True):
    """`alive`: the node is up as far as the asked node knows, and will say otherwise. `generation` and
    `version`: under which the state spreads."""

    node: int
    alive: bool = False
    generation: int = 0
    version: int = 0
    before: InjectedState = InjectedState()
    after: InjectedState = InjectedState()
    dry_run: bool = False
    schema: str = "gossip-injection/1"


class PlacedRange(msgspec.Struct, frozen=True):
    """Tokens above `start` up to `end`; `epoch` changed their replicas last. `witnesses`: those of `reads`
    that have no rows."""

    start: int
    end: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    epoch: int = 0
    witnesses: tuple[int, ...] = ()


class Placements(msgspec.Struct, frozen=True):
    schema: str = "placements/1"
    keyspace: str = ""
    table: str = ""
    epoch: int = 0
    ranges: tuple[PlacedRange, ...] = ()


class Statement(msgspec.Struct, frozen=True):
    """`type` is keyspace or table."""

    type: str = ""
    name: str = ""
    cql: str = ""


class Description(msgspec.Struct, frozen=True):
    schema: str = "describe/1"
    keyspace: str = ""
    statements: tuple[Statement, ...] = ()


class Feature(msgspec.Struct, frozen=True):
    """`waits`: why it is not enabled although all nodes support it."""

    name: str
    description: str = ""
    enabled: bool = False
    supported_by: tuple[int, ...] = ()
    lacking: tuple[int, ...] = ()
    waits: tuple[str, ...] = ()


class Features(msgspec.Struct, frozen=True):
    schema: str = "features/1"
    epoch: int = 0
    announced_epoch: int = 0
    features: tuple[Feature, ...] = ()
