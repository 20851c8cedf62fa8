"""Messages of gossip and of the ring as an earlier version sent them, recorded as bytes, are understood.

`old_wire.json` is never made anew: a message that changes gets another record beside the old one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from lockstep.gossip.soft_state import Ack, Ack2, Digest, SoftState, Syn, Told, Version
from lockstep.internode import verbs
from lockstep.internode.frames import Envelope
from lockstep.node.ring.messages import RingMail
from lockstep.ring.messages import (
    Abort,
    Accept,
    Accepted,
    Ask,
    Ballot,
    Deltas,
    Prepare,
    Promise,
    Proposal,
    Propose,
    Reject,
    Summary,
    Whole,
    Why,
)
from lockstep.ring.ring import Delta, Member, Mode, Ring, Status
from lockstep.values.codec import decoder, encode
from lockstep.values.conditions import Condition

RECORDED: Final[dict[str, str]] = json.loads((Path(__file__).parent / "old_wire.json").read_text())
BASE: Final = bytes(range(32))
TARGET: Final = bytes(range(32, 64))
MEMBERS: Final = (
    Member("1", 1, Status.NORMAL, "dc1", "rack1", (-5, 7), op="1-a"),
    Member("2", 4, Status.LEFT, "dc1", "rack2", op="4-b"),
    Member("3", 5, Status.JOINING, "dc1", "rack1", (), (9,), op="5-c"),
)
DELTA: Final = Delta("5-c", BASE, TARGET, 5, MEMBERS[2:], b"an entry", b"h" * 32)
PROPOSAL: Final = Proposal("5-c", "1", (), DELTA)
BALLOT: Final = Ballot(3, "1", 2)
STATE: Final = SoftState(
    True,
    1 << 20,
    "5.0.0",
    12,
    b"s" * 16,
    2,
    1_700_000_000_000_000,
    (8, 9),
    (Condition("CLOCK_SKEW", "", 5, "1 s"),),
)


def mail(message: Any) -> RingMail:
    return RingMail("1", message)


#: What each record says.
MESSAGES: Final[dict[str, Any]] = {
    "syn": Syn((Digest(1, Version(2, 30)), Digest(2, Version(1, 4)))),
    "ack": Ack((Told(1, Version(2, 30), STATE),), (2,)),
    "ack2": Ack2((Told(2, Version(1, 4), SoftState()),)),
    "propose": mail(Propose(PROPOSAL, BALLOT, found=True)),
    "accept": mail(Accept("5-c", BASE, BALLOT)),
    "reject": mail(Reject("5-c", BASE, BALLOT, Why.BALLOT, "another one", 4, Ballot(4, "2", 1))),
    "prepare": mail(Prepare(BASE, BALLOT)),
    "promise": mail(Promise(BASE, BALLOT, Accepted(Ballot(1, "2", 1), PROPOSAL))),
    "promise of nothing": mail(Promise(BASE, BALLOT, None)),
    "abort": mail(Abort("5-c")),
    "ask": mail(Ask("5-c", BASE)),
    "summary": mail(Summary(5, TARGET, answer=True)),
    "deltas": mail(Deltas((DELTA,))),
    "whole": mail(Whole(Ring(Mode.UNANIMOUS, 5, MEMBERS, b"h" * 32))),
    "frame of a request": Envelope(verbs.GOSSIP, 7, 12, 0, b"body", 5000, 1000),
    "frame of a message": Envelope(verbs.RING_MAIL, 7, 12, 4, b"body"),
}
#: Fields that these versions did not know, and what the records' bodies have instead of them.
SHORTER: Final[dict[str, tuple[type[Any], list[Any], Any]]] = {
    "a state without conditions": (
        SoftState,
        [True, 5, "5.0.0", 12, b"", 0, 9, [4]],
        SoftState(True, 5, "5.0.0", 12, b"", 0, 9, (4,)),
    ),
    "an ack that wants nothing": (Ack, [[]], Ack(())),
}


def test_all_that_is_sent_is_recorded() -> None:
    assert set(RECORDED) == set(MESSAGES)


@pytest.mark.parametrize("name", MESSAGES)
def test_what_was_recorded_is_still_understood(name: str) -> None:
    wanted, recorded = MESSAGES[name], bytes.fromhex(RECORDED[name])
    assert decoder(type(wanted)).decode(recorded) == wanted


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_sent_now_begins_as_what_was_recorded(name: str) -> None:
    """So the earlier version finds each field where it looks for it, and skips what is behind."""
    known, now = (
        msgspec.msgpack.decode(bytes.fromhex(RECORDED[name])),
        msgspec.msgpack.decode(encode(MESSAGES[name])),
    )
    assert _fits(known, now), (known, now)


def _fits(known: Any, now: Any) -> bool:
    if isinstance(known, list):
        return isinstance(now, list) and len(known) <= len(now) and all(map(_fits, known, now))
    if isinstance(known, dict):
        return isinstance(now, dict) and all(
            key in now and _fits(value, now[key]) for key, value in known.items()
        )
    return bool(known == now)


@pytest.mark.parametrize("name", SHORTER)
def test_fields_that_were_not_there_have_their_usual_values(name: str) -> None:
    kind, told, wanted = SHORTER[name]
    assert decoder(kind).decode(encode(told)) == wanted


@pytest.mark.parametrize("name", ["syn", "ack", "propose", "summary", "whole"])
def test_fields_of_a_later_version_are_skipped(name: str) -> None:
    wanted = MESSAGES[name]
    told = msgspec.msgpack.decode(encode(wanted))
    assert decoder(type(wanted)).decode(encode([*told, "a field of later"])) == wanted
