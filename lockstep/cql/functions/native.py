"""The native scalar functions: names, argument types, result, and what they do to serialised values.

Invariant: a function is pure in its argument bytes and the Context; a null argument gives null.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from lockstep.cql.compile.context import Context
from lockstep.cql.functions import (
    collection_functions,
    json_functions,
    mask_functions,
    math_functions,
    time_functions,
)
from lockstep.cql.functions.signatures import Arguments, Family, Function, Run
from lockstep.cql.functions.time_functions import UUID_EPOCH_TICKS, timeuuid_ms
from lockstep.schema.types import NATIVE_NAMES, CqlType, parse_type
from lockstep.values.errors import InvalidRequest

_DAY_MS = 86_400_000
_DAY_US = _DAY_MS * 1000
#: Clock and node bytes of the smallest and largest timeuuid of an instant, compared as signed bytes.
_LEAST_TAIL = bytes([0x80] * 8)
_GREATEST_TAIL = bytes([0x7F] * 8)


def timeuuid(ticks: int, tail: bytes) -> bytes:
    """A version 1 uuid of a time in 100 ns intervals from 1970 and 8 clock and node bytes."""
    time = ticks + UUID_EPOCH_TICKS
    low, middle, high = time & 0xFFFFFFFF, (time >> 32) & 0xFFFF, (time >> 48) & 0x0FFF
    return low.to_bytes(4, "big") + middle.to_bytes(2, "big") + (0x1000 | high).to_bytes(2, "big") + tail


def random_uuid(context: Context) -> bytes:
    """A version 4 uuid."""
    raw = context.uuid_source()
    return raw[:6] + bytes((raw[6] & 0x0F | 0x40, raw[7], raw[8] & 0x3F | 0x80)) + raw[9:]


def now_timeuuid(context: Context) -> bytes:
    tail = context.uuid_source()[8:]
    return timeuuid(context.stamp_us * 10, bytes((tail[0] & 0x3F | 0x80,)) + tail[1:])


def _ms(kind: str) -> Callable[[bytes], int]:
    """Bytes of a timeuuid, timestamp or date to milliseconds from 1970."""
    if kind == "timeuuid":
        return timeuuid_ms
    if kind == "date":
        return lambda data: (int.from_bytes(data, "big") - (1 << 31)) * _DAY_MS
    return lambda data: int.from_bytes(data, "big", signed=True)


def long_bytes(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def date_bytes(ms: int) -> bytes:
    # A day beyond the last one that a date can be wraps, as in Java.
    return ((ms // _DAY_MS + (1 << 31)) & 0xFFFFFFFF).to_bytes(4, "big")


def _edge(tail: bytes, *, last: bool) -> Run:
    extra = 9_999 if last else 0

    def run(arguments: Arguments, context: Context) -> bytes:
        return timeuuid(int.from_bytes(arguments[0], "big", signed=True) * 10_000 + extra, tail)

    return run


def through_ms(kind: str, finish: Callable[[int], bytes]) -> Run:
    start = _ms(kind)
    return lambda arguments, context: finish(start(arguments[0]))


def _checked(kind: CqlType) -> Run:
    def run(arguments: Arguments, context: Context) -> bytes:
        try:
            kind.validate(arguments[0])
        except InvalidRequest:
            raise InvalidRequest(
                f"In call to function system.blob_as_{kind.name}, value 0x{arguments[0].hex()} "
                f"is not a valid binary representation for type {kind.name}"
            ) from None
        return arguments[0]

    return run


def _same(arguments: Arguments, context: Context) -> bytes:
    return arguments[0]


def _clock_functions() -> list[Function]:
    def made(names: Sequence[str], returns: str, run: Callable[[Context], bytes]) -> list[Function]:
        kind = parse_type(returns)
        return [
            Function(name, (), kind, lambda arguments, context: run(context), pure=False) for name in names
        ]

    return [
        *made(("now", "currenttimeuuid", "current_timeuuid"), "timeuuid", now_timeuuid),
        *made(("uuid",), "uuid", random_uuid),
        *made(("currenttimestamp", "current_timestamp"), "timestamp", lambda c: long_bytes(c.now_us // 1000)),
        *made(("currentdate", "current_date"), "date", lambda c: date_bytes(c.now_us // 1000)),
        *made(("currenttime", "current_time"), "time", lambda c: long_bytes(c.now_us % _DAY_US * 1000)),
    ]


def _time_functions() -> list[Function]:
    found = []

    def add(
        names: Sequence[str], sources: Sequence[str], returns: str, finish: Callable[[int], bytes]
    ) -> None:
        for name in names:
            for source in sources:
                run = through_ms(source, finish)
                found.append(Function(name, (parse_type(source),), parse_type(returns), run))

    add(("totimestamp", "to_timestamp"), ("timeuuid", "date"), "timestamp", long_bytes)
    add(("dateof",), ("timeuuid",), "timestamp", long_bytes)
    add(("todate", "to_date"), ("timeuuid", "timestamp"), "date", date_bytes)
    add(("unixtimestampof",), ("timeuuid",), "bigint", long_bytes)
    add(("tounixtimestamp", "to_unix_timestamp"), ("timeuuid", "timestamp", "date"), "bigint", long_bytes)
    timestamp, uuid = (parse_type("timestamp"),), parse_type("timeuuid")
    for name in ("mintimeuuid", "min_timeuuid"):
        found.append(Function(name, timestamp, uuid, _edge(_LEAST_TAIL, last=False)))
    for name in ("maxtimeuuid", "max_timeuuid"):
        found.append(Function(name, timestamp, uuid, _edge(_GREATEST_TAIL, last=True)))
    return found


def _blob_functions() -> list[Function]:
    found = []
    blob = parse_type("blob")
    for name in NATIVE_NAMES:
        if name == "blob":
            continue
        kind = parse_type(name)
        for to_blob, from_blob in (
            (f"{name}asblob", f"blobas{name}"),
            (f"{name}_as_blob", f"blob_as_{name}"),
        ):
            found.append(Function(to_blob, (kind,), blob, _same))
            found.append(Function(from_blob, (blob,), kind, _checked(kind)))
    return found


@functools.lru_cache(maxsize=1)
def _registry() -> dict[str, tuple[Function, ...]]:
    by_name: dict[str, tuple[Function, ...]] = {}
    for function in (*_clock_functions(), *_time_functions(), *_blob_functions()):
        by_name[function.name] = (*by_name.get(function.name, ()), function)
    return by_name


def overloads(keyspace: str | None, name: str) -> tuple[Function, ...]:
    """Every overload of a name; () when there is none. Native functions live in keyspace `system`."""
    return _registry().get(name, ()) if keyspace in (None, "system") else ()


@functools.lru_cache(maxsize=1)
def _families() -> dict[str, Family]:
    modules = (collection_functions, json_functions, mask_functions, math_functions, time_functions)
    return {family.name: family for module in modules for family in module.FAMILIES}


def family(keyspace: str | None, name: str) -> Family | None:
    """The functions of a name whose types follow from their arguments'."""
    return _families().get(name) if keyspace in (None, "system") else None


def function_names() -> list[str]:
    """Every native function there is, by name."""
    return sorted({*_registry(), *_families()})


def signatures() -> dict[str, list[str]]:
    """Name to texts of arguments and results, for people."""
    found = {
        name: [
            f"({', '.join(kind.text for kind in function.arguments)}) → {function.returns.text}"
            for function in functions
        ]
        for name, functions in _registry().items()
    }
    for name, family in _families().items():
        numbers = str(family.least) if family.least == family.most else f"{family.least} to {family.most}"
        plural = "" if numbers == "1" else "s"
        found[name] = [family.about or f"{numbers} argument{plural}"]
    return found
