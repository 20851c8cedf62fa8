"""`lockstep backup` with copies, against an admin API of canned answers and directories of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lockstep.cli import backup
from lockstep.cli.main import root
from lockstep.local import backup_copies
from lockstep.storage.backup_manifest import MANIFEST
from tests.cli.fake_admin import FakeAdmin
from tests.local.test_backup_copies import ALL, NODES, Cluster, backups, copies, listed, names

DONE = {
    "schema": "backup-run/1",
    "id": 1,
    "purpose": "backup",
    "state": "done",
    "progress": {"name": "monday", "backup_id": "one", "parts": 3, "parts_done": 3, "bytes": 9, "files": 3},
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "cluster")
    for at in (1, 2, 3):
        made.keep(f"n{at}", "monday", f"host-{at}", "7-00000", MANIFEST)
    monkeypatch.setattr(backup_copies, "copies_of", lambda _host, _port: copies(made))
    monkeypatch.setattr(backup, "_LISTED_WAIT_S", 0.0)
    return made


def create(to: Path, *lists: dict[str, Any]) -> tuple[Result, FakeAdmin]:
    answers = {
        "POST /v1/backups": DONE,
        "GET /v1/backups": list(lists),
        "GET /v1/nodes": {"nodes": NODES},
    }
    with FakeAdmin(answers, "127.0.121.1") as fake:
        arguments = ["backup", "create", "monday", "--to", str(to), "--host", fake.host]
        return CliRunner().invoke(root, arguments), fake


def test_a_copy_has_all_parts_of_its_backup_and_no_others(cluster: Cluster, tmp_path: Path) -> None:
    cluster.keep("n3", "monday", "host-4", MANIFEST, backup_id="older")
    older = listed((3, "host-4"), backup_id="older")
    result, _ = create(tmp_path / "copies", backups(*ALL, *older))
    assert result.exit_code == 0 and "copied 3 parts" in result.stderr
    assert {name.split("/")[0] for name in names(tmp_path / "copies" / "monday")} == {
        "host-1",
        "host-2",
        "host-3",
    }


def test_a_node_that_is_away_when_parts_are_listed_is_waited_for_and_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = backups(*ALL[:2], silent=(3,))
    result, _ = create(tmp_path / "copies", without)
    assert result.exit_code == 3
    assert "was not copied, as parts are not listed: host-3; node 3 cannot be asked" in result.stderr
    assert "lockstep backup remove monday" in result.stderr
    assert not (tmp_path / "copies" / "monday").exists()
    monkeypatch.setattr(backup, "_LISTED_WAIT_S", 60.0)
    result, fake = create(tmp_path / "copies", without, backups(*ALL))
    assert result.exit_code == 0 and "copied 3 parts" in result.stderr
    assert [call for call, _ in fake.calls].count("GET /v1/backups") == 2


def test_where_nothing_can_be_copied_to_no_backup_is_begun(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        result, fake = create(directory, backups(*ALL))
        assert result.exit_code == 3 and f"nothing can be copied to {directory}" in result.stderr
        assert not fake.calls


def test_a_copy_that_fails_is_told_with_what_to_do_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_copies.shutil, "copyfileobj", fail)
    result, _ = create(tmp_path / "copies", backups(*ALL))
    assert (
        result.exit_code == 1 and "error[DISK_REFUSED]" in result.stderr and "disk is full" in result.stderr
    )
    assert "lockstep backup remove monday" in result.stderr and "and create it again" in result.stderr
    assert not list((tmp_path / "copies").iterdir())


def test_a_dry_run_of_a_restore_brings_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / "copies", backups(*ALL))
    there = Cluster(tmp_path / "there")
    monkeypatch.setattr(backup_copies, "copies_of", lambda _host, _port: copies(there))
    answers = {"POST /v1/backups/monday/restore": {"name": "monday"}, "GET /v1/nodes": {"nodes": NODES}}
    with FakeAdmin(answers, "127.0.121.1") as fake:
        arguments = ["backup", "restore", "monday", "--from", str(tmp_path / "copies"), "--host", fake.host]
        result = CliRunner().invoke(root, [*arguments, "--dry-run"])
    assert result.exit_code == 0 and not (tmp_path / "there").exists()
    ((_, body),) = [call for call in fake.calls if call[0].startswith("POST")]
    assert body["dry_run"] and [part["node"] for part in body["brought"]["parts"]] == [1, 2, 3]


def fail(*_: Any) -> None:
    raise OSError("the disk is full")
