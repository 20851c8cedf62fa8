"""The admin port as strangers, web pages and operators find it: raw HTTP over real sockets."""

from __future__ import annotations

import base64
import http.client
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.local.admin_client import Credential
from lockstep.node.settings import AdminSection
from lockstep.server.admin.admin_access import TOKEN_PRINCIPAL, Access, AdminAccess, Misdirected
from lockstep.server.admin.http import HttpRequest
from lockstep.server.main import AdminDoor, serve_admin
from lockstep.values.errors import BadCredentials
from tests.server.certificates import Authority
from tests.server.parts import ADMIN_PORT, CQL_PORT, Nodes, nodes
from tests.server.test_process import configured, running
from tests.server.wire_client import WireClient

JSON = {"Content-Type": "application/json"}
#: Everything that a web page tried through the port before it asked for a credential.
CHANGES = (
    ("POST", "/v1/drain"),
    ("POST", "/v1/cms/freeze"),
    ("POST", "/v1/cms/truncate"),
    ("POST", "/v1/backups"),
    ("POST", "/v1/requests"),
    ("POST", "/v1/excluded"),
    ("POST", "/v1/repairs"),
    ("POST", "/v1/testing/partition"),
    ("DELETE", "/v1/requests/1"),
    ("DELETE", "/v1/backups/b"),
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """One node whose clients do not log in."""
    with nodes(tmp_path_factory.mktemp("plain"), 1, testing_faults="true") as made, opened(made):
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """One node whose clients log in and need permissions."""
    settings = {"auth_authenticator": "password", "auth_authorizer": "role-based"}
    with nodes(tmp_path_factory.mktemp("guarded"), 1, **settings) as made, opened(made):
        with WireClient(made.members[0].address, CQL_PORT) as client:
            client.startup()
            client.log_in("cassandra", "cassandra")
            for text in (
                "CREATE ROLE reader WITH LOGIN = true AND PASSWORD = 'read'",
                "CREATE ROLE operator WITH LOGIN = true AND PASSWORD = 'operate'",
                "GRANT SELECT ON ALL MBEANS TO reader",
                "GRANT SELECT ON ALL MBEANS TO operator",
                "GRANT EXECUTE ON ALL MBEANS TO operator",
            ):
                client.query(text)
        yield made


class opened:
    """The admin ports of all nodes, open while this is entered."""

    def __init__(self, cluster: Nodes) -> None:
        self._cluster = cluster
        self._doors: list[AdminDoor] = []

    def __enter__(self) -> None:
        for member in self._cluster.members:
            self._doors.append(self._cluster.call(serve_admin(member.node.services, member.server)))

    def __exit__(self, *_: object) -> None:
        for door in self._doors:
            self._cluster.loop.call_soon_threadsafe(door.close)


def ask(
    cluster: Nodes, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> tuple[int, dict[str, Any], http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(cluster.members[0].address, ADMIN_PORT, timeout=10)
    try:
        connection.request(method, path, body or None, headers or {})
        answer = connection.getresponse()
        raw = answer.read()
    finally:
        connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(raw) if is_json else {}, answer


def token(cluster: Nodes) -> dict[str, str]:
    return {**JSON, "Authorization": cluster.credential(cluster.members[0]).authorization}


def role(name: str, password: str) -> dict[str, str]:
    return {**JSON, "Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_nobody_changes_anything_without_a_credential(plain: Nodes, method: str, path: str) -> None:
    before = plain.members[0].node.log.cluster.epoch
    status, document, answer = ask(plain, method, path, JSON, b"{}")
    assert (status, document["code"]) == (401, "CQL_CREDENTIALS")
    assert "--token-file" in document["hint"]
    assert "Bearer" in (answer.headers["WWW-Authenticate"] or "")
    for wrong in ("Bearer 0", "Bearer ", "Basic Y2Fzc2FuZHJhOmNhc3NhbmRyYQ==", "Digest x", "Basic %%%"):
        assert ask(plain, method, path, {**JSON, "Authorization": wrong}, b"{}")[0] == 401
    member = plain.members[0]
    assert (member.server.draining.state, member.node.log.cluster.epoch) == ("serving", before)
    assert not member.node.context.internode.faults.blocked_to


def test_no_web_page_changes_anything_whatever_it_knows(plain: Nodes) -> None:
    shown, member = token(plain), plain.members[0]
    evil = {"Origin": "http://evil.example"}
    for headers in (evil, {"Origin": "null"}, {"Origin": f"http://{member.address}:{ADMIN_PORT}"}):
        status, document, _ = ask(plain, "POST", "/v1/drain", shown | headers, b"{}")
        assert (status, "origin" in document["message"]) == (403, True)
    for host in ("evil.example", "evil.example:17080", f"{member.address}.evil.example", "127.0.0.1.nip.io"):
        for path in ("/v1/drain", "/v1/status", "/metrics"):
            method = "POST" if path == "/v1/drain" else "GET"
            assert ask(plain, method, path, shown | {"Host": host}, b"{}")[0] == 403
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ""):
        status, document, _ = ask(plain, "POST", "/v1/drain", shown | {"Content-Type": kind}, b"{}")
        assert (status, "application/json" in document["message"]) == (415, True)
    assert member.server.draining.state == "serving"


def test_the_token_opens_and_nothing_else_says_it(plain: Nodes) -> None:
    assert ask(plain, "POST", "/v1/cms/snapshot", token(plain), b'{"dry_run": true}')[0] == 200
    secret = plain.credential(plain.members[0]).authorization.removeprefix("Bearer ")
    assert len(secret) == 64
    assert not any(secret in str(entry) for entry in plain.members[0].log)
    assert any(event == "admin.refused" for event, _ in plain.members[0].log)


def test_reading_is_open_on_the_same_machine_but_for_secrets(plain: Nodes) -> None:
    assert ask(plain, "GET", "/v1/status")[0] == 200
    for host in ("localhost:17080", "LOCALHOST", "[::1]:17080", "10.0.0.7:7080"):
        assert ask(plain, "GET", "/v1/status", {"Host": host})[0] == 200
    assert ask(plain, "GET", "/v1/cms/dump")[0] == 401
    assert ask(plain, "GET", "/v1/cms/dump", token(plain))[0] == 200


def test_where_clients_log_in_roles_need_permissions(guarded: Nodes) -> None:
    status = ask(guarded, "GET", "/v1/status")
    assert (status[0], ask(guarded, "GET", "/metrics")[0]) == (401, 200)
    plan, dry = "/v1/cms/snapshot", b'{"dry_run": true}'
    found = {
        name: tuple(
            ask(guarded, method, path, role(name, password), body)[0]
            for method, path, body in (
                ("GET", "/v1/status", b""),
                ("POST", plan, dry),
                ("GET", "/v1/cms/dump", b""),
            )
        )
        for name, password in (("cassandra", "cassandra"), ("operator", "operate"), ("reader", "read"))
    }
    assert found == {"cassandra": (200, 200, 200), "operator": (200, 200, 403), "reader": (200, 403, 403)}
    _, document, _ = ask(guarded, "POST", plan, role("reader", "read"), dry)
    assert "no EXECUTE permission on <all mbeans>" in document["message"]
    assert ask(guarded, "POST", plan, role("operator", "guess"), dry)[0] == 401
    assert ask(guarded, "POST", plan, token(guarded), dry)[0] == 200


def test_no_reading_but_of_secrets_has_hashes_of_passwords(guarded: Nodes) -> None:
    _, document, _ = ask(guarded, "GET", "/openapi.json", token(guarded))
    known = {"from": "1", "to": "50", "epoch": "4", "keyspace": "system_auth", "kind": "epoch", "id": "4"}
    read = 0
    for path, methods in document["paths"].items():
        if "get" not in methods or path == "/v1/cms/dump" or "{" in path:
            continue
        names = [parameter["name"] for parameter in methods["get"]["parameters"]]
        query = "&".join(f"{name}={known[name]}" for name in names if name in known)
        connection = http.client.HTTPConnection(guarded.members[0].address, ADMIN_PORT, timeout=10)
        connection.request("GET", f"{path}?{query}", headers=token(guarded))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        read += answer.status == 200
        assert b"$2a$" not in body, path
    assert read > 20


#: What is read and is no one's business without a credential: roles, and content of tables.
HOLD_SECRETS = ("/v1/cms/dump", "/v1/replica/rows", "/management/v1/recovery/export")


def test_every_operation_names_the_schemes_it_takes(plain: Nodes) -> None:
    _, document, _ = ask(plain, "GET", "/openapi.json")
    assert set(document["components"]["securitySchemes"]) == {"token", "role"}
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            is_open = method == "get" and path not in HOLD_SECRETS
            assert ({} in described["security"]) is is_open, path
            assert {"token": []} in described["security"]


@pytest.mark.parametrize(
    ("reads", "local", "access", "admitted"),
    [
        ("auto", True, Access.READ, True),
        ("auto", False, Access.READ, False),
        ("auto", False, Access.PROBE, True),
        ("none", True, Access.READ, False),
        ("anyone", False, Access.READ, True),
        ("anyone", True, Access.CHANGE, False),
        ("anyone", True, Access.SECRET, False),
    ],
)
def test_what_needs_no_credential(
    plain: Nodes, reads: Any, local: bool, access: Access, admitted: bool
) -> None:
    judge = AdminAccess(AdminSection(open_reads=reads), "10.0.0.1", "t" * 64, None, None)
    asked = HttpRequest("GET", "/x", {}, headers={"content-type": "application/json"}, is_local=local)
    if admitted:
        assert plain.call(judge.admit(asked, access)) == ""
    else:
        with pytest.raises(BadCredentials):
            plain.call(judge.admit(asked, access))


def test_the_principal_is_known_and_probes_can_be_closed(plain: Nodes) -> None:
    judge = AdminAccess(AdminSection(open_probes=False), "db1.example", "t" * 64, None, None)
    shown = HttpRequest("GET", "/metrics", {}, headers={"authorization": f"bearer {'t' * 64}"})
    assert plain.call(judge.admit(shown, Access.PROBE)) == TOKEN_PRINCIPAL
    with pytest.raises(BadCredentials):
        plain.call(judge.admit(HttpRequest("GET", "/metrics", {}), Access.PROBE))
    for host, own in (
        ("db1.example:7080", True),
        ("DB1.EXAMPLE.", True),
        ("db2.example", False),
        ("", False),
    ):
        asked = HttpRequest("GET", "/metrics", {}, headers={"host": host})
        if own:
            judge.screen(asked)
        else:
            with pytest.raises(Misdirected):
                judge.screen(asked)


def test_a_node_keeps_its_files_to_itself_and_speaks_tls(tmp_path: Path) -> None:
    from tests.server.parts import addresses

    authority, address = Authority(tmp_path), next(addresses())
    certificate, key = authority.issue("node")
    extra = f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    file = configured(tmp_path, address, extra)
    before = os.umask(0o022)
    try:
        with running(file):
            wrong = open_to_others(data)
            shown = ("--host", f"{address}:{ADMIN_PORT}", "--token-file", str(data / "admin.token"))
            arguments = ("cms", "snapshot", "--dry-run", *shown)
            done = CliRunner().invoke(root, [*arguments, "--ca-file", str(authority.certificate)])
            assert done.exit_code == 0, done.output
            itself = CliRunner().invoke(root, [*arguments, "--ca-file", str(certificate)])
            assert itself.exit_code == 0, itself.output
            unencrypted = CliRunner().invoke(root, list(arguments))
            assert unencrypted.exit_code != 0
            other = CliRunner().invoke(
                root, [*arguments, "--ca-file", str(Authority(tmp_path, "b").certificate)]
            )
            assert other.exit_code == 4 and "no TLS that can be trusted" in other.stderr
    finally:
        os.umask(before)
    assert not wrong


def open_to_others(directory: Path) -> list[str]:
    """What below a directory, it included, somebody but the owner may read or write."""
    paths = [directory, *directory.rglob("*")]
    return [
        f"{path}: {stat.filemode(path.lstat().st_mode)}"
        for path in paths
        if not path.is_symlink() and stat.S_IMODE(path.lstat().st_mode) & 0o077
    ]


def test_a_credential_shows_nothing_of_itself() -> None:
    assert Credential().authorization == ""
