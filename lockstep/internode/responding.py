"""Answers to requests of other nodes, one by one or to many at once.

Invariant: a request is answered at most once, and counts as being answered until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.connection import Connection
from lockstep.internode.error_bodies import encode_error
from lockstep.internode.frames import ERROR, REPLY
from lockstep.internode.lanes import answer_raw
from lockstep.internode.raw_bytes import FileReply
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.internode.internode import Internode

#: In place of a stream: whoever answers now is not heard.
_RELEASED: Final = -1


class Respond(msgspec.Struct, eq=False):
    """Answers one request, once; a call after the peer is gone is dropped."""

    _node: Internode
    _connection: Connection
    _verb: int
    _stream: int
    is_open: bool = True

    def __call__(self, reply: Any) -> None:
        """Send `reply`; a LockstepError is raised at the requester."""
        assert self.is_open, "a request is answered once"
        self.is_open = False
        if self._stream == _RELEASED:
            return
        connection = self._connection
        connection.serving -= 1
        if isinstance(reply, FileReply):
            answer_raw(self._node, connection, self._verb, self._stream, reply)
        elif isinstance(reply, LockstepError):
            self._note(reply)
            self._node.answer(connection, self._verb, self._stream, ERROR, encode_error(reply))
        else:
            self._node.answer(connection, self._verb, self._stream, REPLY, encode(reply))

    def _note(self, error: LockstepError) -> None:
        """This node refuses a request of another one, or failed at it."""
        peer, verb = self._connection.peer, verbs.NAMES.get(self._verb, str(self._verb))
        asker = peer.node_id if peer is not None else 0

        def facts() -> dict[str, Any]:
            return {"verb": verb, "of_node": asker, "code": error.code, "reason": error.message}

        self._node.repeated_log.note("internode.request_refused", verb, error.code, facts=facts)

    def release(self) -> None:
        """Nobody waits: the request no longer counts as being answered, whether or not it ever is."""
        if self.is_open and self._stream != _RELEASED:
            self._stream = _RELEASED
            self._connection.serving -= 1

    @staticmethod
    def all(answers: Iterable[Respond], reply: Any) -> None:
        """As each of them called with this one `reply`, which is no error."""
        body = encode(reply)
        #: (connection, verb) -> the streams; a connection is of one node.
        crowds: dict[tuple[Connection, int], tuple[Internode, list[int]]] = {}
        for answer in answers:
            assert answer.is_open, "a request is answered once"
            answer.is_open = False
            stream = answer._stream
            if stream == _RELEASED:
                continue
            crowd = crowds.get((answer._connection, answer._verb))
            if crowd is None:
                crowds[answer._connection, answer._verb] = (answer._node, [stream])
            else:
                crowd[1].append(stream)
        for (connection, verb), (node, streams) in crowds.items():
            connection.serving -= len(streams)
            if connection.small(body) and connection.room() and not node.blocked_to and 0 not in streams:
                connection.reply_all(verb, streams, body)
                continue
            for stream in streams:
                node.answer(connection, verb, stream, REPLY, body)
