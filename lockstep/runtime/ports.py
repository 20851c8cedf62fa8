"""Ports of the runtime: what a node may ask of the world, and what it is promised.

Invariant: every promise here holds in both families; nothing beyond it may be relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    # Commands read settings, which name ports, and run no loop: asyncio is a seventh of their start.
    import asyncio

T = TypeVar("T")


class Clock(Protocol):
    """Monotonic time never steps back; wall time may jump either way and drift."""

    def monotonic_s(self) -> float: ...

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch as this node believes."""
        ...

    def processor_s(self) -> float:
        """Seconds that processors have worked for this node since it started."""
        ...


class Random(Protocol):
    def real(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def below(self, bound: int) -> int:
        """Uniform integer in [0, bound)."""
        ...

    def bytes(self, size: int) -> bytes: ...

    def uuid(self) -> str:
        """A random (version 4) UUID in its canonical text form."""
        ...


class FileReader(Protocol):
    """An open file: its content can be read although its name is removed. One call at a time."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` on; fewer bytes only at the file's end. For any thread."""
        ...

    def fileno(self) -> int:
        """The operating system's descriptor; -1 where there is none."""
        ...

    def close(self) -> None: ...


class FileWriter(Protocol):
    """An open file that grows; when its name is removed, what is written is lost. One call at a time."""

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Have `data` there; not beyond the present end. What was there already is given with the same bytes
        only. Nothing once it is closed. DiskRefused. For any thread."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Files under one node's directory; paths are relative, with `/`.

    Only `sync` is a promise: bytes appended and not yet covered by a finished `sync` of that file may
    be lost, or partly there, after a crash. A new, renamed or removed name is durable only after
    `sync_names`. A failed sync means the file must be treated as lost beyond its last good sync:
    never retry it as if clean. Reads see all writes of this incarnation.
    """

    def names(self, directory: str) -> list[str]:
        """Sorted names in a directory; empty when it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes:
        """Whole content; FileNotFoundError when absent."""
        ...

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        """Content from `offset` on, at most `size` bytes; shorter only at the file's end."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file; FileNotFoundError when absent."""
        ...

    def free_bytes(self) -> int:
        """Room on the device for this node's files; cheap."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Append, creating file and directories as needed. DiskRefused when the disk is full."""
        ...

    def truncate(self, path: str, size: int) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic replacement of `target`."""
        ...

    def remove(self, path: str) -> None: ...

    async def sync(self, path: str) -> None:
        """Returns when every byte appended to `path` before the call is durable."""
        ...

    async def append_synced(self, path: str, data: bytes) -> None:
        """`append` and `sync` in one; nothing else may be written to `path` meanwhile. DiskRefused."""
        ...

    def reader(self, path: str) -> FileReader:
        """FileNotFoundError when absent."""
        ...

    def writer(self, path: str) -> FileWriter:
        """For data whose copying alone would hold the loop up; created when absent. Nothing else but other
        writers of the same bytes may write to `path` meanwhile. DiskRefused."""
        ...

    async def sync_names(self, directory: str) -> None: ...

    def close(self) -> None:
        """Give back whatever is held open; the disk stays usable."""
        ...


class Tls(msgspec.Struct, frozen=True):
    """Paths of PEM files for encrypted connections. `ca`: who signs the certificates of the other side. A
    side that listens wants the other's only when `mutual`; one that dials always does."""

    certificate: str
    key: str
    ca: str = ""
    mutual: bool = False


class Server(Protocol):
    def close(self) -> None: ...


class Network(Protocol):
    """Reliable ordered byte streams that may stall, break, or go silent for any length of time."""

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.Protocol],
        tls: Tls | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> Server:
        """ConfigurationError when the address is in use, or a file of `tls` cannot be used. `refused` hears
        why TLS does not let a connection in."""
        ...

    async def connect(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol], tls: Tls | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """OSError when refused; may hang: the caller owns the deadline."""
        ...

    async def send_file(
        self, transport: asyncio.Transport, head: bytes, file: FileReader, offset: int, size: int
    ) -> None:
        """Write `head` and then this part of a file, off the loop. Nothing else may be written meanwhile.

        OSError, also when nothing moves for RAW_SILENT_MS or the file is shorter: the stream is broken then,
        and so it is when the caller is cancelled."""
        ...

    async def receive(
        self, transport: asyncio.Transport, first: memoryview, size: int, take: Callable[[memoryview], None]
    ) -> bytes:
        """Give `first`, and then as many bytes of the stream as make it `size`, to `take`, in order and off
        the loop. Reading is paused, and stays so. Returns what was read behind them.

        OSError as for `send_file`, and whatever `take` raises: the stream is broken then."""
        ...


class Tasks(Protocol):
    """Every task has an owner and a name; an exception that escapes one is reported, never lost."""

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]: ...

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run a blocking library call (an fsync) off the loop; in simulation at a later instant. Cancelled,
        it ends when the call has."""
        ...

    async def cancel_all(self) -> None:
        """Cancel and await every task spawned here that still runs."""
        ...


class Probes(Protocol):
    """Named places in the code. In production both calls do nothing; the simulator counts them and
    may crash the node, or (at `linger`) delay it, exactly there."""

    def reach(self, label: str) -> None: ...

    async def linger(self, label: str) -> None: ...

    def observe(self, kind: str, **facts: Any) -> None:
        """Tell monitors a fact, such as an epoch applied. Free in production."""
        ...


class WorkersRefused(Exception):
    """This machine cannot confine workers; the text says why."""


class Workers(Protocol):
    """Evaluates code that nobody trusts, outside the process that everything else depends on."""

    async def evaluate(self, owner: str, question: bytes, timeout_ms: int) -> bytes:
        """The handler's answer to a question. Code of different owners never meets in one process.

        TimeoutError when it takes longer, ConnectionError when its process ends (it used too much memory or
        broke out of its bounds), BlockingIOError when too many questions wait, WorkersRefused."""
        ...

    async def stop(self) -> None: ...


class Helpers(Protocol):
    """Does long work of this node's own in processes beside it, which the node's requests go before."""

    async def do(self, order: bytes, timeout_ms: int) -> bytes:
        """The handler's answer to an order; any process may get it, and several may work at once.

        TimeoutError when it takes longer, ConnectionError when its process ends or cannot begin. Nothing
        works on the order any more when this returns, raises, or is cancelled."""
        ...

    async def stop(self) -> None: ...


class Doors(Protocol):
    """Processes beside the node that answer clients at a port of their own."""

    async def open(self, host: str, port: int, order: bytes, tls: Tls | None) -> int:
        """The port at which they answer by this order, `port` or, where that is 0, any; the same one until
        they are closed. ConfigurationError when the address is in use."""
        ...

    async def close(self) -> None:
        """End them, and what they answer; they may be opened again."""
        ...


class Runtime(msgspec.Struct, frozen=True):
    """All ports of one node incarnation."""

    clock: Clock
    random: Random
    disk: Disk
    network: Network
    tasks: Tasks
    probes: Probes
    #: Another place for what the metadata log lets go of; None: it is not kept.
    archive: Disk | None = None
    #: None: nothing is evaluated.
    workers: Workers | None = None
    #: None: everything is done by this process.
    helpers: Helpers | None = None
    #: None: nobody reads whole tables but through requests.
    doors: Doors | None = None
