"""The custom payload by which a client asks for the plans of its request, and is told them.

Invariant: who did not ask is told nothing, and asking changes nothing of how a request is executed but that
it takes the way of requests that run in a task.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.replication.notes import Notes

#: Key of the payload in a request, whose value does not matter, and in its answer: JSON.
PLAN_KEY: Final = "lockstep-plan"


def plan_payload(notes: Notes | None) -> dict[str, bytes | None] | None:
    return None if notes is None else {PLAN_KEY: msgspec.json.encode(notes.told())}
