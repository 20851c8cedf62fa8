"""Decoders: made when they are first needed, and then msgspec's own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec
import pytest

from lockstep.values import codec


class Held(msgspec.Struct, frozen=True, array_like=True):
    name: str


@runtime_checkable
class Holder(Protocol):
    name: str


class Holding(msgspec.Struct, frozen=True, array_like=True):
    held: Holder


class Unreadable(msgspec.Struct, frozen=True, array_like=True):
    held: Nowhere  # type: ignore[name-defined] # noqa: F821


BYTES = codec.encode(Held("it"))


def test_a_decoder_is_made_with_the_first_bytes_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = codec.Decoder.made

    def counted(self: codec.Decoder[Held]) -> object:
        made.append(self)
        return original(self)

    monkeypatch.setattr(codec.Decoder, "made", counted)
    decoder = codec.decoder(Held)
    first = decoder.decode
    assert made == []
    # Who kept `decode` from before gets no second one either.
    assert [first(BYTES), decoder.decode(BYTES), first(memoryview(BYTES))] == [Held("it")] * 3
    assert made == [decoder]


def test_bytes_of_something_else_are_unreadable_at_the_first_time_and_later() -> None:
    decoder = codec.decoder(Held)
    for _ in range(2):
        with pytest.raises(codec.UNREADABLE):
            decoder.decode(codec.encode(7))
    assert decoder.decode(BYTES) == Held("it")


def test_a_protocol_is_read_as_the_struct_that_is_told_and_else_refused() -> None:
    content = codec.encode([["it"]])
    assert codec.decoder(Holding, {Holder: Held}).decode(content) == Holding(Held("it"))
    with pytest.raises(codec.UNREADABLE, match="no Holder is known here"):
        codec.decoder(Holding).decode(content)


def test_a_kind_that_cannot_be_read_is_told_when_it_is_made() -> None:
    decoder = codec.decoder(Unreadable)
    with pytest.raises(NameError, match="Nowhere"):
        decoder.made()
