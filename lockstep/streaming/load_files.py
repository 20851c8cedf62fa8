"""Staged files of bulk loads on a node's disk, outside of its store.

    loads/<job>-<name>.part   content of a file as far as it arrived
    loads/<job>-<name>.sorted a file that is whole, verified and durable
    loads/<job>-<name>.run    one that the store takes in
    loads/<job>.manifest      which files the load commits, once it may

Invariants. Nothing here is read by requests, streams, repairs or merging. A file is called sorted after its
content was verified and synced. What is left of a load that has ended goes when
it ends, or at the next start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from lockstep.replica.load_messages import MANIFEST, LoadFile, LoadManifest
from lockstep.runtime.ports import Disk
from lockstep.values.codec import UNREADABLE, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile
from lockstep.values.node_limits import LOAD_FILES_MAX

DIRECTORY = "loads"
_JOB_BYTES = 12
_PART, _SORTED, _RUN, _MANIFEST = ".part", ".sorted", ".run", ".manifest"
#: Of one file in the list: numbers, two keys and a digest.
_FILE_RECORD_BYTES_MAX = 200_000


def key_of(job: str) -> str:
    """What names of a job's files begin with."""
    return hashlib.blake2b(job.encode(), digest_size=_JOB_BYTES).hexdigest()


class LoadFiles:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def keys(self) -> tuple[str, ...]:
        """Of the jobs of which anything is here."""
        length = 2 * _JOB_BYTES
        return tuple(dict.fromkeys(name[:length] for name in self._disk.names(DIRECTORY)))

    def part(self, key: str, name: str) -> str:
        return f"{DIRECTORY}/{key}-{name}{_PART}"

    def sorted_file(self, key: str, name: str) -> str:
        return f"{DIRECTORY}/{key}-{name}{_SORTED}"

    def held(self, key: str, name: str) -> bool:
        return self._disk.exists(self.sorted_file(key, name))

    def size(self, path: str) -> int:
        """0 when it is not there."""
        return self._disk.size(path) if self._disk.exists(path) else 0

    def discard(self, path: str) -> None:
        if self._disk.exists(path):
            self._disk.remove(path)

    async def keep(self, key: str, name: str) -> None:
        """A file that arrived whole is one from now on, durably."""
        part = self.part(key, name)
        await self._disk.sync(part)
        self._disk.rename(part, self.sorted_file(key, name))
        await self._disk.sync_names(DIRECTORY)

    def hand_over(self, key: str, file: LoadFile) -> str:
        """Path under which the store takes a file in; empty when it has taken it in already."""
        run = f"{DIRECTORY}/{key}-{file.name}{_RUN}"
        if not self._disk.exists(run):
            if not self.held(key, file.name):
                return ""
            self._disk.rename(self.sorted_file(key, file.name), run)
        return run

    async def keep_manifest(self, manifest: LoadManifest) -> None:
        """Durably. What there was for the job before is replaced."""
        key = key_of(manifest.job)
        path = f"{DIRECTORY}/{key}{_MANIFEST}"
        self.discard(path + _PART)
        await self._disk.append_synced(path + _PART, frame_record(encode(manifest)))
        self._disk.rename(path + _PART, path)
        await self._disk.sync_names(DIRECTORY)

    def manifest(self, key: str) -> LoadManifest | None:
        """None when there is none, or none that is whole."""
        path = f"{DIRECTORY}/{key}{_MANIFEST}"
        if not self._disk.exists(path):
            return None
        try:
            content, bytes_max = self._disk.read(path), LOAD_FILES_MAX * _FILE_RECORD_BYTES_MAX
            for _, body in scan_records(path, content, record_bytes_max=bytes_max):
                return MANIFEST.decode(body)
        except (CorruptFile, *UNREADABLE):
            # As if it had never come: this replica lacks what the others have.
            return None
        return None

    def names(self, key: str) -> Iterable[str]:
        return [name for name in self._disk.names(DIRECTORY) if name.startswith(key)]

    def remove(self, key: str) -> int:
        """Forget a job: how many files there were."""
        found = list(self.names(key))
        for name in found:
            self._disk.remove(f"{DIRECTORY}/{name}")
        return len(found)
