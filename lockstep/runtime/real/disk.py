"""Files below one directory of the operating system.

Invariant: a finished `sync` is fdatasync'ed, a finished `sync_names` fsync'ed the directory and those
above it up to the root, and above the root what its creation changed. Descriptors of appended files stay
open, bounded in number; one that a sync is using is never closed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Awaitable, Callable

from lockstep.runtime.real.files import RealReader, RealWriter
from lockstep.values.errors import DiskRefused
from lockstep.values.limits import DISK_OPEN_FILES_MAX

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]

_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)


class _OpenFile:
    """A descriptor and how many threads use it: retired, it is closed by whoever uses it last."""

    __slots__ = ("_lock", "_pins", "_retired", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()
        self._pins = 0
        self._retired = False

    def pin(self) -> None:
        with self._lock:
            self._pins += 1

    def unpin(self) -> None:
        with self._lock:
            self._pins -= 1
            unused = self._retired and not self._pins
        if unused:
            os.close(self.descriptor)

    def retire(self) -> None:
        with self._lock:
            self._retired = True
            unused = not self._pins
        if unused:
            os.close(self.descriptor)


class RealDisk:
    """Disk port on `root`, which is created when it is absent."""

    def __init__(self, root: str, run_blocking: RunBlocking) -> None:
        self._root = os.path.abspath(root)
        self._run_blocking = run_blocking
        self._open: dict[str, _OpenFile] = {}
        #: Directories that are known to be durable themselves.
        self._anchored: dict[str, None] = {}
        #: Above the root, directories that got a new entry by its creation.
        self._above_root = _parents_of_missing(self._root)
        os.makedirs(self._root, exist_ok=True)

    # ---- reads

    def free_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(directory)))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.isfile(self._path(path))

    def read(self, path: str) -> bytes:
        try:
            with open(self._path(path), "rb") as file:
                return file.read()
        except OSError as error:
            raise _judged(error, "read", path) from error

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        try:
            with open(self._path(path), "rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise _judged(error, "read", path) from error

    def size(self, path: str) -> int:
        return os.path.getsize(self._path(path))

    # ---- writes

    def append(self, path: str, data: bytes) -> None:
        """All of `data` or, when the disk refuses, none of it."""
        try:
            _write_whole(self._file(path).descriptor, data)
        except OSError as error:
            raise _judged(error, "append", path) from error

    def truncate(self, path: str, size: int) -> None:
        """Only ever shortens."""
        try:
            if os.path.getsize(self._path(path)) > size:
                os.ftruncate(self._file(path).descriptor, size)
        except OSError as error:
            raise _judged(error, "truncate", path) from error

    def rename(self, source: str, target: str) -> None:
        self._make_directory(_parent(target))
        try:
            os.replace(self._path(source), self._path(target))
        except OSError as error:
            raise _judged(error, "rename", source) from error
        moved = self._open.pop(_key(source), None)
        self._forget(target)
        if moved is not None:
            self._open[_key(target)] = moved

    def remove(self, path: str) -> None:
        # First, and also when somebody else removed it: a descriptor would keep its content on the disk.
        self._forget(path)
        try:
            os.unlink(self._path(path))
        except OSError as error:
            raise _judged(error, "remove", path) from error

    def reader(self, path: str) -> RealReader:
        try:
            return RealReader(self._path(path))
        except OSError as error:
            raise _judged(error, "read", path) from error

    def writer(self, path: str) -> RealWriter:
        self._make_directory(_parent(_key(path)))
        try:
            return RealWriter(self._path(path), lambda error: _judged(error, "append", path))
        except OSError as error:
            raise _judged(error, "open", path) from error

    # ---- promises

    async def sync(self, path: str) -> None:
        if path not in self._open and not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        try:
            await self._in_thread(self._file(path), lambda _descriptor: None)
        except OSError as error:
            raise _judged(error, "sync", path) from error

    async def append_synced(self, path: str, data: bytes) -> None:
        """Also the write is made in the thread: one that meets a sync under way may have to wait for that.

        When the caller is cancelled, the bytes are written by then, or never will be.
        """
        try:
            await self._in_thread(self._file(path), lambda descriptor: _write_whole(descriptor, data))
        except OSError as error:
            raise _judged(error, "append", path) from error

    async def sync_names(self, directory: str) -> None:
        chain = [_key(directory)]
        # Up to the root: an earlier process may have made a directory and died before it was durable.
        while chain[-1] and chain[0] not in self._anchored:
            chain.append(_parent(chain[-1]))
        paths = [*(self._path(one) for one in chain), *self._above_root]
        try:
            await self._run_blocking(lambda: _sync_directories(paths))
        except OSError as error:
            raise _judged(error, "sync of names", directory) from error
        self._anchored.update(dict.fromkeys(chain))
        self._above_root = []

    def close(self) -> None:
        """Close every descriptor; the disk stays usable."""
        for path in list(self._open):
            self._forget(path)

    # ---- inside

    async def _in_thread(self, file: _OpenFile, first: Callable[[int], None]) -> None:
        """Do `first` and then sync, off the loop.

        When the caller is cancelled, `first` is done by then or never will be; the descriptor stays open
        while the thread uses it."""
        turn, given_up, begun = threading.Lock(), False, False

        def done() -> None:
            nonlocal begun
            with turn:
                if given_up:
                    return
                begun = True
                try:
                    first(file.descriptor)
                except BaseException:
                    file.unpin()
                    raise
            try:
                os.fdatasync(file.descriptor)
            finally:
                file.unpin()

        file.pin()
        try:
            await self._run_blocking(done)
        except BaseException:
            with turn:
                given_up = True
            if not begun:
                file.unpin()
            raise

    def _path(self, path: str) -> str:
        return os.path.join(self._root, _key(path))

    def _file(self, path: str) -> _OpenFile:
        file = self._open.pop(path, None)
        if file is not None:
            # Known under this very spelling.
            self._open[path] = file
            return file
        key = _key(path)
        file = self._open.pop(key, None)
        if file is None:
            self._make_directory(_parent(key))
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            try:
                file = _OpenFile(os.open(self._path(key), flags, 0o644))
            except OSError as error:
                raise _judged(error, "open", path) from error
        # Last in the dict means used last.
        self._open[key] = file
        if len(self._open) > DISK_OPEN_FILES_MAX:
            self._forget(next(iter(self._open)))
        return file

    def _forget(self, path: str) -> None:
        file = self._open.pop(_key(path), None)
        if file is not None:
            file.retire()

    def _make_directory(self, directory: str) -> None:
        try:
            os.makedirs(self._path(directory), exist_ok=True)
        except OSError as error:
            raise _judged(error, "create directory", directory) from error


def _key(path: str) -> str:
    """The path in one spelling; it may not leave the root."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    assert not path.startswith("/") and ".." not in parts, f"not a path below the root: {path}"
    return "/".join(parts)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _parents_of_missing(path: str) -> list[str]:
    """Directories that will get a new entry when `path` is made with all that is missing above it."""
    parents = []
    while not os.path.isdir(path):
        path = os.path.dirname(path)
        parents.append(path)
    return parents


def _write_whole(descriptor: int, data: bytes) -> None:
    """All of it, or after an OSError none of it."""
    view, written = memoryview(data), 0
    try:
        while written < len(data):
            written += os.write(descriptor, view[written:])
    except OSError:
        if written:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise


def _sync_directories(paths: list[str]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _judged(error: OSError, action: str, path: str) -> Exception:
    """DiskRefused for a full or failing disk, else the error itself."""
    if error.errno not in _REFUSALS:
        return error
    hint = "replace the disk" if error.errno == errno.EIO else "free space on the data directory's disk"
    return DiskRefused(f"{action} of {path} failed: {error.strerror}", hint=hint)
