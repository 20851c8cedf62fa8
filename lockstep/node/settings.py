"""Sections `auth`, `tls`, `admin`, `log` and `audit` of the configuration, how settings are shown, and TOML
text of the project's own two-level files.

Invariant: `problem` names every combination that would let in whom the sections mean to keep out. What a
setting keeps secret is shown nowhere. What `emit` writes, `tomllib` reads back to an equal value. Only what
those files need is supported: strings, integers, floats, booleans, lists of strings, tables, and lists of
tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from lockstep.runtime.ports import Tls
from lockstep.values.node_limits import AUDIT_FILE_BYTES, AUDIT_FILES, LOG_FILE_BYTES, LOG_FILES

OptionalHost = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]*)?$", max_length=253)]
#: Of a join secret: with fewer, somebody who watches handshakes might try them all.
SECRET_CHARACTERS_MIN: Final = 16
#: Values of `auth.authenticator` with which clients log in.
PASSWORD_AUTHENTICATORS: Final = ("password", "PasswordAuthenticator")
_ROLE_BASED: Final = ("role-based", "CassandraAuthorizer")


class AuthSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who clients are, and what they may do. Names of Cassandra's classes mean what they mean there."""

    authenticator: Literal["allow-all", "password", "AllowAllAuthenticator", "PasswordAuthenticator"] = (
        "allow-all"
    )
    authorizer: Literal["allow-all", "role-based", "AllowAllAuthorizer", "CassandraAuthorizer"] = "allow-all"

    @property
    def asks_password(self) -> bool:
        return self.authenticator in PASSWORD_AUTHENTICATORS

    @property
    def checks_permissions(self) -> bool:
        return self.authorizer in _ROLE_BASED


class TlsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clients' port speaks TLS 1.2 or later when there is a certificate. Paths of PEM files; the
    certificate may be followed by its chain. `client_ca`: who signs the certificates of clients, which
    `require_client_auth` asks for. With `internode_` ones the nodes' port speaks it too, and either side
    shows a certificate that `internode_ca` signed: all nodes of a cluster have these or none."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    require_client_auth: bool = False
    internode_certificate: str = ""
    internode_key: str = ""
    internode_ca: str = ""

    @property
    def files(self) -> Tls | None:
        """What the port is opened with; None: as it is, without TLS."""
        if not self.certificate:
            return None
        return Tls(self.certificate, self.key, self.client_ca, mutual=self.require_client_auth)

    @property
    def internode_files(self) -> Tls | None:
        """What connections between nodes are opened with; None: as they are, without TLS."""
        if not self.internode_certificate:
            return None
        return Tls(self.internode_certificate, self.internode_key, self.internode_ca, mutual=True)


class AdminSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The admin port: where it listens (empty: at network.address), and what needs no credential.

    `open_reads`: who may read without one: nobody (none), who asks from the node's own machine (loopback),
    or everybody (anyone); auto is loopback where clients do not log in, and none where they do.
    `open_probes`: everybody reads `/metrics` and `/health/*`. `allowed_hosts`: names besides addresses that
    requests may call the node by. `token_file`: a file with the token instead of the one that the node makes
    in its data directory.
    """

    address: OptionalHost = ""
    open_reads: Literal["auto", "none", "loopback", "anyone"] = "auto"
    open_probes: bool = True
    allowed_hosts: tuple[str, ...] = ()
    token_file: str = ""


def secret_problem(text: str) -> tuple[str, str] | None:
    """What is wrong with a join secret, and a hint; None when nothing is."""
    if (text and text.isspace()) or any(len(word) < SECRET_CHARACTERS_MIN for word in text.split()):
        return (
            f"the join secret has fewer than {SECRET_CHARACTERS_MIN} characters",
            "`openssl rand -hex 32` makes one; who watches nodes connect could find a short one by trying",
        )
    return None


def problem(auth: AuthSection, tls: TlsSection, *, nodes_prove: bool) -> tuple[str, str] | None:
    """What is wrong between these settings, and a hint; None when nothing is. `nodes_prove`: they have a join
    secret."""
    if auth.checks_permissions and not auth.asks_password:
        return (
            "auth.authorizer checks permissions, but auth.authenticator lets everybody in without a name",
            'set auth.authenticator = "password"',
        )
    if bool(tls.certificate) is not bool(tls.key):
        return "tls.certificate and tls.key go together", "set both, or neither"
    if not tls.certificate and (tls.client_ca or tls.require_client_auth):
        return "tls has no certificate, so nothing is encrypted", "set tls.certificate and tls.key"
    if tls.require_client_auth and not tls.client_ca:
        return "tls.require_client_auth asks for certificates, and nothing says whose", "set tls.client_ca"
    if len({bool(path) for path in (tls.internode_certificate, tls.internode_key, tls.internode_ca)}) > 1:
        return "tls.internode_certificate, internode_key and internode_ca go together", "set all, or none"
    if auth.asks_password and not nodes_prove and not tls.internode_certificate:
        return (
            "auth.authenticator asks clients for passwords, but nothing asks nodes: whoever reaches the "
            "internode port could join and read all tables and password hashes",
            "give all nodes the same cluster.join_secret_file (`openssl rand -hex 32` makes a secret), or "
            "tls.internode_certificate, internode_key and internode_ca",
        )
    return None


#: At least some lines, at most what an editor opens.
FileBytes = Annotated[int, msgspec.Meta(ge=4096, le=1 << 40)]
Files = Annotated[int, msgspec.Meta(ge=0, le=1000)]
_SECRET: Final = re.compile(r"(^|_)(password|passphrase|secret|token|credentials?)$")
MASKED: Final = "********"


class LogSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`file`: where lines go instead of standard error; before it is larger than `rotate_bytes` it is renamed
    to FILE.1 and so on, of which `rotate_files` stay."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "text"
    file: str = ""
    rotate_bytes: FileBytes = LOG_FILE_BYTES
    rotate_files: Files = LOG_FILES


class AuditSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Failed logins and changing admin requests, as lines of JSON in a file that only grows. `file`: empty is
    audit.log in the data directory."""

    enabled: bool = True
    file: str = ""
    rotate_bytes: FileBytes = AUDIT_FILE_BYTES
    rotate_files: Files = AUDIT_FILES


def is_secret(key: str) -> bool:
    """Whether a setting or field of this name holds what only its owner may know."""
    return _SECRET.search(key.lower()) is not None


def masked(value: Any) -> Any:
    """A document of settings or of a request, with what it keeps secret replaced."""
    if isinstance(value, dict):
        return {
            key: MASKED if is_secret(str(key)) and inner else masked(inner) for key, inner in value.items()
        }
    return [masked(inner) for inner in value] if isinstance(value, list | tuple) else value


Scalar = str | int | float | bool
Value = Scalar | Sequence[str]
Table = Mapping[str, Value]


def emit(tables: Mapping[str, Table | Sequence[Table]]) -> str:
    """TOML text with one `[name]` block a table and one `[[name]]` block a member of a list of tables."""
    blocks: list[str] = []
    for name, content in tables.items():
        if isinstance(content, Mapping):
            blocks.append(_block(f"[{name}]", content))
        else:
            blocks.extend(_block(f"[[{name}]]", table) for table in content)
    return "\n".join(blocks)


def _block(heading: str, table: Table) -> str:
    lines = [heading, *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are a subset of TOML's, except that TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ", ".join(_value(item) for item in value) + "]"
