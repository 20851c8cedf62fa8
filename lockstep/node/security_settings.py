"""Sections `auth`, `tls` and `admin` of the configuration: who may connect and ask, and what is encrypted.

Invariant: `problem` names every combination that would let in whom the sections mean to keep out.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from lockstep.runtime.ports import Tls

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
