"""Who may ask what of the admin port: the node's token, roles with permissions, and nobody for web pages.

Invariant: nothing is changed for a request without a credential, nor for one that a web page could make: it
calls the node by a name that may be anybody's, or says the page it is from, or brings what a form can bring.
What says the credential is never in an error or a log. The token is made once, at the node's first start, in
a file that only the node's own user reads.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hmac
import ipaddress
from typing import TYPE_CHECKING, Final

from lockstep.metadata.access import roles
from lockstep.node.settings import AdminSection
from lockstep.runtime.ports import Runtime
from lockstep.server.auth.permits import SUPERUSER, Needs, Permits, Session
from lockstep.values.errors import BadCredentials, ConfigurationError, LockstepError, Unauthorized

if TYPE_CHECKING:
    from lockstep.server.admin.http import HttpRequest
    from lockstep.server.auth.authentication import Authentication


#: What the node's own token makes the asker.
TOKEN_PRINCIPAL: Final = "node token"
#: How a client is told what it may show.
CHALLENGE: Final = (("www-authenticate", 'Bearer realm="lockstep", Basic realm="lockstep"'),)
_HINT: Final = (
    "`lockstep` finds the token of a node on this machine by itself; --token-file names that of another one, "
    "--user logs in as a role"
)


class Access(enum.Enum):
    """What an operation asks of who wants it."""

    #: Metrics and health: nothing, unless the settings say otherwise.
    PROBE = "probe"
    #: Reading; some settings let anybody.
    READ = "read"
    #: Changing anything, or planning to.
    CHANGE = "change"
    #: Reading what holds hashes of passwords.
    SECRET = "secret"
    #: Changing the metadata past the groups: only who has the node's own token, for roles are metadata.
    BREAK_GLASS = "break glass"


#: What a role needs, where permissions count: Cassandra's for what it offers by JMX.
#: Nothing of a role lets it do what needs the token.
NEEDS: Final[dict[Access, Needs]] = {
    Access.PROBE: (("SELECT", roles.MBEANS),),
    Access.READ: (("SELECT", roles.MBEANS),),
    Access.CHANGE: (("EXECUTE", roles.MBEANS),),
    Access.SECRET: ((SUPERUSER, "what holds hashes of passwords"),),
}


#: What changes something: it is audited, and no form of a web page can ask for it.
CHANGING: Final = (Access.CHANGE, Access.BREAK_GLASS)


class Misdirected(Unauthorized):
    """The request is meant for somebody else, or comes from a web page. Nothing was done."""


class NotJson(ConfigurationError):
    """A change came with another type of content than JSON. Nothing was done."""


class AdminAccess:
    """Of one node. `host` is where its admin port listens; without `authentication` there are no roles."""

    def __init__(
        self,
        settings: AdminSection,
        host: str,
        token: str,
        authentication: Authentication | None,
        permits: Permits | None,
    ) -> None:
        assert token, "a node without a token would let in whoever shows none"
        self._settings = settings
        self._names = {"localhost", host.lower(), *(name.lower() for name in settings.allowed_hosts)}
        self._token = token.encode()
        self._authentication = authentication
        self._permits = permits
        open_reads = settings.open_reads
        if open_reads == "auto":
            open_reads = "loopback" if authentication is None else "none"
        self._open_reads = open_reads

    def screen(self, request: HttpRequest) -> None:
        """Misdirected for a request that a web page could have sent."""
        host = request.headers.get("host", "")
        if not self._is_own(host):
            raise Misdirected(
                f"this node is not called {host}" if host else "the request does not say whom it is for",
                hint="use its address, or name it in admin.allowed_hosts",
            )
        origin = request.headers.get("origin")
        if origin is not None:
            raise Misdirected(f"no web page may ask this port, and the request has the origin {origin}")

    def _is_own(self, host: str) -> bool:
        """Whether a Host header has a name of this node, or an address, which no name service can move."""
        name = host.lower().rstrip(".")
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0].rstrip(".")
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    async def admit(self, request: HttpRequest, access: Access) -> str:
        """Whom the request is from: a role's name, TOKEN_PRINCIPAL, or empty where nobody needs to say.
        BadCredentials, Unauthorized, Overloaded, or NotJson."""
        if access in CHANGING and not request.says_json and request.method != "DELETE":
            raise NotJson(
                f"{request.method} {request.path} takes application/json",
                hint="send the header Content-Type: application/json",
            )
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            if self._is_open(request, access):
                return ""
            raise BadCredentials(f"{request.method} {request.path} needs a credential", hint=_HINT)
        if scheme.lower() == "bearer":
            if not hmac.compare_digest(value.strip().encode(), self._token):
                raise BadCredentials("the token is not this node's", hint=_HINT)
            return TOKEN_PRINCIPAL
        if access is Access.BREAK_GLASS:
            raise BadCredentials(
                f"{request.method} {request.path} takes the node's own token and no role: what roles may do "
                "lies in the metadata, which this changes",
                hint=_HINT,
            )
        if scheme.lower() != "basic":
            raise BadCredentials(f"credentials are Basic or Bearer here, not {scheme}", hint=_HINT)
        return await self._logged_in(request, value, access)

    def _is_open(self, request: HttpRequest, access: Access) -> bool:
        if access is Access.PROBE and self._settings.open_probes:
            return True
        if access not in (Access.PROBE, Access.READ):
            return False
        return self._open_reads == "anyone" or (self._open_reads == "loopback" and request.is_local)

    async def _logged_in(self, request: HttpRequest, value: str, access: Access) -> str:
        authentication, permits = self._authentication, self._permits
        if authentication is None or permits is None:
            raise BadCredentials(
                "nobody has a password here: clients of this cluster do not log in", hint=_HINT
            )
        name, password = _basic(value)
        role = await authentication.login_as(name, password, request.peer)
        permits.require(Session(5, user=role), NEEDS[access])
        return role


def _basic(value: str) -> tuple[str, str]:
    """Name and password of a Basic credential. BadCredentials."""
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise BadCredentials("the Basic credential cannot be read", hint=_HINT) from None
    name, colon, password = text.partition(":")
    if not colon or not name or not password:
        raise BadCredentials("the Basic credential has no name or no password", hint=_HINT)
    return name, password


def status_of(error: LockstepError) -> int | None:
    """The HTTP status of what this module raises; None for any other error."""
    if isinstance(error, NotJson):
        return 415
    if isinstance(error, BadCredentials):
        return 401
    return 403 if isinstance(error, Unauthorized) else None


#: In the data directory.
PATH: Final = "admin.token"
_PARTIAL: Final = "admin.token.new"
_TOKEN_BYTES: Final = 32
#: Of a token that an operator wrote: with fewer, somebody might try them all.
TOKEN_CHARACTERS_MIN: Final = 32


async def own_token(runtime: Runtime) -> str:
    """The token in the data directory, made and durable when there is none. ConfigurationError."""
    disk = runtime.disk
    if disk.exists(PATH):
        return checked(disk.read(PATH), PATH)
    token = runtime.random.bytes(_TOKEN_BYTES).hex()
    if disk.exists(_PARTIAL):
        disk.remove(_PARTIAL)
    await disk.append_synced(_PARTIAL, f"{token}\n".encode())
    disk.rename(_PARTIAL, PATH)
    await disk.sync_names("")
    return token


def checked(content: bytes, name: str) -> str:
    """The token that a file holds. ConfigurationError when it is none."""
    text = content.decode("ascii", "replace").strip()
    if len(text) < TOKEN_CHARACTERS_MIN or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(
            f"{name} holds no token: at least {TOKEN_CHARACTERS_MIN} letters and digits on one line",
            hint="remove the file in the data directory, and the node makes another token when it starts",
        )
    return text
