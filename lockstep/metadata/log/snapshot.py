"""A metadata value as a stream of bytes in bounded pieces, and back.

The stream is a sequence of items, each a length, a part's number, a kind and the item's canonical bytes:
first the head, then each part's items, so that neither side ever holds the value twice. Pieces are cuts of
the stream and carry no meaning of their own.

Invariant: equal values give equal streams on every node, and a stream decodes to a value equal to the encoded
one or is refused. Pieces are at most PIECE_BYTES_MAX long; where the reader's pieces end does not matter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.part import END_NUMBER, HEAD_NUMBER, Builder, Registered
from lockstep.values import codec
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import SNAPSHOT_ITEM_BYTES_MAX, SNAPSHOT_PIECE_BYTES_MAX

_ITEM = struct.Struct(">IBB")
#: (part number, kind) of the last item, whose value is the number of items before it.
_END: Final = (END_NUMBER, 0)
_HEAD: Final = (HEAD_NUMBER, 0)
#: What comes of items that are each well formed and belong to no value.
_NO_VALUE = (AssertionError, ArithmeticError, LookupError, TypeError, ValueError)


class Head(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    hash: bytes


def pieces(cluster: ClusterMetadata) -> Iterator[bytes]:
    """The value's canonical stream, cut into pieces of SNAPSHOT_PIECE_BYTES_MAX (the last is shorter)."""
    buffer = bytearray()
    count = 0
    for (number, kind), value in items(cluster):
        data = codec.encode(value)
        buffer += _ITEM.pack(len(data), number, kind)
        buffer += data
        count += 1
        while len(buffer) >= SNAPSHOT_PIECE_BYTES_MAX:
            yield bytes(buffer[:SNAPSHOT_PIECE_BYTES_MAX])
            del buffer[:SNAPSHOT_PIECE_BYTES_MAX]
    end = codec.encode(count)
    buffer += _ITEM.pack(len(end), *_END) + end
    yield bytes(buffer)


def items(cluster: ClusterMetadata) -> Iterator[tuple[tuple[int, int], Any]]:
    """((part number, kind), value), all but the end."""
    yield _HEAD, Head(cluster.epoch, cluster.hash)
    for part in cluster.parts.listed():
        for kind, value in part.items(cluster.parts[part]):
            yield (part.number, kind), value


class SnapshotDecoder:
    """Takes a stream in pieces of any size; `path` names it in errors, `registered` has the parts it holds.

    A refusal leaves the decoder unusable. `bytes_read` counts what was fed.
    """

    def __init__(self, registered: Registered, path: str = "snapshot") -> None:
        self._path = path
        self._registered = registered
        self._buffer = bytearray()
        self._head: Head | None = None
        self._builders: dict[int, Builder[Any]] = {}
        self._decoders: dict[tuple[int, int], codec.Decoder[Any]] = {
            _HEAD: codec.decoder(Head),
            _END: codec.decoder(int),
        }
        for number, part in registered.by_number.items():
            self._builders[number] = part.builder()
            for kind, type_ in enumerate(part.kinds):
                self._decoders[number, kind] = codec.decoder(type_, registered.unions)
        self._number, self._kind = _HEAD
        self._count = 0
        self._ended = False
        self.bytes_read = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the stream; CorruptFile when they cannot belong to one."""
        self._buffer += piece
        self.bytes_read += len(piece)
        assert not self._ended or not self._buffer, "nothing waits behind the end"
        at, size = 0, len(self._buffer)
        while at + _ITEM.size <= size:
            length, number, kind = _ITEM.unpack_from(self._buffer, at)
            if length > SNAPSHOT_ITEM_BYTES_MAX or (number, kind) not in self._decoders or self._ended:
                raise self._damaged("this is no item of a snapshot")
            start = at + _ITEM.size
            if start + length > size:
                break
            self._take(number, kind, bytes(self._buffer[start : start + length]))
            at = start + length
        del self._buffer[:at]

    def finish(self) -> ClusterMetadata:
        """The value, once the whole stream was fed; CorruptFile when it was not, or is no valid value."""
        if not self._ended or self._buffer or self._head is None:
            raise self._damaged("the snapshot is not whole")
        try:
            made = [
                part.set(self._builders[number].finish())
                for number, part in self._registered.by_number.items()
            ]
            cluster = ClusterMetadata(self._head.epoch, self._head.hash, self._registered.empty.changed(made))
            cluster.validate()
        except _NO_VALUE as broken:
            raise self._damaged(f"the value is not valid: {broken}") from broken
        return cluster

    def _take(self, number: int, kind: int, data: bytes) -> None:
        try:
            value = self._decoders[number, kind].decode(data)
        except codec.UNREADABLE as problem:
            raise self._damaged(f"an item of part {number} cannot be read: {problem}") from problem
        if (number == HEAD_NUMBER) != (self._head is None):
            raise self._damaged("a snapshot has one head, at its beginning")
        part = self._registered.by_number.get(number)
        is_back = number == self._number and kind < self._kind and not (part is not None and part.is_nested)
        if number < self._number or is_back:
            raise self._damaged(f"kind {kind} of part {number} follows {self._kind} of {self._number}")
        self._number, self._kind = number, kind
        if number == HEAD_NUMBER:
            self._head = value
        elif number == END_NUMBER:
            if value != self._count:
                raise self._damaged(f"{self._count} items are there, {value} were written")
            self._ended = True
        else:
            try:
                self._builders[number].add(kind, value)
            except _NO_VALUE as broken:
                raise self._damaged(f"an item of part {number} is out of place: {broken!r}") from broken
        self._count += 1

    def validate(self) -> None:
        assert self._head is not None or not self._count, "a snapshot begins with its head"
        assert len(self._buffer) < _ITEM.size + SNAPSHOT_ITEM_BYTES_MAX, "whole items are taken at once"
        assert len(self._buffer) <= self.bytes_read, "what waits was fed"

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(self._path, self.bytes_read, why)
