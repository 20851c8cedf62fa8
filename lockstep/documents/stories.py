"""`story/1`: what the metadata log did to a thing."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True):
    epoch: int
    at_us: int = 0
    entry: str = ""
    actor: str = ""
    text: str = ""


class Story(msgspec.Struct, frozen=True):
    """`from_epoch`: what was before it is not kept at the asked node."""

    schema: str = "story/1"
    thing: str = ""
    from_epoch: int | None = None
    left_out: int = 0
    events: tuple[Event, ...] = ()
