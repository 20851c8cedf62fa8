"""`bin/nodetool` of the directory that ccm takes for an install: the commands that ccm and tests through it
use.

Owns: Cassandra's words for what the admin API answers. Invariant: a command that has no meaning here,
because the node does it by itself, succeeds and says nothing; one that is not known fails.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lockstep.local.admin_client import AdminClient
from lockstep.testing.ccm_node import ADMIN_PORT, beside, node_home, yaml_settings
from lockstep.values.errors import ConfigurationError, LockstepError, PeerTimeout
from lockstep.values.ids import CASSANDRA_RELEASE

_ENDED: Final = ("done", "failed", "cancelled")
_OPERATION_S: Final = 600.0
_LOOK_S: Final = 0.05
_METRICS_S: Final = 10.0
_DONE: Final = "lockstep_server_request_duration_seconds_count"
#: (Cassandra's pool, metric of what runs, metric and label of what is done).
_POOLS: Final = (
    ("Native-Transport-Requests", "lockstep_server_requests_in_flight", _DONE, ""),
    ("ReadStage", "lockstep_replication_reads_in_flight", _DONE, 'operation="read"'),
    ("MutationStage", "lockstep_replication_writes_in_flight", _DONE, 'operation="write"'),
)
#: The store flushes, merges and cleans by itself, and there is nothing to warm or to trace.
_NOTHING: Final = (
    "cleanup",
    "compact",
    "disableautocompaction",
    "drain",
    "enableautocompaction",
    "flush",
    "refresh",
    "scrub",
    "setlogginglevel",
    "settraceprobability",
    "upgradesstables",
)


def main() -> None:
    """`nodetool [-h HOST] [-p PORT] COMMAND ...`, with CASSANDRA_CONF in the environment."""
    try:
        home = node_home(os.environ)
        settings = yaml_settings((home / "conf" / "cassandra.yaml").read_text())
        said = answer(command(sys.argv[1:]), _admin_at(home, settings["rpc_address"]))
    except LockstepError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(error.exit_code)
    if said:
        print(said)


def command(arguments: Sequence[str]) -> list[str]:
    """The command and its arguments, without where nodetool would connect to."""
    left = list(arguments)
    while left and left[0] in ("-h", "-p", "-u", "-pw", "--host", "--port"):
        del left[:2]
    return left


def answer(words: Sequence[str], admin: AdminClient) -> str:
    """What the command prints. ConfigurationError for one that is not known."""
    name = words[0] if words else "status"
    if name in _NOTHING:
        return ""
    act = _COMMANDS.get(name)
    if act is None:
        known = ", ".join(sorted((*_COMMANDS, *_NOTHING)))
        raise ConfigurationError(f"nodetool {name} is not known here", hint=f"known are {known}")
    return act(admin, words[1:])


def _status(admin: AdminClient, _: Sequence[str]) -> str:
    nodes = _members(admin)
    lines: list[str] = []
    for dc in dict.fromkeys(str(node.get("dc")) for node in nodes):
        title = f"Datacenter: {dc}"
        lines += [title, "=" * len(title), "Status=Up/Down", "|/ State=Normal/Leaving/Joining/Moving"]
        lines.append("--  Address  Load  Tokens  Owns  Host ID  Rack")
        lines += [_row(node) for node in nodes if node.get("dc") == dc]
    return "\n".join(lines)


_STATES: Final = {"leaving": "L", "joining": "J", "moving": "M"}


def _row(node: dict[str, Any]) -> str:
    letters = ("U" if node.get("alive") else "D") + _STATES.get(str(node.get("state")), "N")
    facts = (node.get("address"), "?", node.get("tokens", "?"), "?", node.get("host_id"), node.get("rack"))
    return f"{letters}  " + "  ".join(str(fact) for fact in facts)


def _info(admin: AdminClient, _: Sequence[str]) -> str:
    node = _own(admin)
    facts = {
        "ID": node.get("host_id"),
        "Gossip active": "true",
        "Native Transport active": "true",
        "Load": "0.00 KiB",
        "Data Center": node.get("dc"),
        "Rack": node.get("rack"),
        "Exceptions": 0,
    }
    return "\n".join(f"{name:<23}: {value}" for name, value in facts.items())


def _decommission(admin: AdminClient, _: Sequence[str]) -> str:
    _operate(admin, {"kind": "decommission", "node": _own(admin)["id"]})
    return ""


def _remove(admin: AdminClient, words: Sequence[str]) -> str:
    wanted = words[0] if words else ""
    found = [node for node in _members(admin) if wanted in (node.get("host_id"), str(node.get("id")))]
    if not found:
        raise ConfigurationError(f"no node has the host id {wanted}")
    _operate(admin, {"kind": "remove", "node": found[0]["id"]})
    return ""


def _repair(admin: AdminClient, words: Sequence[str]) -> str:
    """`repair [options] [keyspace [tables]]`; ranges and replicas are the node's to choose."""
    named = [word for word in words if not word.startswith("-")]
    full = not {"-full", "--full"}.isdisjoint(words)
    keyspace, tables = (named[0], named[1:]) if named else ("", ())
    for table in tables or ("",):
        body = {"keyspace": keyspace, "table": table, "incremental": not full, "full": full}
        run = admin.post("/v1/repairs", body)
        run = _ended(run, lambda found: admin.get(f"/v1/repairs/{found['id']}"))
        if run["state"] != "done":
            raise LockstepError(f"repair {run['id']} {run['state']}: {run.get('reason')}")
    return "Repair completed successfully"


