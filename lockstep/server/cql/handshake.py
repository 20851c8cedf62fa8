"""What a connection begins with: the options that are offered, and those of a STARTUP that can be served."""

from __future__ import annotations

from typing import Final

from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import USES_SEGMENTS, VERSION_NAMES
from lockstep.cql.wire.frames import ALGORITHMS, SNAPPY
from lockstep.cql.wire.messages import Request, Startup
from lockstep.server.statements.tablet_routing import TABLETS_ROUTING
from lockstep.values.errors import ProtocolViolation

CQL_VERSION: Final = "3.4.7"
SUPPORTED: Final = responses.supported(
    {
        "CQL_VERSION": [CQL_VERSION],
        "COMPRESSION": list(ALGORITHMS),
        "PROTOCOL_VERSIONS": list(VERSION_NAMES),
        TABLETS_ROUTING: [""],
    }
)


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
    if compression == SNAPPY and version in USES_SEGMENTS:
        raise ProtocolViolation("Snappy compression is not supported in protocol V5")
    if "CQL_VERSION" not in request.options:
        raise ProtocolViolation("Missing value CQL_VERSION in STARTUP message")
    return request.options
