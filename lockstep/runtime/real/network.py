"""Sockets of the running event loop, and raw bytes over encrypted connections: only their transports can read
and write them.

Invariant: small writes go out at once (TCP_NODELAY, which both asyncio and uvloop set on every TCP
transport); a port that cannot be had is a ConfigurationError that names it. What is told changes nothing of
how the handshake goes on. The transport's protocol is the one it had, and reading is paused, whenever a call
here ends.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.runtime.ports import FileReader, Tls
from lockstep.runtime.real.files import SMALL_BYTES, BlockingSocket, Buffers, receive, send_file
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import RAW_PIECE_BYTES, RAW_SILENT_MS, RAW_THREADS_MAX

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


#: How often a transport is looked at that has yet to write what it was given.
_LOOK_MS = 1


def is_encrypted(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("ssl_object") is not None


async def encrypted_send_file(
    transport: asyncio.Transport, head: bytes, file: FileReader, offset: int, size: int
) -> None:
    """As the network's `send_file`."""
    transport.write(head)
    end = offset + size
    while offset < end:
        piece = bytearray(min(RAW_PIECE_BYTES, end - offset))
        if file.read_into(offset, memoryview(piece)) < len(piece):
            raise OSError("the file is shorter than what was promised of it")
        transport.write(piece)
        offset += len(piece)
        await _written(transport)


async def _written(transport: asyncio.Transport) -> None:
    await asyncio.sleep(0)
    for _ in range(RAW_SILENT_MS // _LOOK_MS):
        if transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        if not transport.get_write_buffer_size():
            return
        await asyncio.sleep(_LOOK_MS / 1000)
    raise TimeoutError("nothing moved for too long")


class _Puller(asyncio.Protocol):
    """Keeps what arrives until it is asked for."""

    def __init__(self) -> None:
        self.arrived: deque[bytes] = deque()
        self.ended = False
        self.news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.arrived.append(data)
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.news.set()


async def encrypted_receive(
    transport: asyncio.Transport, first: memoryview, size: int, take: Callable[[memoryview], None]
) -> bytes:
    """As the network's `receive`."""
    loop, puller, protocol = asyncio.get_running_loop(), _Puller(), transport.get_protocol()
    data = first
    transport.set_protocol(puller)
    try:
        while True:
            await loop.run_in_executor(None, take, data[:size])
            size, rest = size - min(size, len(data)), data[size:]
            if not size:
                return b"".join((rest, *puller.arrived))
            if not puller.arrived:
                puller.news.clear()
                transport.resume_reading()
                async with asyncio.timeout(RAW_SILENT_MS / 1000):
                    await puller.news.wait()
                if not puller.ended:
                    transport.pause_reading()
            if not puller.arrived:
                raise ConnectionResetError("the stream ended")
            data = memoryview(puller.arrived.popleft())
    finally:
        transport.set_protocol(protocol)
        if puller.ended:
            protocol.connection_lost(None)


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
    # asyncio of Python 3.13 leaves out addresses that the host lacks, and raises without a number.
    why, hint = _UNUSABLE.get(error.errno or errno.EADDRNOTAVAIL, (None, ""))
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
        if is_encrypted(transport):
            await encrypted_send_file(transport, head, file, offset, size)
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
        if is_encrypted(transport):
            return await encrypted_receive(transport, first, size, take)
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
