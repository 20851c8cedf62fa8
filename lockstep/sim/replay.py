"""LOG-3: the whole log of a run once more, on nodes that contradict each other in all that is their own.

Invariant: the nodes are the product's, on empty disks, alone in their world: other settings, other clocks,
and failure detectors that convict everybody. At every epoch they have the digest that the run had, and at
some, the last one among them, the very bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.digest import state_digest
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.snapshot import pieces
from lockstep.node.configuration import (
    ClusterSection,
    Configuration,
    MetadataSection,
    NetworkSection,
    NodeSection,
    PlacementSection,
    RaftSection,
    TimeoutsSection,
)
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.runtime.world import World
from lockstep.storage.store import Store

#: Every so many epochs the bytes are compared, not only their digest.
_BYTES_EVERY = 16
_LIMIT_S = 120.0
#: What replays differ in: seconds that the wall clock is off, the speed of clocks, tokens, and how many
#: entries and snapshots are kept.
_CONTRADICTIONS = ((-86_400.0 * 365, 0.95, 1, 1), (86_400.0 * 365, 1.05, 64, 100_000))


class _Seen(msgspec.Struct):
    """What one replay had at each epoch."""

    digests: list[bytes] = []
    images: dict[int, bytes] = {}


def check_replays(
    world: World,
    open_store: Callable[[Runtime], Awaitable[Store]],
    entries: Sequence[LogEntry],
    values: Sequence[ClusterMetadata],
    digests: Sequence[bytes],
) -> None:
    """`entries` are those of epochs 1 on; `values` and `digests` begin with epoch 0."""
    assert [entry.epoch for entry in entries] == list(range(1, len(values))), "the whole log is known"
    for number, (wall_s, rate, tokens, kept) in enumerate(_CONTRADICTIONS):
        name = f"replay{number}"
        process = world.process(name, f"10.9.0.{number + 1}")
        process.jump_wall(wall_s)
        process.drift_clock(rate)
        configuration = _configuration(name, process.host, tokens, kept)
        seen = _Seen()
        world.call(_replaying(configuration, open_store, entries, seen), name=name, limit_s=_LIMIT_S)
        _compare(name, seen, values, digests)


def _replaying(
    configuration: Configuration,
    open_store: Callable[[Runtime], Awaitable[Store]],
    entries: Sequence[LogEntry],
    seen: _Seen,
) -> Callable[[Runtime], Coroutine[Any, Any, None]]:
    def applied(_before: ClusterMetadata, after: ClusterMetadata, _entry: LogEntry) -> None:
        seen.digests.append(state_digest(after))
        if _is_compared(after.epoch, len(entries)):
            seen.images[after.epoch] = image(after)

    async def main(runtime: Runtime) -> None:
        node = Node(runtime, configuration, open_store, lambda *_, **__: None)
        # Only its metadata lives: nobody else is heard of, so its failure detector convicts everybody.
        await node.log.state.store.settle()
        node.log.state.load()
        node.log.state.start()
        node.log.state.listen(applied)
        node.log.state.offer(entries)
        await node.log.state.wait_for(len(entries))

    return main


def _is_compared(epoch: int, last: int) -> bool:
    return epoch % _BYTES_EVERY == 0 or epoch == last


def image(value: ClusterMetadata) -> bytes:
    """All of a value, in its canonical bytes."""
    return b"".join(pieces(value))


def _compare(name: str, seen: _Seen, values: Sequence[ClusterMetadata], digests: Sequence[bytes]) -> None:
    last = len(values) - 1
    if len(seen.digests) != last:
        raise Violation("LOG-3", f"{name} ended at epoch {len(seen.digests)}, not {last}")
    for epoch in range(1, last + 1):
        if seen.digests[epoch - 1] != digests[epoch]:
            raise Violation("LOG-3", f"{name} has another state at epoch {epoch}")
        if _is_compared(epoch, last) and seen.images[epoch] != image(values[epoch]):
            raise Violation("LOG-3", f"{name} has other bytes at epoch {epoch}")


def _configuration(name: str, host: str, tokens: int, kept: int) -> Configuration:
    return Configuration(
        node=NodeSection(name=name, data_directory="."),
        cluster=ClusterSection(name=f"cluster of {name}", founders=(f"{host}:7000",)),
        network=NetworkSection(address=host),
        placement=PlacementSection(num_tokens=tokens),
        timeouts=TimeoutsSection(write_ms=tokens * 10, read_ms=tokens * 10),
        raft=RaftSection(tick_ms=10 * tokens),
        metadata=MetadataSection(snapshot_every_epochs=0, retain_entries=kept),
    )
