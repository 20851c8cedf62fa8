"""Whether a connection may do what it asks for, at this moment.

Invariant: every answer is of the newest metadata this node has applied; what is remembered of a session is
forgotten whenever roles or grants change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lockstep.metadata.access import resources
from lockstep.metadata.access.roles import Access
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.server.cql.responses_owed import Responses
from lockstep.values.errors import Unauthorized
from lockstep.values.limits import ALLOWED_NEEDS_KEPT_MAX

#: (permission, resource).
Need = tuple[str, str]
Needs = tuple[Need, ...]
#: In place of a permission: what only superusers may do, whatever permissions are checked.
SUPERUSER: Final = "SUPERUSER"
NOT_LOGGED_IN: Final = "You have to be logged in and not anonymous to perform this request"


class Session(msgspec.Struct):
    """What a connection has agreed on; `keyspace` follows USE, `user` is None where nobody logs in.

    `judged_by` is the value whose roles allowed the needs in `allowed`. `responses`: what the connection
    owes, None until it is a client's.
    """

    version: int
    keyspace: str | None = None
    user: str | None = None
    judged_by: Access | None = None
    allowed: dict[Needs, None] = {}
    responses: Responses | None = None


class Permits:
    """Of one node whose clients log in. `data_center` is the node's; `checks`: whether permissions count, or
    being logged in is enough."""

    def __init__(self, cluster: Callable[[], ClusterMetadata], data_center: str, *, checks: bool) -> None:
        self._cluster = cluster
        self._data_center = data_center
        self.checks = checks

    def admit(self, session: Session) -> Access:
        """Unauthorized when the session's role is gone or may not be here."""
        access = self._cluster().access
        if session.judged_by is not access:
            session.allowed = {}
            session.judged_by = None
            role = access.role(session.user) if session.user is not None else None
            if role is None:
                raise Unauthorized("You have not logged in")
            if role.data_centers and self._data_center not in role.data_centers:
                raise Unauthorized(f"You do not have access to this datacenter ({self._data_center})")
            session.judged_by = access
        return access

    def require(self, session: Session, needs: Needs) -> None:
        """Unauthorized unless the session's role has all these permissions now."""
        access = self.admit(session)
        if needs in session.allowed:
            return
        assert session.user is not None, "it was admitted"
        self._judge(access, session.user, needs)
        if len(session.allowed) >= ALLOWED_NEEDS_KEPT_MAX:
            session.allowed = {}
        session.allowed[needs] = None

    def require_all(self, session: Session, parts: Sequence[Needs]) -> None:
        """`require` of each part of a batch; most parts of a batch are alike."""
        for needs in dict.fromkeys(parts):
            self.require(session, needs)

    def creator(self, session: Session) -> str:
        """The role that gets permissions on what the session creates; empty where none count."""
        return (session.user or "") if self.checks else ""

    def _judge(self, access: Access, user: str, needs: Sequence[Need]) -> None:
        if access.is_superuser(user):
            return
        for permission, resource in needs:
            if permission == SUPERUSER:
                raise Unauthorized(f"User {user} is not a superuser: only those may read {resource}")
            if self.checks and permission not in access.permissions(user, resource):
                raise Unauthorized(
                    f"User {user} has no {permission} permission on {resources.text(resource)} "
                    "or any of its parents"
                )
