"""Requests of bulk loads that come over a client's connection.

Invariant: whoever asks about a load of a table may modify that table; what was asked is checked anew with
each request, for roles change.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.access import roles
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
from lockstep.values.errors import LockstepError, ProtocolViolation, Rejected, RequestError, ServerFault


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
        self._require(session, request)
        try:
            return encode(await self._done(request))
        except (RequestError, Rejected):
            raise
        except LockstepError as error:
            raise ServerFault(f"{error.code}: {error.message}") from error

    def _require(self, session: Session, request: LoadRequest) -> None:
        if self._permits is None:
            return
        if isinstance(request, BeginRequest):
            keyspace, table = request.keyspace, request.table
        else:
            load = self._node.work.bulk_loads.load(request.job)
            keyspace, table = load.keyspace, load.table
        self._permits.require(session, (("MODIFY", roles.table(keyspace, table)),))

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
