"""Which credential a command shows to a node that is named by address: the first that is at hand.

Invariant: a token goes only to the address whose node keeps it; nothing is asked of any node.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from lockstep.local import credentials
from lockstep.local.clusters import list_clusters
from lockstep.local.credentials import Credential
from lockstep.values.errors import LockstepError

#: Where nodes keep their data that were told nothing else, below the directory they were started in.
DATA_HOME: Final = Path("lockstep-data")


def found_for(host: str, port: int, ca_file: str = "") -> Credential:
    """The token of the local cluster's node at this address and admin port, or of a node whose data lies in
    `./lockstep-data`; no token when there is neither."""
    addresses = addresses_of(host)
    for cluster in list_clusters():
        try:
            content = cluster.file
        except (LockstepError, ValueError, KeyError):
            continue  # Being made or destroyed at this moment.
        for node in content.nodes:
            if content.admin_port == port and node.address in addresses:
                found = cluster.credential(node.name)
                return Credential(found.authorization, ca_file or found.ca_file)
    names = sorted({*addresses, host})
    near = [path for name in names for path in sorted(DATA_HOME.glob(f"{name}*/{credentials.TOKEN_FILE}"))]
    return credentials.of_node(near[0].parent, ca_file) if len(near) == 1 else Credential("", ca_file)


def addresses_of(host: str) -> set[str]:
    """What a name stands for."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}
