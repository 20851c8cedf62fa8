"""Owns one exchange with a node's admin HTTP API: JSON in, JSON out, errors as the error tree.

Invariant: every failure leaves as a LockstepError; an error that the node reported keeps its code, so
its exit code is the same wherever it is shown.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from lockstep.local.credentials import NO_CREDENTIAL, Credential
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
