"""Guards: which work of a session is having effects on this node right now.

Invariant: a guard is given only while its session is open in this node's own metadata, and is counted until
it is released, also after the session closed. So once this node has applied the entry that closed a session
and holds none of its guards, nothing of that session can change what is stored here any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.values.errors import SessionClosed


class SessionGuards:
    def __init__(self, metadata: Callable[[], ClusterMetadata]) -> None:
        self._metadata = metadata
        self._held: dict[str, int] = {}

    @contextmanager
    def hold(self, session_id: str) -> Iterator[None]:
        """Hold a guard while an effect is under way; SessionClosed, and no effect, when it is not open.

        Take it around each effect, not around a whole piece of work: a barrier waits for what is held.
        """
        self.require(session_id)
        self._held[session_id] = self._held.get(session_id, 0) + 1
        try:
            yield
        finally:
            left = self._held[session_id] - 1
            if left:
                self._held[session_id] = left
            else:
                del self._held[session_id]

    def require(self, session_id: str) -> None:
        """SessionClosed when the session is not open in this node's metadata."""
        if not self._metadata().session_open(session_id):
            raise SessionClosed(f"session {session_id} is not open")

    @property
    def any_held(self) -> bool:
        """Whether any effect is under way, of an open session or a closed one."""
        return bool(self._held)

    def stragglers(self) -> tuple[tuple[str, int], ...]:
        """(session, guards held) of every session that is closed here and still has effects under way."""
        cluster = self._metadata()
        return tuple(
            (session_id, count)
            for session_id, count in self._held.items()
            if not cluster.session_open(session_id)
        )

    def validate(self) -> None:
        assert all(count > 0 for count in self._held.values()), "a guard is released once"
