"""Encrypted connections of the real network port: who is let in, and what files cannot be used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lockstep.runtime.ports import Tls
from lockstep.runtime.real.network import RealNetwork, require_usable
from lockstep.values.errors import ConfigurationError
from tests.server.certificates import Authority


class Echo(asyncio.Protocol):
    """Sends back what it gets; `got` collects it."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


class Heard(Echo):
    def data_received(self, data: bytes) -> None:
        self.got += data
        self.transport.close()


async def answered(listening: Tls, dialing: Tls) -> bytes:
    """What comes back over one connection; b"" when it ends before."""
    network = RealNetwork()
    server = await network.listen("127.0.107.9", 0, Echo, listening)
    try:
        async with asyncio.timeout(5):
            transport, made = await network.connect("127.0.107.9", server.port, Heard, dialing)
            assert isinstance(made, Heard)
            transport.write(b"hello")
            await made.ended.wait()
            return bytes(made.got)
    finally:
        server.close()


def test_a_side_shows_what_the_other_asks_for(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "theirs")
    node, stranger = ours.issue("node"), theirs.issue("stranger")

    def tls(files: tuple[Path, Path], authority: Authority, *, mutual: bool = True) -> Tls:
        return Tls(str(files[0]), str(files[1]), str(authority.certificate), mutual)

    def run(listening: Tls, dialing: Tls) -> bytes:
        try:
            return asyncio.run(answered(listening, dialing))
        except OSError:
            return b""

    assert run(tls(node, ours), tls(node, ours)) == b"hello"
    # The one who dials has another authority's certificate, or trusts another authority.
    assert run(tls(node, ours), tls(stranger, ours)) == b""
    assert run(tls(node, ours), tls(node, theirs)) == b""
    assert run(tls(node, ours, mutual=False), tls(node, ours)) == b"hello"


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    certificate, _ = Authority(tmp_path).issue("node")
    _, other_key = Authority(tmp_path, "other").issue("another")
    for key in (tmp_path / "absent", certificate, other_key):
        with pytest.raises(ConfigurationError, match="cannot be used") as caught:
            require_usable(Tls(str(certificate), str(key)))
        assert str(certificate) in caught.value.message
