"""A cluster whose clients log in, and nodes that are not its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.node.settings import MASKED
from lockstep.server.main import main
from lockstep.values.errors import ConfigurationError
from tests.server.parts import CQL_PORT, JOIN_SECRET, Nodes, nodes
from tests.server.wire_client import WireClient

AUTH = {"auth_authenticator": "password", "auth_authorizer": "role-based"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("secret"), 1, **AUTH) as made:
        yield made


@pytest.mark.parametrize("secret", ["", "the-join-secret-of-a-stranger", JOIN_SECRET.upper()])
def test_a_strange_node_does_not_join_whatever_else_it_knows(cluster: Nodes, secret: str) -> None:
    before = cluster.members[0].node.log.cluster.epoch
    with pytest.raises(ConfigurationError, match="join secret"):
        cluster.add(cluster_join_secret=secret)
    stranger = cluster.members.pop()
    try:
        own = cluster.members[0]
        assert len(own.node.log.cluster.directory.nodes) == 1 and own.node.log.cluster.epoch == before
        assert not stranger.node.log.cluster.access.roles.count
        told = [facts["reason"] for event, facts in own.log + stranger.log if event == "internode.refused"]
        assert any("join secret" in reason for reason in told)
        assert not any(JOIN_SECRET in str(entry) for entry in own.log + stranger.log)
    finally:
        cluster.members.append(stranger)
        cluster.stop(stranger)


def test_a_node_that_knows_the_secret_joins_while_it_is_changed(cluster: Nodes) -> None:
    joined = cluster.add(cluster_join_secret=f"{JOIN_SECRET} the-secret-of-tomorrow", **AUTH)
    assert len(cluster.members[0].node.log.cluster.directory.nodes) == 2
    with WireClient(joined.address, CQL_PORT) as client:
        client.startup()
        client.log_in("cassandra", "cassandra")
        shown = client.query("SELECT value FROM system_views.settings WHERE name = 'cluster.join_secret'")
        assert MASKED.encode() in shown.rows[0][0]  # type: ignore[union-attr]


def test_a_node_refuses_settings_that_only_pretend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, secret = tmp_path / "lockstep.toml", tmp_path / "join.secret"
    begin = '[cluster]\nfounders = ["127.0.0.1"]\n'
    for text, content, sentence in (
        ('[auth]\nauthenticator = "password"\n', "", "nothing asks nodes"),
        (f'join_secret_file = "{secret}"\n', None, "join.secret cannot be read"),
        (f'join_secret_file = "{secret}"\n', "sesame\n", "fewer than 16 characters"),
        (f'join_secret_file = "{secret}"\n', "", "fewer than 16 characters"),
    ):
        file.write_text(begin + text)
        secret.unlink(missing_ok=True)
        if content is not None:
            secret.write_text(content)
        assert main(["--config", str(file)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error[CONFIGURATION]: ") and sentence in said and "sesame" not in said
