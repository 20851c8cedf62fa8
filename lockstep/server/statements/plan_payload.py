"""The custom payloads of answers: plans of a request whose client asks for them, or what the request brought.

Invariant: who did not ask is told nothing, and asking changes nothing of how a request is executed but that
it takes the way of requests that run in a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lockstep.quorum.request_trace import RequestTrace

#: Key of the payload in a request, whose value does not matter, and in its answer: JSON.
PLAN_KEY: Final = "lockstep-plan"

Payload = Mapping[str, bytes | None]


class PayloadNotes(RequestTrace):
    """Notes of a request, and what of its payload is answered again."""

    __slots__ = ("mirrored",)

    def __init__(self, *, wants_plans: bool, mirrored: Payload) -> None:
        super().__init__(wants_plans=wants_plans)
        self.mirrored = mirrored


def notes_for(payload: Payload, *, mirror: bool) -> PayloadNotes | None:
    """What its answer has to tell of a request with this payload."""
    wants_plans = PLAN_KEY in payload
    if not wants_plans and not (mirror and payload):
        return None
    mirrored = {key: value for key, value in payload.items() if key != PLAN_KEY} if mirror else {}
    return PayloadNotes(wants_plans=wants_plans, mirrored=mirrored)


def answered_payload(notes: PayloadNotes | None) -> Payload | None:
    if notes is None:
        return None
    plans: Payload = {PLAN_KEY: msgspec.json.encode(notes.told())} if notes.wants_plans else {}
    return {**notes.mirrored, **plans}
