"""Parts of backups between the data directories of a local cluster and folders elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from lockstep.local import backup_copies
from lockstep.local.backup_copies import Copies, copies_of, parts_of
from lockstep.local.clusters import LocalCluster
from lockstep.local.layout import ClusterFile, LocalNode, Paths
from lockstep.local.processes import State
from lockstep.storage.backup_manifest import MANIFEST, BackedFile, Manifest, sealed, unsealed
from lockstep.values.errors import DiskRefused, PreconditionError

NODES = [{"id": at, "address": f"127.0.0.{at}", "host_id": f"host-{at}"} for at in (1, 2, 3)]


class Cluster:
    """Three nodes as their directories; `stopped` ones do not run."""

    def __init__(self, root: Path, stopped: tuple[str, ...] = ()) -> None:
        self.paths = Paths(root)
        self.file = ClusterFile("c", "127.0.0.1", 9042, 7000, 7080, tuple(
            LocalNode(f"n{at}", f"127.0.0.{at}") for at in (1, 2, 3)
        ))  # fmt: skip
        self.stopped = stopped

    def state(self, name: str) -> State:
        return State.STOPPED if name in self.stopped else State.RUNNING

    def part(self, name: str, backup: str, host_id: str) -> Path:
        return self.paths.data(name) / "backups" / backup / host_id

    def keep(self, name: str, backup: str, host_id: str, *files: str, backup_id: str = "one") -> None:
        self.part(name, backup, host_id).mkdir(parents=True)
        for file in files:
            content = manifest(backup, host_id, backup_id) if file == MANIFEST else b"%s" % file.encode()
            (self.part(name, backup, host_id) / file).write_bytes(content)


def manifest(backup: str, host_id: str, backup_id: str) -> bytes:
    node, hosts = int(host_id[-1]), ("host-1", "host-2", "host-3")
    metadata = BackedFile("metadata", 1, 2, "", "", "cc")
    return sealed(
        Manifest(1, backup, backup_id, "c", "n", 4, 5, node, host_id, hosts, (), (), {}, (), metadata)
    )


def copies(cluster: Cluster) -> Copies:
    return Copies(cast(LocalCluster, cluster))


def listed(*parts: tuple[int, str], backup_id: str = "one", problem: str = "") -> list[dict[str, Any]]:
    of = ["host-1", "host-2", "host-3"]
    plain = {"backup_id": backup_id, "of": of, "problem": problem or None}
    return [{"node": node, "host_id": host, **plain} for node, host in parts]


def backups(*parts: dict[str, Any], silent: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"backups": [{"name": "monday", "parts": list(parts)}], "silent": list(silent)}


ALL = listed((1, "host-1"), (2, "host-2"), (3, "host-3"))


def bring_out(cluster: Cluster, directory: Path, parts: list[dict[str, Any]]) -> Path:
    folder = copies(cluster).free_folder(directory, "monday")
    copies(cluster).make_room(folder)
    copies(cluster).bring_out(NODES, "monday", parts, folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_completed_parts_go_out_and_come_back_to_whom_they_are_of(tmp_path: Path) -> None:
    here = Cluster(tmp_path / "here")
    here.keep("n1", "monday", "host-1", "7-00000", MANIFEST)
    here.keep("n2", "monday", "host-2", MANIFEST)
    here.keep("n3", "monday", "host-3", "7-00000")
    folder = bring_out(here, tmp_path / "copies", ALL[:2])
    assert names(folder) == ["host-1/7-00000", f"host-1/{MANIFEST}", f"host-2/{MANIFEST}"]
    with pytest.raises(PreconditionError, match="is there already"):
        copies(here).free_folder(tmp_path / "copies", "monday")
    assert copies(here).bring_in(NODES, tmp_path / "copies", "monday") == 0, "they are there"
    there = Cluster(tmp_path / "there", stopped=("n2",))
    told = copies(there).to_bring_in(NODES, tmp_path / "copies", "monday")
    assert unsealed("", told["manifest"].encode()).host_id == "host-1"
    assert [part["host_id"] for part in told["parts"]] == ["host-1", "host-2"]
    assert told["parts"][0]["node"] == 1 and told["parts"][1]["node"] in (1, 3)
    assert not there.part("n1", "monday", "host-1").exists(), "nothing is brought for a dry run"
    assert copies(there).bring_in(NODES, tmp_path / "copies", "monday") == 2
    assert (there.part("n1", "monday", "host-1") / "7-00000").read_text() == "7-00000"
    kept = [name for name in ("n1", "n3") if (there.part(name, "monday", "host-2") / MANIFEST).exists()]
    assert len(kept) == 1, "its own node does not run, so another one keeps it"


def test_parts_are_those_of_one_backup_and_what_is_missing_is_named() -> None:
    stale = listed((4, "host-4"), (3, "host-3"), backup_id="older")
    assert parts_of(backups(*ALL, *stale), "monday", "one") == (ALL, "")
    assert parts_of(backups(*ALL, *listed((2, "host-1"))), "monday", "one")[1] == ""
    assert parts_of(backups(*ALL[:2], *stale, silent=(3,)), "monday", "one") == (
        ALL[:2],
        "host-3; node 3 cannot be asked",
    )
    torn = listed((3, "host-3"), problem="it was not completed")
    assert parts_of(backups(*ALL[:2], *torn), "monday", "one") == (ALL[:2], "host-3")
    assert parts_of(backups(*stale), "monday", "one") == ([], "all")
    assert parts_of(backups(*ALL), "tuesday", "one") == ([], "all")


def test_a_copy_is_not_taken_for_another_backup_of_its_name(tmp_path: Path) -> None:
    here = Cluster(tmp_path / "here")
    for at in (1, 2, 3):
        here.keep(f"n{at}", "monday", f"host-{at}", MANIFEST)
    bring_out(here, tmp_path / "a", ALL)
    there = Cluster(tmp_path / "there")
    there.keep("n2", "monday", "host-2", MANIFEST, backup_id="another")
    with pytest.raises(PreconditionError, match="another backup monday is there") as refused:
        copies(there).bring_in(NODES, tmp_path / "a", "monday")
    assert "lockstep backup remove monday" in refused.value.hint
    assert not there.part("n1", "monday", "host-1").exists(), "nothing is brought before"
    # Neither of the same node, nor of the same cluster.
    elsewhere = Cluster(tmp_path / "elsewhere")
    elsewhere.keep("n2", "monday", "host-9", MANIFEST, backup_id="another")
    with pytest.raises(PreconditionError, match="another backup monday is there"):
        copies(elsewhere).bring_in(NODES, tmp_path / "a", "monday")
    mixed = tmp_path / "a" / "monday" / "host-3" / MANIFEST
    mixed.write_bytes(manifest("monday", "host-3", "another"))
    with pytest.raises(PreconditionError, match="of 2 backups"):
        copies(Cluster(tmp_path / "empty")).bring_in(NODES, tmp_path / "a", "monday")


def fail_at(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if str(target).endswith(wanted):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)


def unreadable(_path: Path) -> bytes:
    raise PermissionError("Permission denied")


def unseen(_path: Path) -> bool:
    raise PermissionError("Permission denied")


@pytest.mark.parametrize("at", ["host-2/zz-00000", f"host-2/{MANIFEST}", "copies/monday"])
def test_what_was_copied_in_part_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    here = Cluster(tmp_path / "here")
    for host in ("host-1", "host-2"):
        here.keep(f"n{host[-1]}", "monday", host, "zz-00000", MANIFEST)
    with monkeypatch.context() as patched, pytest.raises(DiskRefused, match="No space left"):
        fail_at(patched, at)
        bring_out(here, tmp_path / "copies", ALL[:2])
    assert not (tmp_path / "copies" / "monday").exists()
    with pytest.raises(PreconditionError, match="holds no part"):
        copies(here).bring_in(NODES, tmp_path / "copies", "monday")
    assert len(names(bring_out(here, tmp_path / "copies", ALL[:2]))) == 4, "what was left is in nobody's way"
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["monday"]


def test_what_was_brought_in_part_is_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Cluster(tmp_path / "here"), Cluster(tmp_path / "there")
    here.keep("n1", "monday", "host-1", "zz-00000", MANIFEST)
    bring_out(here, tmp_path / "copies", ALL[:1])
    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with pytest.raises(DiskRefused, match="cannot be read: Permission denied"):
        copies(there).bring_in(NODES, tmp_path / "copies", "monday")
    monkeypatch.undo()
    with monkeypatch.context() as patched, pytest.raises(DiskRefused, match="No space left"):
        fail_at(patched, MANIFEST)
        copies(there).bring_in(NODES, tmp_path / "copies", "monday")
    assert not there.part("n1", "monday", "host-1").exists()
    assert copies(there).bring_in(NODES, tmp_path / "copies", "monday") == 1


def test_a_directory_that_is_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Cluster(tmp_path / "here")
    monkeypatch.setattr(Path, "exists", unseen)
    folder = copies(here).free_folder(tmp_path / "copies", "monday")
    with pytest.raises(PreconditionError, match=r"nothing can be copied to .*Permission denied"):
        copies(here).make_room(folder)


def test_another_cluster_has_its_directories_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    with pytest.raises(PreconditionError, match="no node of a local cluster"):
        copies_of("10.1.2.3", 7080)


def test_a_node_is_found_by_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    monkeypatch.setattr(backup_copies, "list_clusters", lambda: [cluster])
    for host in ("127.0.0.1", "localhost"):
        assert copies_of(host, 7080)._cluster is cast(LocalCluster, cluster)
    for host, port in (("localhost", 7081), ("127.0.0.4", 7080)):
        with pytest.raises(PreconditionError, match="no node of a local cluster"):
            copies_of(host, port)
