"""Sockets of the running event loop.

Invariant: small writes go out at once (TCP_NODELAY, which both asyncio and uvloop set on every TCP
transport); a port that cannot be had is a ConfigurationError that names it.

Why a TLS handshake failed: event loops end such connections without a word to who listens.

Invariant: what is told changes nothing of how the handshake goes on.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.runtime.ports import FileReader, Tls
from lockstep.runtime.real import encrypted
from lockstep.runtime.real.files import SMALL_BYTES, BlockingSocket, Buffers, receive, send_file
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import RAW_THREADS_MAX

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import ThreadPoolExecutor


def tell_refusals(context: ssl.SSLContext, refused: Callable[[str], None]) -> None:
    """Have `refused` called with the reason of each handshake under this context that fails on this side."""

    class Handshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLCertVerificationError as error:
                refused(f"its certificate is refused: {error.verify_message}")
                raise
            except ssl.SSLError as error:
                refused(f"it does not speak TLS as this node does: {error.reason or error}")
                raise

    context.sslobject_class = Handshake


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
    """Network port. Its threads begin when they are needed."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._buffers = Buffers()

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.Protocol],
        tls: Tls | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> RealServer:
        loop = asyncio.get_running_loop()
        secured = _context(tls, listens=True) if tls is not None else None
        if secured is not None and refused is not None:
            from lockstep.runtime.real.network import tell_refusals

            tell_refusals(secured, refused)
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

    async def send_file(
        self, transport: asyncio.Transport, head: bytes, file: FileReader, offset: int, size: int
    ) -> None:
        if encrypted.is_encrypted(transport):
            await encrypted.send_file(transport, head, file, offset, size)
            return
        if size <= SMALL_BYTES:
            content = bytearray(size)
            if file.read_into(offset, memoryview(content)) < size:
                raise OSError("the file is shorter than what was promised of it")
            transport.write(head + content)
            return
        await self._blocking(transport, lambda link: send_file(link, head, file.fileno(), offset, size))

    async def receive(
        self, transport: asyncio.Transport, first: memoryview, size: int, take: Callable[[memoryview], None]
    ) -> bytes:
        if encrypted.is_encrypted(transport):
            return await encrypted.receive(transport, first, size, take)
        here, behind = first[:size], bytes(first[size:])
        if len(here) == size <= SMALL_BYTES:
            take(here)
        else:
            await self._blocking(transport, lambda link: receive(link, here, size, take, self._buffers))
        return behind

    async def _blocking(self, transport: asyncio.Transport, work: Callable[[socket.socket], None]) -> None:
        """Do `work` in a thread. A caller that is cancelled does not wait for it, but it ends soon."""
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(RAW_THREADS_MAX, thread_name_prefix="raw")
        link = BlockingSocket(transport)
        running = asyncio.get_running_loop().run_in_executor(self._threads, link.run, work)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_heard)
            link.wake()
            raise


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


def _heard(ended: asyncio.Future[None]) -> None:
    """Nobody waits for it any more."""
    if not ended.cancelled():
        ended.exception()
