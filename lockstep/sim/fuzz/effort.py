"""How much one callback of a node's loop does: nothing that a client sends keeps a node from all others.

Work is counted as calls of functions, which are the same in every run of a seed, on any machine. What is
given to threads is not counted: they take turns with the loop. Invariant: counting changes nothing that runs.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Final

import msgspec

from lockstep.replica import replica
from lockstep.server.statements import batch_writes, execution
from lockstep.server.statements.user_functions import LongStatements
from lockstep.sim.fuzz.door import Door
from lockstep.sim.fuzz.kinds import Said
from lockstep.sim.plant import Planted, replaced
from lockstep.sim.runtime import loop as loop_module
from lockstep.sim.runtime.streams import Stream, stream
from lockstep.sim.runtime.world import World
from lockstep.storage.rows import folding
from lockstep.values.node_limits import CALLBACK_CALLS_MAX

#: The scheduler's frame, which begins each callback.
_SCHEDULER: Final = World._spin.__code__
_RUN_BLOCKING: Final = loop_module._run_blocking
#: Sizes of long statements: on the loop each would be several times CALLBACK_CALLS_MAX.
_ENTRIES: Final = (50_000, 60_000)
_KEYS: Final = (5_500, 6_500)
_STATEMENTS: Final = (8_000, 12_000)
_TABLES: Final = (
    "CREATE TABLE f.long (k int PRIMARY KEY, v int, m map<int, int>, l list<int>, o frozen<map<int, int>>)",
    "CREATE TABLE f.rows (k int, c int, v int, PRIMARY KEY (k, c))",
)


class Most(msgspec.Struct):
    """The callback that did most: how many calls, and of what; `node` is its loop's label."""

    calls: int = 0
    node: str = ""
    name: str = ""


