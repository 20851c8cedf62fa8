"""What members of a ring send each other."""

from __future__ import annotations

import msgspec

from lockstep.ring.messages import Message


class RingMail(msgspec.Struct, frozen=True, array_like=True):
    """`sender` is the member's name."""

    sender: str
    message: Message
