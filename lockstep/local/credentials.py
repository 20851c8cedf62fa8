"""What a client shows to an admin port: the token of a node on this machine, or a role's password.

Invariant: a token is read from where its node keeps it and stored nowhere else; it is in no error.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from pathlib import Path
from typing import Final

import msgspec

from lockstep.values.errors import ConfigurationError

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
