"""Who a client is: SASL PLAIN tokens against the roles of the metadata, the first superuser, and passwords:
made salted hashes, and checked.

How long a login waits before its password is looked at: longer, the more failed lately.

Three things are counted: failures of a role from one address, of an address, and of a role. The first kind
makes attempts wait one behind the other, so that many at once are no faster; the other two only slow down who
goes through many roles or comes from many addresses. All waits are short and pass by themselves: guessing
gets slow, and nobody can lock a role or an address out.

Hashes are bcrypt's, as Cassandra's are, so that hashes move between the two.

Invariant: a refused login says the same whichever of name and password is wrong; nothing is known of a client
until `login` has returned its role. Pure, times are given; a bounded number of failures is remembered, the
latest ones. The wait does not depend on whether the password is right. Hashing happens off the loop and a
bounded number of times at once, and a client learns from time alone neither whether a role exists nor whether
it may log in.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.cql.wire.messages import AuthResponse, Request
from lockstep.metadata.access.role_changes import ChangeRole, CreateRole
from lockstep.node.services import NodeServices
from lockstep.runtime.ports import Runtime, Tasks
from lockstep.values.errors import (
    BadCredentials,
    InvalidRequest,
    LockstepError,
    Overloaded,
    ProtocolViolation,
    Rejected,
)
from lockstep.values.limits import (
    PASSWORD_CHECKS_AT_ONCE_MAX,
    PASSWORD_CHECKS_QUEUED_MAX,
    PASSWORDS_KNOWN_MAX,
)
from lockstep.values.node_limits import LOGIN_FAILURES_KEPT_MAX, LOGIN_WAIT_S_MAX

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


#: The wait of the first failure that is not free; each further one doubles it.
FIRST_WAIT_S: Final = 0.1
#: After so long without another, a failure is forgiven.
FORGIVEN_AFTER_S: Final = 5.0
#: Failures above the free ones that still count: the longest waits, and how long they are remembered.
COUNTED_MAX: Final = 9
#: Of IPv6 addresses, whoever has one has all with the same first half.
_SIX_PREFIX: Final = 64


class _Kind(msgspec.Struct, frozen=True):
    """`free` failures cost nothing, as people mistype; `wait_s_max` is the longest wait for one attempt."""

    free: int
    wait_s_max: float


_ROLE_AT_ADDRESS: Final = _Kind(3, 3.2)
_ADDRESS: Final = _Kind(10, 1.0)
_ROLE: Final = _Kind(10, 0.5)


class _Failures(msgspec.Struct):
    """`count` as of `at_s`; attempts in line begin at `next_s`."""

    count: float
    at_s: float
    next_s: float = 0.0

    def left(self, now_s: float) -> float:
        return max(0.0, self.count - (now_s - self.at_s) / FORGIVEN_AFTER_S)


class _Table:
    """Failures of one kind by key, the latest last."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self._by_key: dict[str, _Failures] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def wait_s(self, key: str, now_s: float) -> float:
        """What one attempt costs."""
        found = self._by_key.get(key)
        over = found.left(now_s) - self._kind.free if found is not None else 0.0
        return min(self._kind.wait_s_max, FIRST_WAIT_S * 2 ** (over - 1)) if over > 0 else 0.0

    def line_s(self, key: str, now_s: float) -> float:
        """How long until an attempt that comes now has its turn."""
        found = self._by_key.get(key)
        return max(0.0, found.next_s - now_s) if found is not None else 0.0

    def take_turn(self, key: str, now_s: float) -> None:
        """The next attempt waits behind this one."""
        found = self._by_key.get(key)
        if found is not None:
            found.next_s = max(now_s, found.next_s) + self.wait_s(key, now_s)

    def failed(self, key: str, now_s: float) -> None:
        found = self._by_key.pop(key, None) or _Failures(0.0, now_s)
        count = min(found.left(now_s) + 1, self._kind.free + COUNTED_MAX)
        self._by_key[key] = _Failures(count, now_s, found.next_s)
        self._by_key[key].next_s = max(found.next_s, now_s + self.wait_s(key, now_s))
        if len(self._by_key) > LOGIN_FAILURES_KEPT_MAX:
            del self._by_key[next(iter(self._by_key))]

    def forget(self, key: str) -> None:
        self._by_key.pop(key, None)


