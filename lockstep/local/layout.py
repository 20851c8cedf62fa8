"""Owns the directory of a local cluster: `cluster.toml`, and a directory a node.

Invariant: `cluster.toml` is replaced whole, and names each node's address once; a node's own directory
holds `lockstep.toml`, `data`, `node.log` and `pid`, and nothing is kept elsewhere.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from lockstep.local.processes import OWNER_DIRECTORY, owner_only
from lockstep.node.configuration import parse, render
from lockstep.node.settings import emit
from lockstep.values.errors import ConfigurationError, PreconditionError

#: Local clusters stop here: every node is a process with a log, a store and sockets of its own.
LOCAL_NODES_MAX: Final = 64
#: Nodes that start a cluster together; further ones join one after another.
LOCAL_FOUNDERS_MAX: Final = 3
#: Nodes that a joining one asks: founders and some that came later.
LOCAL_SEEDS_MAX: Final = 8

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class LocalNode(msgspec.Struct, frozen=True):
    """A node of a local cluster as its directory records it. `replaces`: the id of the node whose place it
    took, 0 when nobody's. `tokens`: how many it owns; -1 for as many as the settings say."""

    name: str
    address: str
    dc: str = "dc1"
    rack: str = "rack1"
    founder: bool = False
    replaces: int = 0
    tokens: int = -1


