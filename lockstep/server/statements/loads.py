"""Requests of bulk loads that come over a client's connection.

Invariant: where roles count, superusers alone load: a node takes files in as they are, and what they hold is
what their maker put there, of whichever table. Who asks is looked at anew with each request: roles change.
"""

from __future__ import annotations

import msgspec

from lockstep.node.services import NodeServices
from lockstep.replica.load_requests import (
    REQUEST,
    AbortRequest,
    BeginRequest,
    CommitRequest,
    LoadRequest,
    LookRequest,
    PutRequest,
)
from lockstep.server.auth.permits import Permits, Session
from lockstep.values.codec import UNREADABLE, encode
from lockstep.values.errors import (
    LockstepError,
    ProtocolViolation,
    Rejected,
    RequestError,
    ServerFault,
    SessionClosed,
    Unauthorized,
)


class LoadDoor:
    """Of one node."""

    def __init__(self, node: NodeServices, permits: Permits | None) -> None:
        self._node = node
        self._permits = permits

    async def answer(self, session: Session, body: bytes) -> bytes:
        """Raises what clients are told: a RequestError or Rejected."""
        try:
            request = REQUEST.decode(body)
        except UNREADABLE as error:
            raise ProtocolViolation(f"Malformed LOAD: {error}") from None
        self._require(session)
        try:
            return encode(await self._done(request))
        except (RequestError, Rejected):
            raise
        except SessionClosed as error:
            raise Rejected(error.message) from error
        except LockstepError as error:
            raise ServerFault(f"{error.code}: {error.message}") from error

    def _require(self, session: Session) -> None:
        if self._permits is None:
            return
        access = self._permits.admit(session)
        if session.user is None or not access.is_superuser(session.user):
            raise Unauthorized(
                f"User {session.user} is not a superuser: only those may load in bulk",
                hint="write with writeMode=statements",
            )

    async def _done(self, request: LoadRequest) -> msgspec.Struct:
        loads = self._node.work.bulk_loads
        if isinstance(request, PutRequest):
            return await loads.put(request)
        if isinstance(request, BeginRequest):
            return await loads.begin(request)
        if isinstance(request, CommitRequest):
            return await loads.commit(request)
        if isinstance(request, AbortRequest):
            return await loads.abort(request)
        if isinstance(request, LookRequest):
            return loads.look(request.job)
        return loads.read(request)
