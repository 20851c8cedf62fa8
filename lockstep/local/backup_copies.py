"""Copies of backups outside the data directories of a local cluster, and back into them.

Invariant: only completed parts are copied, their manifest last, so that what an interrupted copy leaves is no
part; a copy has its name when all parts are in it. Nodes check all files of a part before a restore takes
anything from it, so a copy is trusted no more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lockstep.local.clusters import LocalCluster, addresses_of, list_clusters
from lockstep.local.processes import OWNER_DIRECTORY, State
from lockstep.storage.backup_manifest import (
    MANIFEST,
    Manifest,
    check_name,
    part_directory,
    sealed,
    stand_in,
    unsealed,
)
from lockstep.values.errors import DiskRefused, PreconditionError

Document = Mapping[str, Any]


def copies_of(host: str, admin_port: int) -> Copies:
    """Of the local cluster that has a node at this address. PreconditionError when there is none."""
    addresses = addresses_of(host)
    for found in list_clusters():
        content = found.file
        here = [node.name for node in content.nodes if node.address in addresses]
        if content.admin_port == admin_port and here and found.state(here[0]) is State.RUNNING:
            return Copies(found)
    raise PreconditionError(
        f"{host}:{admin_port} is no node of a local cluster, so its data directories are not at hand",
        hint="copy `backups/NAME` of the nodes' data directories, as the guide of backups tells",
    )


class Copies:
    """Between the data directories of one local cluster and folders elsewhere."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def free_folder(self, directory: Path, name: str) -> Path:
        """Where the copy of a backup goes. PreconditionError when something is there."""
        check_name(name)
        folder = directory / name
        if os.path.exists(folder):
            raise PreconditionError(f"{folder} is there already", hint="take another name or directory")
        return folder

    def make_room(self, folder: Path) -> None:
        """Begin a copy, which has another name until it is whole. PreconditionError when nothing can be
        written there."""
        begun = _begun(folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if begun.exists():
                shutil.rmtree(begun)  # A copy was interrupted.
            begun.mkdir(OWNER_DIRECTORY)
        except OSError as error:
            raise PreconditionError(
                f"nothing can be copied to {folder.parent}: {error}", hint="--to names another directory"
            ) from error

    def drop(self, folder: Path) -> None:
        """End a copy that is not whole."""
        shutil.rmtree(_begun(folder), ignore_errors=True)

    def bring_out(
        self, nodes: Iterable[Document], name: str, parts: Iterable[Document], folder: Path
    ) -> None:
        """Copy these parts of a backup, each to `folder/<host id>`, for which there is room. DiskRefused."""
        begun = _begun(folder)
        addresses = {int(node["id"]): str(node["address"]) for node in nodes}
        names = {node.address: node.name for node in self._cluster.file.nodes}
        for part in parts:
            host_id, keeper = str(part["host_id"]), names[addresses[int(part["node"])]]
            _copy_part(self._place(keeper, name, host_id), begun / host_id)
        try:
            begun.rename(folder)
            _sync(folder.parent)
        except OSError as error:
            raise DiskRefused(f"the copy {begun} cannot be called {folder}: {error}") from error

    def bring_in(self, nodes: Iterable[Document], directory: Path, name: str) -> int:
        """Give the parts of a copy to the nodes that made them, those of others to any; how many were
        brought. PreconditionError when there is no copy, or the nodes keep another backup of that name."""
        places = self._places(nodes, directory, name)
        for part, _, keeper in places:
            _copy_part(part, self._place(keeper, name, part.name))
        return len(places)

    def to_bring_in(self, nodes: Iterable[Document], directory: Path, name: str) -> dict[str, Any]:
        """What would be brought, for a dry run of a restore; nothing is. However many parts there are, one
        manifest stands for all."""
        places = self._places(nodes, directory, name)
        if not places:
            return {}
        manifests = [_manifest(part / MANIFEST) for part, _, _ in places]
        parts = [{"node": node, "host_id": part.name} for part, node, _ in places]
        compact = msgspec.json.format(sealed(stand_in(manifests)), indent=-1)
        return {"manifest": compact.decode(), "parts": parts}

    def _places(self, nodes: Iterable[Document], directory: Path, name: str) -> list[tuple[Path, int, str]]:
        """The parts of a copy that no node keeps, with the id and name of the one that is to keep each."""
        check_name(name)
        parts = sorted(path.parent for path in (directory / name).glob(f"*/{MANIFEST}"))
        if not parts:
            raise PreconditionError(f"{directory / name} holds no part of a backup")
        known = {str(node["address"]): node for node in nodes}
        cluster = self._cluster
        running = [
            (int(known[node.address]["id"]), node)
            for node in cluster.file.nodes
            if node.address in known and cluster.state(node.name) is State.RUNNING
        ]
        there = self._kept(name, [node.name for _, node in running])
        _refuse_another(name, parts, there)
        made_by = {str(known[node.address]["host_id"]): (at, node.name) for at, node in running}
        others = [(at, node.name) for at, node in running]
        return [
            (part, *made_by.get(part.name, others[number % len(others)]))
            for number, part in enumerate(parts)
            if part.name not in there
        ]

    def _kept(self, name: str, nodes: Iterable[str]) -> dict[str, list[Path]]:
        """The manifests of complete parts of that name at these nodes, by host id."""
        found: dict[str, list[Path]] = {}
        for node in nodes:
            for path in sorted(self._place(node, name, "").glob(f"*/{MANIFEST}")):
                found.setdefault(path.parent.name, []).append(path)
        return found

    def _place(self, node: str, name: str, host_id: str) -> Path:
        return self._cluster.paths.data(node) / part_directory(name, host_id)


def parts_of(listed: Document, name: str, backup_id: str) -> tuple[list[Document], str]:
    """The parts of one backup out of a list of all, each once, and what is missing of it; empty when nothing
    is. Others may have its name: a node that was away brings its part of an older one back."""
    found = {
        str(part["host_id"]): part
        for one in listed["backups"]
        for part in one["parts"]
        if one["name"] == name and part["backup_id"] == backup_id and not part["problem"]
    }
    parts = [found[host_id] for host_id in sorted(found)]
    missing = ", ".join(host_id for host_id in parts[0]["of"] if host_id not in found) if parts else "all"
    silent = "".join(f"; node {node} cannot be asked" for node in listed["silent"])
    return parts, missing and missing + silent


def _refuse_another(name: str, parts: Iterable[Path], there: Mapping[str, Iterable[Path]]) -> None:
    """PreconditionError when a complete part that is there is of another backup than the copy: a restore
    would take it for one of the copy's."""
    copied = {part.name: _read(part / MANIFEST) for part in parts}
    ids = {_manifest(part / MANIFEST).backup_id for part in parts}
    if len(ids) > 1:
        raise PreconditionError(f"the parts of the copy are of {len(ids)} backups that are called {name}")
    for path in (path for paths in there.values() for path in paths):
        copy = copied.get(path.parent.name)
        same = _read(path) == copy if copy is not None else _manifest(path).backup_id in ids
        if not same:
            raise PreconditionError(
                f"another backup {name} is there: {path.parent}",
                hint=f"remove it first: lockstep backup remove {name}",
            )


def _begun(folder: Path) -> Path:
    """Where a copy is while it is made: no backup has such a name."""
    return folder.with_name(f".{folder.name}.partial")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DiskRefused(f"{path} cannot be read: {error}") from error


def _manifest(path: Path) -> Manifest:
    """CorruptFile, DiskRefused."""
    return unsealed(str(path), _read(path))


def _copy_part(source: Path, target: Path) -> None:
    """DiskRefused; then nothing of it is there."""
    paths: list[Path] = []
    try:
        paths = sorted(source.iterdir(), key=lambda path: (path.name == MANIFEST, path.name))
        target.mkdir(parents=True, exist_ok=True)
        for path in paths:
            _copy_file(path, target / path.name)
        for directory in (target, target.parent):
            _sync(directory)
    except OSError as error:
        for path in reversed(paths):
            for name in (path.name, f"{path.name}.partial"):
                with contextlib.suppress(OSError):
                    (target / name).unlink()
        with contextlib.suppress(OSError):
            target.rmdir()
        raise DiskRefused(f"{source} cannot be copied to {target}: {error}") from error


def _copy_file(source: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    with source.open("rb") as read, partial.open("wb") as written:
        shutil.copyfileobj(read, written)
        written.flush()
        os.fsync(written.fileno())
    partial.rename(target)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
