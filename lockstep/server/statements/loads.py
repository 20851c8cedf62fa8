"""Requests of bulk loads that come over a client's connection.

Invariant: where roles count, superusers alone load: a node takes files in as they are, and what they hold is
what their maker put there, of whichever table. Who asks is looked at anew with each request: roles change.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.metadata.loads import LoadState
from lockstep.node.services import NodeServices
from lockstep.replica.load_requests import (
    REQUEST,
    AbortRequest,
    BeginRequest,
    CommitAnswer,
    CommitRequest,
    LoadRequest,
    LookRequest,
    PutRequest,
)
from lockstep.server.auth.permits import Permits, Session
from lockstep.server.log import Audit
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
    """Of one node. Which loads began, were committed or were given up is in its audit file."""

    def __init__(self, node: NodeServices, permits: Permits | None, audit: Audit) -> None:
        self._node = node
        self._permits = permits
        self._audit = audit

    async def answer(self, session: Session, body: bytes, peer: str) -> bytes:
        """Raises what clients are told: a RequestError or Rejected. `peer` is the client's address."""
        try:
            request = REQUEST.decode(body)
        except UNREADABLE as error:
            raise ProtocolViolation(f"Malformed LOAD: {error}") from None
        changes = self._changes(request)
        outcome, code, answer = "failed", "FAULT", None
        try:
            answer = await self._answered(session, request)
            outcome, code = "done", ""
            return encode(answer)
        except LockstepError as error:
            outcome, code = "failed" if isinstance(error, ServerFault) else "refused", error.code
            raise
        finally:
            # One that is to be cut anew is asked for again.
            if changes and not (isinstance(answer, CommitAnswer) and answer.cut):
                self._audit.loaded(changes, session.user or "", peer, _said(request), outcome, code)

    def _changes(self, request: LoadRequest) -> str:
        """What a request does to a load, if anything: not when it renews one or asks again for its end."""
        known = self._node.log.cluster.loads.by_job.get(request.job)
        if isinstance(request, BeginRequest):
            return "begin" if known is None and not request.dry_run else ""
        if isinstance(request, CommitRequest):
            return "commit" if known is None or known.state is not LoadState.COMMITTED else ""
        is_end = isinstance(request, AbortRequest) and known is not None and known.state is LoadState.RUNNING
        return "abort" if is_end else ""

    async def _answered(self, session: Session, request: LoadRequest) -> msgspec.Struct:
        self._require(session)
        try:
            return await self._done(request)
        except (RequestError, Rejected) as error:
            # The protocol's errors have a message alone, and a job shows nothing else of what its node said.
            if error.hint:
                error.message = f"{error.message}; {error.hint}"
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


def _said(request: LoadRequest) -> dict[str, Any]:
    """What the audit file tells of a request that changes a load."""
    if isinstance(request, BeginRequest):
        return {
            "job": request.job,
            "table": f"{request.keyspace}.{request.table}",
            "overwrite": request.overwrite,
        }
    if isinstance(request, CommitRequest):
        return {"job": request.job, "rows": request.rows, "files": len(request.files)}
    assert isinstance(request, AbortRequest), "nothing else changes one"
    return {"job": request.job, "reason": request.reason}