class Effort:
    """While entered: the callback of any loop of `nodes` that does most."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self._nodes = nodes
        self._calls = 0
        self._label = ("", "")
        self._counts = False
        self.most = Most()
        self._threads = contextlib.ExitStack()

    def __enter__(self) -> Effort:
        self._threads.enter_context(replaced((loop_module, "_run_blocking", self._beside)))
        sys.setprofile(self._seen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        self._threads.close()
        self._ended()

    def _beside(self, *given: Any) -> None:
        """What a thread does."""
        self._counts = False
        sys.setprofile(None)
        try:
            _RUN_BLOCKING(*given)
        finally:
            sys.setprofile(self._seen)

    def taken(self) -> Most:
        """The most since the last time."""
        self._ended()
        found, self.most = self.most, Most()
        return found

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "c_call":
            if frame.f_code is _SCHEDULER:
                self._ended()
                return
            self._calls += 1
        elif event == "call":
            self._calls += 1
            if not self._counts and frame.f_back is not None and frame.f_back.f_code is _SCHEDULER:
                self._begun(frame.f_back)

    def _begun(self, scheduler: FrameType) -> None:
        callback, loop = scheduler.f_locals.get("callback"), scheduler.f_locals.get("loop")
        if callback is None or loop is None:
            return
        self._counts = loop.label.partition(".")[0] in self._nodes
        self._label = (loop.label, callback.label or loop_module.name_of(callback.function))
        self._calls = 0

    def _ended(self) -> None:
        if self._counts and self._calls > self.most.calls:
            self.most = Most(self._calls, *self._label)
        self._counts = False


def run(seed: int, group: str = "") -> tuple[dict[str, Most], list[str]]:
    """Long statements of each kind, or of one group, of sizes that the seed says: the most that one callback
    did for each, and what was refused or did more than CALLBACK_CALLS_MAX."""
    found: dict[str, Most] = {}
    wrong: list[str] = []
    with Door(seed) as door:
        for text in _TABLES:
            told = door.run(text)
            assert not told.error, told.message
        with Effort(tuple(door.names)) as effort:
            for name in (group,) if group else GROUPS:
                for kind, said in GROUPS[name](stream(seed, f"long/{name}")):
                    told = door.ask(said)
                    most = found[kind] = effort.taken()
                    if told.error:
                        wrong.append(f"{kind}: {told.message}")
                    if most.calls > CALLBACK_CALLS_MAX:
                        wrong.append(
                            f"{kind}: {most.calls} calls in one callback, {most.name} of {most.node}"
                        )
    return found, wrong


def text_of(seed: int, found: dict[str, Most], wrong: Sequence[str]) -> str:
    """The words for a run."""
    most = max(one.calls for one in found.values())
    return "\n".join(
        (f"seed {seed}: {len(found)} long statements, at most {most} calls in one callback", *wrong)
    )


# (kind, statement), each in the state that those before leave


def _maps(draw: Stream) -> Iterator[tuple[str, Said]]:
    given = _map(draw.randint(*_ENTRIES))
    yield "map", Said("INSERT INTO f.long (k, m) VALUES (1, ?)", (given,))
    yield "map over a map", Said("UPDATE f.long SET m = m + ? WHERE k = 1", (given,))
    yield "map over two", Said("UPDATE f.long SET m = m + ? WHERE k = 1", (given,))
    yield "map read", Said("SELECT m FROM f.long WHERE k = 1")
    yield "frozen map", Said("INSERT INTO f.long (k, o) VALUES (2, ?)", (given,))


def _literals(draw: Stream) -> Iterator[tuple[str, Said]]:
    literal = ", ".join(f"{n}: {n}" for n in range(draw.randint(*_KEYS)))
    yield "map literal", Said(f"INSERT INTO f.long (k, m) VALUES (3, {{{literal}}})")


def _lists(draw: Stream) -> Iterator[tuple[str, Said]]:
    count = draw.randint(*_ENTRIES)
    elements = _int(count) + b"".join(_int(4) + _int(n) for n in range(count))
    yield "list", Said("INSERT INTO f.long (k, l) VALUES (4, ?)", (elements,))
    yield "elements of a list", Said("UPDATE f.long SET l = l - [3] WHERE k = 4")


def _conditions(draw: Stream) -> Iterator[tuple[str, Said]]:
    given = _map(draw.randint(*_ENTRIES))
    yield "conditional map", Said("INSERT INTO f.long (k, m) VALUES (5, ?) IF NOT EXISTS", (given,))
    yield "condition not met", Said("INSERT INTO f.long (k, m) VALUES (5, ?) IF NOT EXISTS", (given,))


def _keys(draw: Stream) -> Iterator[tuple[str, Said]]:
    keys = ", ".join(map(str, range(10, 10 + draw.randint(*_KEYS))))
    yield "changed keys", Said(f"UPDATE f.long SET v = 1 WHERE k IN ({keys})")
    yield "all rows", Said("SELECT k, v FROM f.long")


def _reads(draw: Stream) -> Iterator[tuple[str, Said]]:
    keys = ", ".join(map(str, range(draw.randint(*_KEYS))))
    yield "keys read", Said(f"SELECT v FROM f.long WHERE k IN ({keys})")


def _batches(draw: Stream) -> Iterator[tuple[str, Said]]:
    insert = "INSERT INTO f.rows (k, c, v) VALUES (1, ?, ?)"
    entries = (
        Said(insert, (_int(n % 1900), _int(n)), prepared=True) for n in range(draw.randint(*_STATEMENTS))
    )
    yield "batch", Said("UNLOGGED", batched=tuple(entries))
    yield "rows of a partition", Said("SELECT * FROM f.rows WHERE k = 1")


GROUPS: Final[dict[str, Callable[[Stream], Iterator[tuple[str, Said]]]]] = {
    "maps": _maps,
    "literals": _literals,
    "lists": _lists,
    "conditions": _conditions,
    "keys": _keys,
    "reads": _reads,
    "batches": _batches,
}


def _map(count: int) -> bytes:
    return _int(count) + b"".join(_int(4) + _int(n) + _int(4) + _int(n) for n in range(count))


def _int(number: int) -> bytes:
    return struct.pack(">i", number)


# Planted bugs: a turn that is not given

_NEVER: Final = 1 << 40


def _planned_on_the_loop() -> contextlib.AbstractContextManager[None]:
    async def run(self: LongStatements, work: Callable[[], Any]) -> Any:
        return work()

    return replaced((LongStatements, "run", run))


def _plant(name: str, harm: str, *changes: tuple[Any, str, Any]) -> Planted:
    return Planted(name=name, harm=harm, scenario="fuzz", plant=lambda: replaced(*changes))


#: With the group of statements that shows each.
PLANTS: Final[tuple[tuple[str, Planted], ...]] = (
    (
        "literals",
        Planted(
            "planned_on_the_loop", "long statements are planned on the loop", "fuzz", _planned_on_the_loop
        ),
    ),
    (
        "maps",
        _plant(
            "merged_on_the_loop",
            "large rows are merged on the loop",
            (folding, "MERGED_BYTES_INLINE", _NEVER),
        ),
    ),
    (
        "keys",
        _plant("begun_in_one_turn", "all writes begin in one turn", (batch_writes, "WRITES_A_TURN", _NEVER)),
    ),
    (
        "keys",
        _plant("told_in_one_turn", "all writes are told in one turn", (replica, "WRITES_A_TURN", _NEVER)),
    ),
    (
        "batches",
        _plant(
            "batches_on_the_loop",
            "long batches are planned on the loop",
            (execution, "is_long_batch", lambda parts, batch: False),
        ),
    ),
)
