"""Filling a new store with what can be read of a damaged one: what cannot is lacking.

Entries of indexes, marks of repairs and the generation of counters are left out: the node makes them anew.
Invariant: the store lacks everything until it has all that could be read, and from then on what could not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from lockstep.storage.store import Family, Pair, Run, Store
from lockstep.storage.store_position import FACT, GENERATION_KEY, Lack, lacking_record, lacks_in
from lockstep.values.errors import PreconditionError

_LACKING_KEY: Final = Family.LOCAL.key(FACT)
#: What is made anew by the node itself.
_LEFT_OUT: Final = (Family.INDEX.value, Family.REPAIR.value)
#: Nobody can give them back: deliveries to others, and facts of this node.
_OWN: Final = (Family.LOCAL, Family.HINTS, Family.BATCH_LOG, Family.JOURNAL)
_RUN_PATH: Final = "store-rewrite.run"
_RUN_BYTES: Final = 64 * 1024 * 1024


class Readable(Protocol):
    """What can be read of a store, in key order; `stretches` of keys that cannot are known at the end."""

    stretches: list[tuple[bytes, bytes]]

    def portions(self) -> Iterator[list[Pair]]: ...


async def rewrite(old: Readable, store: Store, lack: Lack) -> tuple[Lack, ...]:
    """Copy into a store that lacks everything, by `lack`, what is readable; what it lacks then, durably.

    PreconditionError when records of the node itself cannot be read; CorruptFile when nothing can.
    """
    run, held, earlier = store.new_run(_RUN_PATH), 0, b""
    for portion in old.portions():
        kept = []
        for key, value in portion:
            if key == _LACKING_KEY:
                earlier = value
            elif key[:1] not in _LEFT_OUT and key != GENERATION_KEY:
                kept.append((key, value))
                held += len(key) + len(value)
        run.add(kept)
        if held >= _RUN_BYTES:
            await _take_in(store, run)
            run, held = store.new_run(_RUN_PATH), 0
    await _take_in(store, run)
    _require_own_records(old.stretches)
    lost = f"what could not be read of {len(old.stretches)} places"
    lacks = (
        # What no other replica has is lost: that may be accepted later.
        *(known for known in lacks_in(earlier or None) if not (known.sole and lack.given_up)),
        *(
            Lack(first_key, last_key, lost, lack.since_us, given_up=lack.given_up)
            for first_key, last_key in _joined(old.stretches)
        ),
    )
    store.write([lacking_record(lacks)])
    await store.sync()
    return lacks


async def _take_in(store: Store, run: Run) -> None:
    await run.finish()
    await store.before_ingest()
    store.ingest(run)
    await store.sync()


def _require_own_records(stretches: Iterable[tuple[bytes, bytes]]) -> None:
    for first_key, last_key in stretches:
        for family in _OWN:
            if first_key < bytes([family.value[0] + 1]) and last_key > family.value:
                raise PreconditionError(
                    f"records of the node itself ({family.name.lower()}) cannot be read, not only tables",
                    hint="give the whole store up: `lockstep node recover --config FILE`",
                )


def _joined(stretches: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Those that touch each other as one."""
    found: list[tuple[bytes, bytes]] = []
    for first_key, last_key in stretches:
        if found and first_key <= found[-1][1]:
            found[-1] = found[-1][0], last_key
        else:
            found.append((first_key, last_key))
    return found
