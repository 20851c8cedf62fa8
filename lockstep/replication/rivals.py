"""Two processes that say they are the same host, or stand at the same address.

Invariant: of two that were both heard lately the one that came first stays; one that was silent for long
gives way, and must introduce itself again.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.replication.connection import Connection
from lockstep.replication.handshake import Hello


def conflict(
    incoming: Iterable[Connection], connection: Connection, theirs: Hello, heard_after_s: float
) -> str | None:
    """Why `connection`, which introduces itself as `theirs`, is refused; None when nobody is in its way.

    Those in its way that were not heard since `heard_after_s` are closed.
    """
    silent: list[Connection] = []
    for other in incoming:
        known = other.peer
        if other is connection or known is None:
            continue
        if (known.endpoint == theirs.endpoint) == (known.host_id == theirs.host_id):
            continue  # It is the same process, or they have nothing in common.
        if other.heard_s <= heard_after_s:
            silent.append(other)
        elif known.endpoint == theirs.endpoint:
            return f"address {theirs.address}:{theirs.port} is in use by host {known.host_id}"
        else:
            where = f"{known.address}:{known.port}"
            return f"host {known.host_id} is in use at {where}: a data directory serves one node"
    for other in silent:
        other.close("another process has its address or its host id")
    return None
