"""`bin/cassandra` of the directory that ccm takes for an install: turns cassandra.yaml into a node and
becomes it.

Owns: the translation of settings, and the log lines that ccm and the tests that use it wait for. Invariant:
the process in the pid file is the node itself, so that every signal reaches it; a companion follows the
node's words and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lockstep.local.admin_client import NO_CREDENTIAL, AdminClient, Credential, of_node
from lockstep.local.clusters import JOIN_SECRET_BYTES
from lockstep.local.processes import node_environment, owner_only
from lockstep.node.settings import emit
from lockstep.values.errors import ConfigurationError, LockstepError, PeerError

ADMIN_PORT: Final = 7080
_SCALAR: Final = re.compile(r"^([a-z_]+): *(.*)$", re.MULTILINE)
_SEEDS: Final = re.compile(r"^[- ]+seeds: *(.*)$", re.MULTILINE)
#: cassandra.yaml -> section and key of ours, for settings that mean the same.
_TIMEOUTS: Final = {
    "write_request_timeout_in_ms": ("timeouts", "write_ms"),
    "write_request_timeout": ("timeouts", "write_ms"),
    "read_request_timeout_in_ms": ("timeouts", "read_ms"),
    "read_request_timeout": ("timeouts", "read_ms"),
    "range_request_timeout_in_ms": ("timeouts", "range_read_ms"),
    "range_request_timeout": ("timeouts", "range_read_ms"),
}


def main() -> None:
    """`cassandra -p PIDFILE [-Dname=value ...]`, with CASSANDRA_CONF in the environment."""
    try:
        run(sys.argv[1:], os.environ)
    except LockstepError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(error.exit_code)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write the node's configuration and start the node, whose process leaves this one behind."""
    if "-v" in arguments:
        from lockstep.values.ids import CASSANDRA_RELEASE

        print(CASSANDRA_RELEASE)
        return
    home = node_home(environment)
    defined = dict(part[2:].partition("=")[::2] for part in arguments if part.startswith("-D"))
    settings = yaml_settings((home / "conf" / "cassandra.yaml").read_text())
    configuration = home / "lockstep.toml"
    tables = translated(
        home, settings, defined.get("cassandra.replace_address", ""), data_centre(home, settings)
    )
    configuration.write_text(emit(tables))
    log = home / "logs" / "system.log"
    log.parent.mkdir(exist_ok=True)
    started = os.fork()
    if started:
        # As Cassandra's own script does: it ends when the node is on its way.
        if "-p" in arguments:
            Path(arguments[list(arguments).index("-p") + 1]).write_text(str(started))
        return
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    begin = os.fstat(output).st_size
    os.dup2(output, 1)
    os.dup2(output, 2)
    followed = [sys.executable, "-P", "-m", "lockstep.testing.ccm_log", str(log), str(begin)]
    own = node_environment(environment)
    subprocess.Popen(
        [*followed, settings["rpc_address"], settings["native_transport_port"], str(ADMIN_PORT), str(home)],
        stdin=subprocess.DEVNULL,
        env=own,
    )
    node = [sys.executable, "-P", "-m", "lockstep.server.main", "--config", str(configuration)]
    os.execve(sys.executable, node, own)


def node_home(environment: Mapping[str, str]) -> Path:
    """ccm's directory of the node."""
    conf = environment.get("CASSANDRA_CONF")
    if not conf:
        raise ConfigurationError("CASSANDRA_CONF does not name a directory", hint="ccm sets it")
    return Path(conf).absolute().parent


def yaml_settings(text: str) -> dict[str, str]:
    """The scalars at the top of cassandra.yaml as ccm writes it, and `seeds`."""
    found = {name: value.strip().strip("'\"") for name, value in _SCALAR.findall(text)}
    seeds = _SEEDS.search(text)
    found["seeds"] = seeds.group(1).strip().strip("'\"") if seeds else ""
    return found


