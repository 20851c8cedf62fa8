"""Planted bugs of what requests to one peer share: their frames and their acknowledgements."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.internode import verbs
from lockstep.internode.responding import Respond
from lockstep.internode.shared_requests import SharedOut
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.values.errors import LockstepError


def _first_for_all() -> contextlib.AbstractContextManager[None]:
    """A shared frame has the first request in place of each other."""
    original = SharedOut.post

    def post(self: Any) -> None:
        self._waiting = {
            verb: (streams, bodies[:1] * len(bodies)) for verb, (streams, bodies) in self._waiting.items()
        }
        original(self)

    return replaced((SharedOut, "post", post))


def _refusals_accepted() -> contextlib.AbstractContextManager[None]:
    """A write that is refused hears what the acknowledged of the last sync heard."""
    together, alone = Respond.all, Respond.__call__
    told: list[Any] = []

    def every(answers: Any, reply: Any) -> None:
        told[:] = [reply]
        together(answers, reply)

    def one(self: Any, reply: Any) -> None:
        is_refusal = self._verb == verbs.WRITE and isinstance(reply, LockstepError)
        alone(self, told[0] if told and is_refusal else reply)

    return replaced((Respond, "all", staticmethod(every)), (Respond, "__call__", one))


SHARING = (
    Planted("first_for_all", "an acknowledged write is at no replica", "volleys", _first_for_all),
    Planted("refusals_accepted", "a refused write counts as acknowledged", "volleys", _refusals_accepted),
)
