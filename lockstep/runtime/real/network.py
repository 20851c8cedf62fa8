"""Sockets of the running event loop.

Invariant: small writes go out at once (TCP_NODELAY, which both asyncio and uvloop set on every TCP
transport); a port that cannot be had is a ConfigurationError that names it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.runtime.ports import Tls
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

_UNUSABLE = {
    errno.EADDRINUSE: ("is in use", "stop the other process or choose another port"),
    errno.EADDRNOTAVAIL: ("is not an address of this host", "check the listen address in the configuration"),
    errno.EACCES: ("may not be used by this user", "choose a port above 1023"),
}


def require_free(host: str, port: int) -> None:
    """ConfigurationError when `listen` there would fail now. Nothing listens meanwhile."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _unusable(host, port, error) from error


def _unusable(host: str, port: int, error: OSError) -> Exception:
    if isinstance(error, socket.gaierror):
        return ConfigurationError(f"address {host} cannot be resolved: {error.strerror}")
    why, hint = _UNUSABLE.get(error.errno or 0, (None, ""))
    if why is None:
        return error
    return ConfigurationError(f"address {host}:{port} {why}", hint=hint)


class RealServer:
    """A listening port; `port` is the one in use when 0 was asked for."""

    def __init__(self, server: asyncio.Server, host: str) -> None:
        self._server = server
        self.host = host
        self.port: int = server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()


class RealNetwork:
    """Network port."""

    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol], tls: Tls | None = None
    ) -> RealServer:
        loop = asyncio.get_running_loop()
        secured = _context(tls, listens=True) if tls is not None else None
        try:
            return RealServer(await loop.create_server(protocol, host, port, ssl=secured), host)
        except OSError as error:
            raise _unusable(host, port, error) from error

    async def connect(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol], tls: Tls | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        loop = asyncio.get_running_loop()
        secured = _context(tls, listens=False) if tls is not None else None
        transport, made = await loop.create_connection(protocol, host, port, ssl=secured)
        return transport, made


def require_usable(tls: Tls) -> None:
    """ConfigurationError when a file that `listen` or `connect` would need cannot be used."""
    _context(tls, listens=True)


def _context(tls: Tls, *, listens: bool) -> ssl.SSLContext:
    """What Python's ssl makes of the files; loaded only where connections are encrypted."""
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # Nodes are known by addresses that change, so a certificate proves who signed it and not where it is.
    made.check_hostname = False
    try:
        made.load_cert_chain(tls.certificate, tls.key)
        if tls.ca:
            made.load_verify_locations(tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the certificate {tls.certificate}, its key or its authority cannot be used: {error}",
            hint="they are PEM files that this user can read; the key has no passphrase",
        ) from error
    if tls.ca:
        made.verify_mode = ssl.CERT_REQUIRED if tls.mutual or not listens else ssl.CERT_OPTIONAL
    return made
