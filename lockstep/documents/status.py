"""`status/1` and `nodes/1`: the verdict on a cluster, what is wrong, its nodes, and what runs."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from lockstep.documents.requests import Request


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
