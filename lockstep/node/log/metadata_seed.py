"""Writing a dump into an empty data directory, so that a new node starts from it instead of from nothing.

Only the metadata is written, no identity: the node that starts there is new, joins through its seeds like any
other, and follows the log from the dump's last epoch on. Peers prove the rest: if the dump is of another
history than theirs, its hashes contradict theirs and the node stops. Bringing a dump into a cluster that runs
is recovery and is not done here.
"""

from __future__ import annotations

from lockstep.metadata.log.dump import Dump
from lockstep.metadata.log.snapshot_file import entry_batches
from lockstep.node.log.metadata_store import DEFAULT_RETENTION, MetadataStore
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import ConfigurationError


async def seed_directory(runtime: Runtime, dump: Dump) -> int:
    """The epoch that a node will start at. ConfigurationError when the directory is not empty, or when the
    dump has no snapshot entry and does not begin at epoch 0: a log cannot begin in the middle."""
    if runtime.disk.names(""):
        raise ConfigurationError("the data directory is not empty", hint="name a new one")
    if dump.snapshot is None and dump.base.epoch > 0:
        raise ConfigurationError(
            f"this dump begins at epoch {dump.base.epoch} and has no snapshot entry to begin a log with",
            hint="make one without --value-only: lockstep cms dump FILE",
        )
    store = MetadataStore(runtime, DEFAULT_RETENTION, lambda *_, **__: None)
    store.load()
    entries = list(dump.entries)
    if dump.snapshot is not None:
        value, entry = dump.snapshot
        await store.write_snapshot(value, entry)
        entries = [one for one in entries if one.epoch > entry.epoch]
    for batch in entry_batches(entries):
        await store.append(batch)
    return dump.value.epoch