class ClusterFile(msgspec.Struct, frozen=True):
    """Content of `cluster.toml`. `settings` go into every node's `lockstep.toml`."""

    name: str
    first_address: str
    cql_port: int
    internode_port: int
    admin_port: int
    nodes: tuple[LocalNode, ...] = ()
    settings: dict[str, dict[str, Any]] = {}

    def node(self, name: str) -> LocalNode:
        """The node called `name`; ConfigurationError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise ConfigurationError(f"cluster {self.name} has no node {name}", hint=f"its nodes: {known}")


class Paths(msgspec.Struct, frozen=True):
    """Where everything of one cluster lies."""

    root: Path

    @property
    def cluster_file(self) -> Path:
        return self.root / "cluster.toml"

    def node(self, name: str) -> Path:
        return self.root / name

    def configuration(self, name: str) -> Path:
        return self.root / name / "lockstep.toml"

    def data(self, name: str) -> Path:
        return self.root / name / "data"

    def log(self, name: str) -> Path:
        return self.root / name / "node.log"

    def pid(self, name: str) -> Path:
        return self.root / name / "pid"


def clusters_home(environment: Mapping[str, str] | None = None) -> Path:
    """Directory of all local clusters: `$LOCKSTEP_HOME/clusters`, else `~/.lockstep/clusters`."""
    chosen = (os.environ if environment is None else environment).get("LOCKSTEP_HOME")
    return (Path(chosen) if chosen else Path.home() / ".lockstep") / "clusters"


def paths_of(name: str, home: Path) -> Paths:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"`{name}` cannot name a cluster", hint="use letters, digits, . _ and -")
    return Paths(home / name)


@contextmanager
def changing(paths: Paths) -> Iterator[None]:
    """One change of the cluster's file at a time, whichever process makes it. PreconditionError when there is
    no such cluster."""
    read(paths)
    with open(paths.root / "lock", "w", opener=owner_only) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(paths: Paths) -> ClusterFile:
    """PreconditionError when there is no such cluster."""
    try:
        document = tomllib.loads(paths.cluster_file.read_text())
    except FileNotFoundError:
        raise PreconditionError(
            f"there is no local cluster {paths.root.name}", hint="lockstep cluster list"
        ) from None
    flat = dict(document["cluster"])
    settings = {
        key.removeprefix("settings_"): value for key, value in document.items() if key.startswith("settings_")
    }
    return msgspec.convert({**flat, "nodes": document.get("nodes", []), "settings": settings}, ClusterFile)


def write(paths: Paths, content: ClusterFile) -> None:
    tables: dict[str, Any] = {
        "cluster": {
            "name": content.name,
            "first_address": content.first_address,
            "cql_port": content.cql_port,
            "internode_port": content.internode_port,
            "admin_port": content.admin_port,
        }
    }
    tables |= {f"settings_{section}": keys for section, keys in content.settings.items()}
    tables["nodes"] = [msgspec.to_builtins(node) for node in content.nodes]
    paths.root.mkdir(OWNER_DIRECTORY, parents=True, exist_ok=True)
    partial = paths.cluster_file.with_suffix(".new")
    _write(partial, emit(tables))
    partial.replace(paths.cluster_file)


def write_configuration(paths: Paths, content: ClusterFile, node: LocalNode) -> None:
    """Write `lockstep.toml` of a node. ConfigurationError when a setting is unknown or wrong."""
    founders = [f"{n.address}:{content.internode_port}" for n in content.nodes if n.founder]
    tables: dict[str, dict[str, Any]] = {
        "node": {"name": node.name, "data_directory": str(paths.data(node.name))},
        "cluster": {
            "name": content.name,
            **({"founders": founders} if node.founder else {"seeds": _seeds(content, node)}),
            **({"replaces": node.replaces} if node.replaces else {}),
        },
        "network": {
            "address": node.address,
            "internode_port": content.internode_port,
            "cql_port": content.cql_port,
            "admin_port": content.admin_port,
        },
        "placement": {"dc": node.dc, "rack": node.rack},
    }
    for section, keys in content.settings.items():
        tables[section] = {**tables.get(section, {}), **keys}
    if node.tokens >= 0:
        tables["placement"]["num_tokens"] = node.tokens
    configuration = parse(emit(tables), source=f"settings of cluster {content.name}")
    paths.node(node.name).mkdir(OWNER_DIRECTORY, parents=True, exist_ok=True)
    _write(paths.configuration(node.name), render(configuration))


def _write(path: Path, text: str) -> None:
    with open(path, "w", opener=owner_only) as file:
        file.write(text)


def _seeds(content: ClusterFile, node: LocalNode) -> list[str]:
    """Founders first, then the others: any of them may be gone by the time that this one starts."""
    others = sorted((n for n in content.nodes if n.name != node.name), key=lambda n: not n.founder)
    return [f"{n.address}:{content.internode_port}" for n in others[:LOCAL_SEEDS_MAX]]


def planned_nodes(count: int, dcs: Sequence[tuple[str, int]], first_address: str) -> tuple[LocalNode, ...]:
    """`count` nodes in `dc1`, or those that `dcs` (name, number of nodes) lists, at successive addresses.

    Founders are spread over the data centres, so that a lost one leaves a majority when it can.
    """
    places = [dc for dc, number in dcs for _ in range(number)] if dcs else ["dc1"] * count
    if not 1 <= len(places) <= LOCAL_NODES_MAX:
        raise ConfigurationError(f"a local cluster has 1 to {LOCAL_NODES_MAX} nodes, not {len(places)}")
    founders = _spread(places, LOCAL_FOUNDERS_MAX)
    return tuple(
        LocalNode(f"n{index + 1}", address_at(first_address, index), dc, founder=index in founders)
        for index, dc in enumerate(places)
    )


def address_at(first_address: str, index: int) -> str:
    """The loopback address `index` places after the first one."""
    try:
        address = ipaddress.IPv4Address(first_address) + index
    except ipaddress.AddressValueError as error:
        raise ConfigurationError(f"`{first_address}` is not an IPv4 address") from error
    if not address.is_loopback:
        raise ConfigurationError(f"{address} is not a loopback address", hint="use one of 127.0.0.0/8")
    return str(address)


def _spread(places: Sequence[str], most: int) -> set[int]:
    """Indexes of up to `most` members, taken from each place in turn."""
    ranks: dict[str, int] = {}
    ordered: list[tuple[int, int]] = []
    for index, place in enumerate(places):
        ranks[place] = ranks.get(place, -1) + 1
        ordered.append((ranks[place], index))
    return {index for _, index in sorted(ordered)[:most]}
