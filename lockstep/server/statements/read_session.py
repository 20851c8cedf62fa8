"""Read sessions, which clients want with the custom payload of a SELECT of the table: who may read it may
open, find and end sessions of it."""

from __future__ import annotations

from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.compile.select import SelectPrepared
from lockstep.node.services import NodeServices
from lockstep.scans.messages import ORDER
from lockstep.server.statements.tracing import PayloadNotes
from lockstep.values.codec import UNREADABLE, encode
from lockstep.values.errors import InvalidRequest


async def read_session(node: NodeServices, prepared: Prepared, notes: PayloadNotes) -> None:
    """Do what the payload wants, and note the answer. RequestError."""
    plan = prepared.plan
    if not isinstance(plan, SelectPrepared):
        raise InvalidRequest("a read session is asked for with a SELECT of its table")
    assert notes.session is not None, "there is a wish"
    try:
        order = ORDER.decode(notes.session)
    except UNREADABLE as error:
        raise InvalidRequest(f"this is no wish of a read session: {error}") from None
    opened = await node.data.read_sessions.run(plan.shape.table, order)
    notes.session_answer = encode(opened) if opened is not None else b""
