"""Passwords to salted hashes, and the check of one.

Hashes are bcrypt's, as Cassandra's are, so that hashes move between the two. Invariant: hashing happens off
the loop and a bounded number of times at once, and a client learns from time alone neither whether a role
exists nor whether it may log in.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Final

from lockstep.runtime.ports import Runtime
from lockstep.values.errors import InvalidRequest, Overloaded
from lockstep.values.limits import (
    PASSWORD_CHECKS_AT_ONCE_MAX,
    PASSWORD_CHECKS_QUEUED_MAX,
    PASSWORDS_KNOWN_MAX,
)

#: Rounds are two to this power: some 50 ms of a core, and what Cassandra takes by default.
COST: Final = 10
#: What the algorithm looks at; Cassandra's ignores the rest as well.
_PASSWORD_BYTES: Final = 72
#: Up to a second of a core: a dearer hash would let one login hold up the others.
_HASH = re.compile(r"\$2[abxy]\$(0[4-9]|1[0-5])\$[./A-Za-z0-9]{53}")
#: Bcrypt's own digits.
_DIGITS: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_SALT_BYTES: Final = 16
#: Checked when there is nothing to check against: no password has this hash.
_NOBODY: Final = f"$2a${COST:02}${'.' * 53}"


class Passwords:
    """Of one node."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._turns = asyncio.Semaphore(PASSWORD_CHECKS_AT_ONCE_MAX)
        self._waiting = 0
        #: What passwords are kept as: a key of this process, so that they mean nothing elsewhere.
        self._key = runtime.random.bytes(32)
        #: (salted hash, keyed digest of the password that it is of), the latest last.
        self._known: dict[tuple[str, bytes], None] = {}

    async def hashed(self, password: str) -> str:
        """A new salted hash. Overloaded."""
        if "\x00" in password:
            raise InvalidRequest("A password cannot hold a NUL character")
        salt = _salt(self._runtime.random.bytes(_SALT_BYTES))
        return await self._computed(password, salt)

    async def is_of(self, password: str, salted_hash: str) -> bool:
        """Whether a hash is of this password; `salted_hash` may be empty, for no password. Overloaded."""
        digest = hashlib.blake2b(password.encode(), key=self._key, digest_size=32).digest()
        known = (salted_hash, digest)
        if known in self._known:
            del self._known[known]
            self._known[known] = None
            return True
        against = salted_hash if _HASH.fullmatch(salted_hash) else _NOBODY
        found = await self._computed(password.replace("\x00", ""), against)
        if found != against or against is _NOBODY:
            return False
        self._known[known] = None
        if len(self._known) > PASSWORDS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return True

    async def _computed(self, password: str, salt: str) -> str:
        if self._waiting >= PASSWORD_CHECKS_QUEUED_MAX:
            raise Overloaded("Too many logins wait for the check of their password")
        self._waiting += 1
        try:
            async with self._turns:
                return await self._runtime.tasks.run_blocking(lambda: _bcrypt(password, salt))
        finally:
            self._waiting -= 1


def check_hash(salted_hash: str) -> None:
    """InvalidRequest for a text that is no hash which a password could have."""
    if not _HASH.fullmatch(salted_hash):
        raise InvalidRequest("Invalid hashed password value. Please use jBcrypt.")


def _bcrypt(password: str, salt: str) -> str:
    import bcrypt

    return bcrypt.hashpw(password.encode()[:_PASSWORD_BYTES], salt.encode()).decode()


def _salt(data: bytes) -> str:
    """Random bytes as bcrypt writes a salt: six bits a digit, the last digit holds two."""
    bits = int.from_bytes(data, "big") << 4
    places = range(126, -1, -6)
    return f"$2a${COST:02}$" + "".join(_DIGITS[bits >> place & 63] for place in places)
