"""The part of a connection's life in which its client says who it is.

Invariant: until `admitted` nothing but the login is answered, and a refused client has to connect again, so
that each guess costs it a connection and a turn.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.cql.wire.messages import AuthResponse, Request
from lockstep.runtime.ports import Tasks
from lockstep.server.auth.authentication import Authentication, claimed_role
from lockstep.values.errors import ProtocolViolation


class Login:
    """Of a client at `address`. `done` hears once of the end: the stream to answer on, the role that logged
    in, or that was to, and why it did not."""

    def __init__(
        self,
        authentication: Authentication,
        address: str,
        tasks: Tasks,
        done: Callable[[int, str, Exception | None], None],
    ) -> None:
        self._authentication = authentication
        self._address = address
        self._tasks = tasks
        self._done = done
        self._tries = False

    @property
    def busy(self) -> bool:
        """Whether credentials are being looked at."""
        return self._tries

    def take(self, stream: int, request: Request) -> None:
        """A request of a client that is not logged in. ProtocolViolation unless it is its credentials."""
        if not isinstance(request, AuthResponse) or self._tries:
            name = type(request).__name__.upper()
            raise ProtocolViolation(f"Unexpected message {name}, needs authentication through AUTH_RESPONSE")
        self._tries = True
        self._tasks.spawn(self._try(stream, request.token), "cql.login")

    async def _try(self, stream: int, token: bytes | None) -> None:
        try:
            role = await self._authentication.login(token, self._address)
        except Exception as error:
            self._done(stream, claimed_role(token), error)
        else:
            self._done(stream, role, None)
