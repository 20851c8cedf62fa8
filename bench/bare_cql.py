"""The bare path behind the protocol that drivers speak, so that the same driver loads it and the product.

A write is cut out of its EXECUTE at fixed places and answered with an empty result; the nodes behind the door
are those of `bare_path`, whose own load comes in crowds that a driver does not send. A driver's greeting is
answered with as much as it needs to send writes: the rows of the three nodes, an empty schema, and every
statement prepared as an insertion of a key and a value.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import uuid
from collections.abc import Sequence
from typing import Any, Final

import uvloop
from bare_path import ADDRESSES, BareNode, Coalesced, running, serve
from measuring import CpuMeter
from quorum_path import WARM_UP_S, Driver

from lockstep.cql.wire import messages, responses
from lockstep.cql.wire.constants import HEADER_BYTES, VERSION_4, Opcode
from lockstep.cql.wire.frames import encode_envelope
from lockstep.schema.types import parse_type

CQL_PORT: Final = 19343
_HEADER = struct.Struct(">BBhBI")
_SHORT = struct.Struct(">H")
_INT = struct.Struct(">i")
#: Of an EXECUTE, between the statement's id and its first value: level, flags, number of values.
_PARAMETERS_BYTES: Final = 5
_EXECUTE: Final = int(Opcode.EXECUTE)
_SCHEMA_VERSION: Final = uuid.UUID(int=1)


class CqlDoor(Coalesced):
    """One connection of a driver."""

    def __init__(self, node: BareNode, own: str) -> None:
        super().__init__()
        self._node = node
        self._own = own

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            version, _, stream, opcode, length = _HEADER.unpack_from(data, at)
            if size - at - HEADER_BYTES < length:
                break
            at += HEADER_BYTES
            if opcode == _EXECUTE:
                self._write(stream, data, at)
            else:
                self.queue(self._greeted(version, stream, opcode, data[at : at + length]))
            at += length
        self._rest = data[at:]

    def _write(self, stream: int, data: bytes, at: int) -> None:
        at += 2 + _SHORT.unpack_from(data, at)[0] + _PARAMETERS_BYTES
        key_at = at + 4
        key_end = key_at + _INT.unpack_from(data, at)[0]
        value_at = key_end + 4
        value_end = value_at + _INT.unpack_from(data, key_end)[0]
        payload = data[key_at:key_end] + data[value_at:value_end]
        self._node.coordinate(payload, lambda: self.queue(_written(stream)))

    # -- what a driver asks before it writes ----------------------------------------------------------

    def _greeted(self, version: int, stream: int, opcode: int, body: bytes) -> bytes:
        if version != VERSION_4:
            raise ValueError(f"the bare path speaks version 4 only, not {version}")
        if opcode == Opcode.OPTIONS:
            answer = responses.supported({"CQL_VERSION": ["3.4.7"], "COMPRESSION": []})
            return encode_envelope(VERSION_4, Opcode.SUPPORTED, stream, answer)
        if opcode in (Opcode.STARTUP, Opcode.REGISTER):
            return encode_envelope(VERSION_4, Opcode.READY, stream, responses.READY)
        if opcode == Opcode.PREPARE:
            answer = _prepared()
        else:
            request = messages.decode_request(VERSION_4, opcode, 0, body)
            assert isinstance(request, messages.Query), request
            answer = self._rows(request.text)
        return encode_envelope(VERSION_4, Opcode.RESULT, stream, answer)

    def _rows(self, text: str) -> bytes:
        if "system.local" in text:
            return _listed("local", "key", [(b"local", self._own)])
        if "system.peers" in text:
            others = [address for address in ADDRESSES if address != self._own]
            return _listed("peers", "peer", [(socket.inet_aton(other), other) for other in others])
        return _listed("none", "key", []) if text.startswith("SELECT") else responses.VOID


def _written(stream: int) -> bytes:
    return _HEADER.pack(VERSION_4 | 0x80, 0, stream, Opcode.RESULT, len(responses.VOID)) + responses.VOID


def _prepared() -> bytes:
    blob = parse_type("blob")
    columns = [responses.ColumnSpec("bench", "rows", name, blob) for name in ("key", "value")]
    return responses.prepared(VERSION_4, b"w" * 16, columns, (0,), (), b"")


def _listed(table: str, key: str, nodes: Sequence[tuple[bytes, str]]) -> bytes:
    """Rows of nodes, by the value of the key and their address."""
    names = {
        key: "text" if key == "key" else "inet",
        "rpc_address": "inet",
        "host_id": "uuid",
        "data_center": "text",
        "rack": "text",
        "release_version": "text",
        "partitioner": "text",
        "schema_version": "uuid",
        "tokens": "set<text>",
    }
    specs = [responses.ColumnSpec("system", table, name, parse_type(text)) for name, text in names.items()]
    metadata = responses.encode_rows_metadata(VERSION_4, specs)
    return responses.rows(metadata, [(first, *_described(address)) for first, address in nodes])


def _described(address: str) -> tuple[bytes, ...]:
    number = ADDRESSES.index(address)
    token = str(number << 60).encode()
    return (
        socket.inet_aton(address),
        uuid.UUID(int=number + 1).bytes,
        b"dc1",
        b"rack1",
        b"4.0.0",
        b"org.apache.cassandra.dht.Murmur3Partitioner",
        _SCHEMA_VERSION.bytes,
        _INT.pack(1) + _INT.pack(len(token)) + token,
    )


async def _open(node: BareNode, own: str) -> None:
    await asyncio.get_running_loop().create_server(lambda: CqlDoor(node, own), own, CQL_PORT)


def measure(seconds: float = 10.0, in_flight: int = 64, value_bytes: int = 100) -> dict[str, Any]:
    """Figures of quorum writes over the bare path, as `quorum_path` has them of the product."""
    with running(__file__) as pids:
        driver = Driver(list(ADDRESSES), CQL_PORT)
        try:
            return driver.run(
                CpuMeter(pids),
                run="write",
                seconds=seconds,
                warm_up_s=WARM_UP_S,
                in_flight=in_flight,
                value_bytes=value_bytes,
            )
        finally:
            driver.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[2], sys.argv[3], _open))