class LoginDelays:
    """Of one node. Each attempt calls `begin`, waits, and tells how it went."""

    def __init__(self) -> None:
        self._pairs = _Table(_ROLE_AT_ADDRESS)
        self._addresses = _Table(_ADDRESS)
        self._roles = _Table(_ROLE)

    def begin(self, role: str, address: str, now_s: float) -> float | None:
        """Seconds until the attempt may be judged; None: too many wait already, it is refused unjudged."""
        place = _network(address)
        pair = _pair(role, place)
        line_s = self._pairs.line_s(pair, now_s)
        if line_s > LOGIN_WAIT_S_MAX:
            return None
        self._pairs.take_turn(pair, now_s)
        return max(line_s, self._addresses.wait_s(place, now_s), self._roles.wait_s(role, now_s))

    def failed(self, role: str, address: str, now_s: float) -> None:
        place = _network(address)
        self._pairs.failed(_pair(role, place), now_s)
        self._addresses.failed(place, now_s)
        self._roles.failed(role, now_s)

    def succeeded(self, role: str, address: str) -> None:
        """Who knows the password has mistyped it before. What others tried stays counted."""
        self._pairs.forget(_pair(role, _network(address)))

    @property
    def remembered(self) -> int:
        """Entries of all tables."""
        return len(self._pairs) + len(self._addresses) + len(self._roles)


def _pair(role: str, place: str) -> str:
    # No address holds a NUL.
    return f"{place}\x00{role}"


def _network(address: str) -> str:
    """Whom an address stands for."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((found, _SIX_PREFIX), strict=False))


#: The name that drivers look for.
AUTHENTICATOR: Final = "org.apache.cassandra.auth.PasswordAuthenticator"
#: Name and password of the role that a cluster without roles begins with, as Cassandra's.
DEFAULT_SUPERUSER: Final = "cassandra"


class Authentication:
    """Of one node whose clients log in."""

    def __init__(self, node: NodeServices, passwords: Passwords) -> None:
        self._node = node
        self._passwords = passwords
        self._delays = LoginDelays()

    async def login(self, token: bytes | None, address: str) -> str:
        """The role that a SASL PLAIN token from this address belongs to. BadCredentials or Overloaded."""
        return await self.login_as(*_plain(token), address)

    async def login_as(self, name: str, password: str, address: str) -> str:
        """The role, when the password is its; who failed before waits first. BadCredentials or Overloaded."""
        clock, delays = self._node.context.runtime.clock, self._delays
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
        role = self._node.log.cluster.access.role(name)
        salted_hash = role.salted_hash if role is not None else ""
        if not await self._passwords.is_of(password, salted_hash):
            raise BadCredentials(f"Provided username {name} and/or password are incorrect")
        now = self._node.log.cluster.access.role(name)
        if now is None or not now.login:
            raise BadCredentials(f"{name} is not permitted to log in")

    async def make_first_role(self) -> None:
        """Make the default superuser in a cluster without roles. Not being able to is no error: another node
        may be, and a restart tries again."""
        if self._node.log.cluster.access.roles.count:
            return
        salted_hash = await self._passwords.hashed(DEFAULT_SUPERUSER)
        role = CreateRole(DEFAULT_SUPERUSER, True, True, salted_hash, only_first=True)
        try:
            await self._node.log.submit(ChangeRole(role))
        except Rejected:
            return
        except LockstepError as error:
            self._node.context.log("auth.no_first_role", error=str(error))
            return
        self._node.context.log(
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


class Login:
    """Of a client at `address`. `done` hears once of the end: the stream to answer on, the role that logged
    in, or that was to, and why it did not. A refused client has to connect again, so that each guess costs it
    a connection and a turn."""

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
