"""Owns one exchange with a node's admin HTTP API: JSON in, JSON out, errors as the error tree; and what a
client shows to an admin port: the token of a node on this machine, or a role's password.

Invariant: every failure leaves as a LockstepError; an error that the node reported keeps its code, so its
exit code is the same wherever it is shown. A token is read from where its node keeps it and stored nowhere
else; it is in no error.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from lockstep.values.errors import (
    BadCredentials,
    ConfigurationError,
    LockstepError,
    OutcomeUnknown,
    PeerTimeout,
    PeerUnreachable,
    PreconditionError,
    Unauthorized,
)

#: Of a node, in its data directory.
TOKEN_FILE: Final = "admin.token"
_OF_ROLE: Final = "Basic "


class Credential(msgspec.Struct, frozen=True):
    """`authorization` is the value of the HTTP header, empty for none. `ca_file`: PEM file with the
    certificate of the node or of who signed it; empty: the port speaks no TLS."""

    authorization: str = ""
    ca_file: str = ""

    @property
    def is_of_role(self) -> bool:
        return self.authorization.startswith(_OF_ROLE)

    def connection(self, host: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that is not open yet. ConfigurationError when the certificate cannot be read."""
        if not self.ca_file:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_trusting(self.ca_file))


NO_CREDENTIAL: Final = Credential()


def of_token_file(path: Path, ca_file: str = "") -> Credential:
    """The token in a file. ConfigurationError when there is none that can be read."""
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"the token file {path} cannot be read: {why}") from error
    if not token.isprintable() or not token:
        raise ConfigurationError(f"the token file {path} holds no token")
    return Credential(f"Bearer {token}", ca_file)


def of_node(data_directory: Path, ca_file: str = "") -> Credential:
    """The token of the node that keeps its data there; nothing when this user cannot read it, or the node
    has not made it yet."""
    try:
        return of_token_file(data_directory / TOKEN_FILE, ca_file)
    except ConfigurationError:
        return Credential("", ca_file)


def of_role(name: str, password: str, ca_file: str = "") -> Credential:
    """A role and its password."""
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode("ascii")
    return Credential(_OF_ROLE + encoded, ca_file)


def _trusting(ca_file: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # As between nodes: a certificate proves who signed it, and not at which address it is.
    made.check_hostname = False
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        made.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"the certificate {ca_file} cannot be used: {error}") from error
    return made


#: Longest answer that is read; a metadata value of thousands of nodes is some tens of megabytes.
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024

_NOT_ADMIN: Final = "is this a Lockstep admin port?"
_BY_STATUS: Final[dict[int, type[LockstepError]]] = {
    400: ConfigurationError,
    401: BadCredentials,
    403: Unauthorized,
    404: ConfigurationError,
    409: PreconditionError,
    503: PeerUnreachable,
    504: OutcomeUnknown,
}


class AdminClient:
    """Calls to one node. Each call opens its own connection; nothing is kept between calls."""

    def __init__(
        self, host: str, port: int, timeout_s: float = 10.0, credential: Credential = NO_CREDENTIAL
    ) -> None:
        self.host = host
        self.port = port
        self.timeout_s = timeout_s
        self.credential = credential

    def get(self, path: str, **query: str | int | None) -> dict[str, Any]:
        given = {key: value for key, value in query.items() if value is not None}
        return self.call("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.call("POST", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        return self.call("DELETE", path)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object the node answered.

        Raises PeerUnreachable (nothing was sent), PeerTimeout (outcome unknown), or what the node reported.
        """
        where = f"{self.host}:{self.port}"
        connection = self.credential.connection(self.host, self.port, self.timeout_s)
        try:
            try:
                connection.connect()
            except ssl.SSLError as error:
                raise PeerUnreachable(
                    f"{where} speaks no TLS that can be trusted: {error}",
                    hint="--ca-file names the certificate of who signed the node's, for ports with TLS only",
                ) from error
            except OSError as error:
                raise PeerUnreachable(
                    f"no node answers at {where}: {error.strerror or error}",
                    hint="lockstep cluster list shows local clusters; --host names another node",
                ) from error
            status, raw = _exchange(connection, method, path, body, self.credential)
        except TimeoutError as error:
            raise PeerTimeout(f"{where} did not answer within {self.timeout_s:g} s") from error
        except http.client.BadStatusLine as error:
            # RemoteDisconnected is one too: then nothing came, which is no sign of another protocol.
            if isinstance(error, http.client.RemoteDisconnected):
                raise PeerTimeout(f"{where} broke off before it answered: {error}") from error
            raise LockstepError(f"{where} did not answer with HTTP", hint=_NOT_ADMIN) from error
        except (OSError, http.client.HTTPException) as error:
            raise PeerTimeout(f"{where} broke off before it answered: {error}") from error
        finally:
            connection.close()
        document = _decoded(raw, where)
        if status >= 400:
            raise reported(document, status, f"{method} {path} at {where}")
        return document


def reported(document: Mapping[str, Any], status: int, what: str) -> LockstepError:
    """The error in a node's answer (`code`, `message`, `hint`, `facts`), as the class with that code."""
    body = document.get("error", document)
    if not isinstance(body, Mapping):
        body = {"message": str(body)}
    kind = class_by_code(str(body.get("code", ""))) or _BY_STATUS.get(status, LockstepError)
    message = str(body.get("message") or f"{what} failed with HTTP status {status}")
    facts = body.get("facts")
    if isinstance(facts, Mapping):
        message += "".join(f"\n  {key}: {value}" for key, value in facts.items())
    return revived(kind, message, str(body.get("hint", "")))


def revived(kind: type[LockstepError], message: str, hint: str) -> LockstepError:
    """An error of `kind` that another process described; only message and hint travel."""
    error = kind.__new__(kind)
    LockstepError.__init__(error, message, hint=hint)
    return error


def error_classes(root: type[LockstepError] = LockstepError) -> Iterator[type[LockstepError]]:
    """The published error tree from `root`, parents first; narrower private kinds share a parent's code."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == root.__module__:
            yield from error_classes(child)


def class_by_code(code: str) -> type[LockstepError] | None:
    return next((kind for kind in error_classes() if kind.code == code), None)


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    credential: Credential,
) -> tuple[int, bytes]:
    payload = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json"}
    if credential.authorization:
        headers["Authorization"] = credential.authorization
    if payload is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, body=payload, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(ANSWER_BYTES_MAX)


def _decoded(raw: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(raw or b"{}")
    except ValueError as error:
        raise LockstepError(f"{where} did not answer with JSON", hint=_NOT_ADMIN) from error
    if not isinstance(document, dict):
        raise LockstepError(f"{where} answered with {type(document).__name__}, not an object")
    return document
