"""What the shell offers after a TAB: clusters and nodes from their directory, the rest from a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from lockstep.cli.main import root
from lockstep.cli.shared.client import node_id
from lockstep.documents.status import ListedNode
from lockstep.local.clusters import LocalCluster
from lockstep.values.errors import ConfigurationError
from tests.cli.fake_admin import FakeAdmin, node

METADATA = {
    "schema": "metadata/1",
    "keyspaces": [
        {"name": "shop", "replication": "SimpleStrategy 3", "tables": ["orders", "visits"]},
        {"name": "plant", "replication": "SimpleStrategy 1", "tables": []},
    ],
}
ANSWERS = {
    "GET /v1/metadata": METADATA,
    "GET /v1/nodes": {"schema": "nodes/1", "nodes": [node(1), node(2)]},
}


def offered(*words: str, incomplete: str = "") -> list[str]:
    complete = ShellComplete(root, {}, "lockstep", "_LOCKSTEP_COMPLETE")
    return [item.value for item in complete.get_completions(list(words), incomplete)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    for name, first in (("try", "127.0.41.1"), ("trial", "127.0.42.1"), ("other", "127.0.43.1")):
        LocalCluster.create(name, 3, first_address=first)
    return tmp_path


def test_clusters_and_their_nodes_are_offered(home: Path) -> None:
    assert offered("cluster", "kill", incomplete="tr") == ["trial", "try"]
    assert offered("cluster", "destroy") == ["other", "trial", "try"]
    assert offered("cluster", "kill", "try") == ["n1", "n2", "n3"]
    assert offered("cluster", "kill", "try", "n1") == ["n2", "n3"]
    assert offered("cluster", "partition", "try", "n1", incomplete="n2,") == ["n2,n1", "n2,n3"]
    assert offered("cluster", "kill", "nothing") == []
    assert "kill" in offered("cluster", incomplete="ki")


def test_keyspaces_tables_and_nodes_are_asked_of_the_cluster(home: Path) -> None:
    with FakeAdmin(ANSWERS) as fake:
        at = ("--host", fake.host)
        assert offered("ring", *at) == ["shop", "plant"]
        assert offered("describe", *at, incomplete="shop.") == ["shop.orders", "shop.visits"]
        assert offered("repair", *at, incomplete="p") == ["plant"]
        assert offered("topology", "rf", *at, incomplete="s") == ["shop"]
        assert offered("topology", "decommission", *at) == ["127.0.0.1", "127.0.0.2"]


def test_nothing_is_offered_where_nobody_answers(home: Path) -> None:
    with FakeAdmin({}) as fake:
        assert offered("ring", "--host", fake.host) == []
    assert offered("ring", "--host", fake.host) == []


def test_the_shell_gets_its_script_and_its_answers(home: Path) -> None:
    lockstep = str(Path(sys.executable).with_name("lockstep"))
    asked = {**os.environ, "_LOCKSTEP_COMPLETE": "bash_source"}
    script = subprocess.run([lockstep], env=asked, capture_output=True, text=True, check=True).stdout
    assert "_LOCKSTEP_COMPLETE=bash_complete" in script
    asked |= {
        "_LOCKSTEP_COMPLETE": "bash_complete",
        "COMP_WORDS": "lockstep cluster stop t",
        "COMP_CWORD": "3",
    }
    answer = subprocess.run([lockstep], env=asked, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["plain,trial", "plain,try"]
    assert answer.stderr == ""


def test_a_node_is_named_by_its_name_in_the_local_cluster_too(home: Path) -> None:
    nodes = [
        ListedNode(7, address="127.0.42.2", admin_port=7080),
        ListedNode(8, address="127.0.42.3", admin_port=7080),
    ]
    assert [node_id(nodes, name) for name in ("7", "127.0.42.3", "n2", "n3")] == [7, 8, 7, 8]
    with pytest.raises(ConfigurationError, match="no node is called n1"):
        node_id(nodes, "n1")
