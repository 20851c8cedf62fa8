"""Who a client is: SASL PLAIN tokens against the roles of the metadata, and the first superuser.

Invariant: a refused login says the same whichever of name and password is wrong; nothing is known of a client
until `login` has returned its role.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lockstep.metadata.role_changes import ChangeRole, CreateRole
from lockstep.server.login_delays import LoginDelays
from lockstep.server.passwords import Passwords
from lockstep.values.errors import BadCredentials, LockstepError, Overloaded, Rejected

if TYPE_CHECKING:
    from lockstep.node.node import Node

#: The name that drivers look for.
AUTHENTICATOR: Final = "org.apache.cassandra.auth.PasswordAuthenticator"
#: Name and password of the role that a cluster without roles begins with, as Cassandra's.
DEFAULT_SUPERUSER: Final = "cassandra"


class Authentication:
    """Of one node whose clients log in."""

    def __init__(self, node: Node, passwords: Passwords) -> None:
        self._node = node
        self._passwords = passwords
        self._delays = LoginDelays()

    async def login(self, token: bytes | None, address: str) -> str:
        """The role that a SASL PLAIN token from this address belongs to. BadCredentials or Overloaded."""
        return await self.login_as(*_plain(token), address)

    async def login_as(self, name: str, password: str, address: str) -> str:
        """The role, when the password is its; who failed before waits first. BadCredentials or Overloaded."""
        clock, delays = self._node.runtime.clock, self._delays
        wait_s = delays.begin(name, address, clock.monotonic_s())
        if wait_s is None:
            raise Overloaded(f"Too many logins of {name} from {address} failed lately; try again in a minute")
        if wait_s:
            await asyncio.sleep(wait_s)
        try:
            await self._judge(name, password)
        except BadCredentials:
            delays.failed(name, address, clock.monotonic_s())
            raise
        delays.succeeded(name, address)
        return name

    async def _judge(self, name: str, password: str) -> None:
        """BadCredentials unless this is the password of a role that may log in."""
        role = self._node.cluster.access.role(name)
        salted_hash = role.salted_hash if role is not None else ""
        if not await self._passwords.is_of(password, salted_hash):
            raise BadCredentials(f"Provided username {name} and/or password are incorrect")
        now = self._node.cluster.access.role(name)
        if now is None or not now.login:
            raise BadCredentials(f"{name} is not permitted to log in")

    async def make_first_role(self) -> None:
        """Make the default superuser in a cluster without roles. Not being able to is no error: another node
        may be, and a restart tries again."""
        if self._node.cluster.access.roles.count:
            return
        salted_hash = await self._passwords.hashed(DEFAULT_SUPERUSER)
        role = CreateRole(DEFAULT_SUPERUSER, True, True, salted_hash, only_first=True)
        try:
            await self._node.submit(ChangeRole(role))
        except Rejected:
            return
        except LockstepError as error:
            self._node.log("auth.no_first_role", error=str(error))
            return
        self._node.log(
            "auth.default_superuser",
            role=DEFAULT_SUPERUSER,
            warning="its password is known to everybody: make another superuser, then drop this one",
        )


def claimed_role(token: bytes | None) -> str:
    """Whom credentials name, whether or not they are right; empty when they name nobody."""
    try:
        return _plain(token)[0]
    except BadCredentials:
        return ""


def _plain(token: bytes | None) -> tuple[str, str]:
    """Name and password of a SASL PLAIN token: what to act as (ignored), NUL, name, NUL, password."""
    try:
        parts = (token or b"").decode().split("\x00")
    except UnicodeDecodeError:
        raise BadCredentials("Credentials are not text") from None
    if len(parts) != 3:
        raise BadCredentials("Credential format error: username or password is empty or contains NUL(\\0)")
    if not parts[1]:
        raise BadCredentials("Authentication ID must not be null")
    if not parts[2]:
        raise BadCredentials("Password must not be null")
    return parts[1], parts[2]