def _pools(admin: AdminClient, _: Sequence[str]) -> str:
    """What Cassandra's pools come nearest to: requests of clients, and what this node coordinates."""
    address = f"http://{admin.host}:{ADMIN_PORT}/metrics"
    with urllib.request.urlopen(address, timeout=_METRICS_S) as answer:
        text = answer.read().decode()
    pairs = (line.rpartition(" ") for line in text.splitlines() if line[:1] not in ("", "#"))
    found = {name: float(value) for name, _, value in pairs}
    lines = [
        f"{'Pool Name':<28}{'Active':>8}{'Pending':>9}{'Completed':>11}{'Blocked':>9}{'All time blocked':>18}"
    ]
    for pool, active, done, label in _POOLS:
        completed = int(sum(found[name] for name in found if name.startswith(done) and label in name))
        lines.append(f"{pool:<28}{int(found.get(active, 0)):>8}{0:>9}{completed:>11}{0:>9}{0:>18}")
    return "\n".join(lines)


def _ended(run: dict[str, Any], look: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    deadline = time.monotonic() + _OPERATION_S
    while run.get("state") not in _ENDED:
        if time.monotonic() > deadline:
            raise PeerTimeout(f"{run.get('id')} still runs")
        time.sleep(_LOOK_S)
        run = look(run)
    return run


def _admin_at(home: Path, address: str) -> AdminClient:
    return AdminClient(address, ADMIN_PORT, credential=beside(home, address))


def _operate(admin: AdminClient, wanted: dict[str, Any]) -> None:
    # The node that leaves ends before it could tell how it went.
    others = [n for n in _members(admin) if n.get("alive") and n["id"] != wanted["node"]]
    if others:
        admin = _admin_at(node_home(os.environ), str(others[0]["address"]))
    request = admin.post("/v1/requests", {**wanted, "dry_run": False})
    request = _ended(request, lambda found: admin.get(f"/v1/requests/{found['id']}"))
    if request["state"] != "done":
        raise LockstepError(f"request {request['id']} {request['state']}: {request.get('error')}")


def _members(admin: AdminClient) -> list[dict[str, Any]]:
    return [node for node in admin.get("/v1/status").get("nodes", []) if node.get("state") != "left"]


def _own(admin: AdminClient) -> dict[str, Any]:
    return next(node for node in _members(admin) if node.get("address") == admin.host)


_COMMANDS: Final[dict[str, Callable[[AdminClient, Sequence[str]], str]]] = {
    "compactionstats": lambda *_: "pending tasks: 0",
    "decommission": _decommission,
    "info": _info,
    "removenode": _remove,
    "repair": _repair,
    "status": _status,
    "statusbinary": lambda *_: "running",
    "statusgossip": lambda *_: "running",
    "tpstats": _pools,
    "version": lambda *_: f"ReleaseVersion: {CASSANDRA_RELEASE}",
}


if __name__ == "__main__":
    main()
