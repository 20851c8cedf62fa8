"""The companion of a node under ccm: says in the node's log what ccm waits for, in Cassandra's words.

`ccm_log LOG BEGIN ADDRESS CQL_PORT ADMIN_PORT HOME`. Invariant: a line about a peer is written when the
node's own opinion of that peer changed; the companion ends when the node, its parent, is gone.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

from lockstep.local.admin_client import AdminClient, of_node
from lockstep.testing.ccm_node import data_directory
from lockstep.values.errors import LockstepError

#: ccm itself looks once a second.
LOOK_S: Final = 0.2
_ASK_S: Final = 1.0


def main() -> None:
    log, begin = Path(sys.argv[1]), int(sys.argv[2])
    address, cql_port, admin_port = sys.argv[3], sys.argv[4], int(sys.argv[5])
    node = os.getppid()
    data = data_directory(Path(sys.argv[6]))
    ready = False
    seen: dict[str, bool] = {}
    while os.getppid() == node:
        time.sleep(LOOK_S)
        if not ready:
            ready = has_said_ready(log, begin)
            if ready:
                say(f"Starting listening for CQL clients on /{address}:{cql_port} (unencrypted)...")
            continue
        # The token is there by the time that the node is ready.
        admin = AdminClient(address, admin_port, _ASK_S, of_node(data))
        for line in changes(seen, opinions(admin, address)):
            say(line)


def has_said_ready(log: Path, begin: int) -> bool:
    """Whether the node has told that it serves clients, since it began to log there."""
    with log.open("rb") as file:
        file.seek(begin)
        return any(line.startswith(b"ready {") for line in file)


def opinions(admin: AdminClient, own: str) -> dict[str, bool]:
    """Address -> whether it is up, for the other members; nothing when the node does not answer."""
    try:
        nodes = admin.get("/v1/status").get("nodes", [])
    except LockstepError:
        return {}
    return {
        str(node["address"]): bool(node.get("alive"))
        for node in nodes
        if node.get("address") != own and node.get("state") != "left"
    }


def changes(seen: dict[str, bool], now: dict[str, bool]) -> list[str]:
    """Lines for what is new in `now`; `seen` is brought up to it."""
    lines = []
    for address, alive in now.items():
        if seen.get(address, False) is not alive:
            lines.append(f"InetAddress /{address} is now {'UP' if alive else 'DOWN'}")
        seen[address] = alive
    return lines


def say(text: str) -> None:
    """One line in the form of Cassandra's system.log."""
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    print(f"INFO  [main] {now},000 Lockstep - {text}", flush=True)


if __name__ == "__main__":
    main()
