"""How a CQL client begins: who it is, and what it asks for in its first message."""

from __future__ import annotations

from lockstep.cql.wire.compression import ALGORITHMS, SNAPPY
from lockstep.cql.wire.constants import uses_segments
from lockstep.cql.wire.messages import Request, Startup
from lockstep.values.errors import ProtocolViolation


def endpoint_of(name: object) -> tuple[str, int]:
    """Address and port of a client; nothing where the transport does not tell."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else ("", 0)


def startup_options(version: int, request: Request) -> dict[str, str]:
    """Of a STARTUP that can be served; ProtocolViolation for anything else."""
    if not isinstance(request, Startup):
        raise ProtocolViolation(f"Unexpected message {type(request).__name__.upper()} before STARTUP")
    compression = request.options.get("COMPRESSION", "").lower()
    if compression and compression not in ALGORITHMS:
        if compression == SNAPPY:
            raise ProtocolViolation("This instance does not support Snappy compression")
        raise ProtocolViolation(f"Unknown compression algorithm: {compression}")
    if compression == SNAPPY and uses_segments(version):
        raise ProtocolViolation("Snappy compression is not supported in protocol V5")
    if "CQL_VERSION" not in request.options:
        raise ProtocolViolation("Missing value CQL_VERSION in STARTUP message")
    return request.options
