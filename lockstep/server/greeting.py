"""How a CQL client begins: who it is, and what it asks for in its first message."""

from __future__ import annotations

from lockstep.cql.wire.compression import ALGORITHMS
from lockstep.cql.wire.messages import Request, Startup
from lockstep.values.errors import ProtocolViolation


def endpoint_of(name: object) -> tuple[str, int]:
    """Address and port of a client; nothing where the transport does not tell."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else ("", 0)


def startup_options(request: Request) -> dict[str, str]:
    """Of a STARTUP that can be served; ProtocolViolation for anything else."""
    if not isinstance(request, Startup):
        raise ProtocolViolation(f"Unexpected message {type(request).__name__.upper()} before STARTUP")
    compression = request.options.get("COMPRESSION", "").lower()
    if compression and compression not in ALGORITHMS:
        raise ProtocolViolation(f"Unknown compression algorithm: {compression}")
    if "CQL_VERSION" not in request.options:
        raise ProtocolViolation("Missing value CQL_VERSION in STARTUP message")
    return request.options
