"""`gossip/1`: what nodes say of themselves, and how alive they seem to the node that is asked."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


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