def data_centre(home: Path, settings: Mapping[str, str]) -> tuple[str, str]:
    """Data centre and rack of the node, as the snitch would read them."""
    if settings.get("endpoint_snitch", "").endswith("PropertyFileSnitch"):
        gossiping = settings["endpoint_snitch"].endswith("GossipingPropertyFileSnitch")
        name = "cassandra-rackdc.properties" if gossiping else "cassandra-topology.properties"
        text = (home / "conf" / name).read_text()
        known = dict(
            line.strip().split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#"
        )
        if gossiping:
            return known.get("dc", "dc1"), known.get("rack", "rack1")
        dc, _, rack = known.get(settings["listen_address"], known.get("default", "dc1:rack1")).partition(":")
        return dc, rack
    return "datacenter1", "rack1"


def translated(
    home: Path, settings: Mapping[str, str], replaced: str, place: tuple[str, str]
) -> dict[str, dict[str, Any]]:
    """Tables of lockstep.toml. The first seed founds the cluster, all others join."""
    address, port = settings["listen_address"], int(settings["storage_port"])
    seeds = [
        f"{seed.strip().partition(':')[0]}:{port}" for seed in settings["seeds"].split(",") if seed.strip()
    ]
    own = f"{address}:{port}"
    # ccm gives each node the seeds that were made before it: the first one has none, or is the first of them.
    founds = not replaced and seeds[:1] in ([], [own])
    cluster: dict[str, Any] = {"name": settings.get("cluster_name", "test")}
    cluster |= {"founders": [own]} if founds else {"seeds": [seed for seed in seeds if seed != own]}
    if replaced:
        cluster["replaces"] = _node_at(home, replaced, [seed.partition(":")[0] for seed in seeds])
    tables: dict[str, dict[str, Any]] = {
        "node": {"name": home.name, "data_directory": str(data_directory(home))},
        "cluster": cluster,
        "network": {
            "address": settings["rpc_address"],
            "internode_port": port,
            "cql_port": int(settings["native_transport_port"]),
            "admin_port": ADMIN_PORT,
        },
        "placement": {
            "dc": place[0],
            "rack": place[1],
            "num_tokens": int(settings.get("num_tokens") or 16),
        },
    }
    for name, (section, key) in _TIMEOUTS.items():
        digits = settings.get(name, "").removesuffix("ms")
        if digits.isdecimal():
            tables.setdefault(section, {})[key] = int(digits)
    if settings.get("authenticator", "").endswith("PasswordAuthenticator"):
        tables["auth"] = {"authenticator": "password"}
        if settings.get("authorizer", "").endswith("CassandraAuthorizer"):
            tables["auth"]["authorizer"] = "role-based"
        cluster["join_secret_file"] = str(join_secret_file(home.parent))
    return tables


def join_secret_file(directory: Path) -> Path:
    """The secret of all nodes of a ccm cluster, made when the first one starts that asks for passwords."""
    file = directory / "join.secret"
    with contextlib.suppress(FileExistsError), open(file, "x", opener=owner_only) as made:
        made.write(f"{secrets.token_hex(JOIN_SECRET_BYTES)}\n")
    return file


def data_directory(home: Path) -> Path:
    """Where a node keeps its data, below ccm's directory of it."""
    return home / "data0"


def beside(home: Path, address: str) -> Credential:
    """What the node at an address is shown, for one of ccm's directory that `home` is in."""
    for other in sorted(home.parent.glob("*/lockstep.toml")):
        if f'address = "{address}"' in other.read_text().splitlines():
            return of_node(data_directory(other.parent))
    return NO_CREDENTIAL


def _node_at(home: Path, address: str, seeds: Sequence[str]) -> int:
    """The id of the member at an address, as any seed knows it."""
    for seed in seeds:
        try:
            nodes = (
                AdminClient(seed, ADMIN_PORT, credential=beside(home, seed)).get("/v1/nodes").get("nodes", [])
            )
        except PeerError:
            continue
        for node in nodes:
            if node.get("address") == address:
                return int(node["id"])
    raise ConfigurationError(f"no seed knows a node at {address}")


if __name__ == "__main__":
    main()
