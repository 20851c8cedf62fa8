"""Which credential a command shows to each node that it asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.cli.shared.client import ClusterClient
from lockstep.local.admin_client import AdminClient, Credential, of_node, of_role


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Credential, Credential]:
    """Tokens of two nodes that were started in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    found = []
    for at in (1, 2):
        data = tmp_path / "lockstep-data" / f"127.0.0.{at}"
        data.mkdir(parents=True)
        (data / "admin.token").write_text(f"token{at}\n")
        found.append(of_node(data))
    return found[0], found[1]


def test_each_node_is_shown_its_own_token(two_nodes: tuple[Credential, Credential]) -> None:
    one, other = two_nodes
    client = ClusterClient(AdminClient("127.0.0.1", 7080, credential=one))
    assert client.at("127.0.0.2", 7080).admin.credential == other
    assert client.at("127.0.0.3", 7080).admin.credential == Credential(), "a token goes to its node alone"


def test_a_role_is_the_same_at_every_node(two_nodes: tuple[Credential, Credential]) -> None:
    role = of_role("operator", "secret", "ca.pem")
    client = ClusterClient(AdminClient("127.0.0.1", 7080, credential=role))
    assert client.at("127.0.0.2", 7080).admin.credential == role
