"""Functions of collections and vectors.

Invariant: an empty collection has no least, greatest or average element but a sum of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.aggregates import aggregate
from lockstep.cql.functions.signatures import Family, Function, Known, unfit
from lockstep.schema.types import CollectionType, CqlType, ListType, MapType, SetType, VectorType, parse_type
from lockstep.values.errors import FunctionFailure, InvalidRequest


def _map_part(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind = known[0]
    if not isinstance(kind, MapType):
        raise unfit(name, kind, "a map")
    returns: CollectionType = (
        SetType(kind.key, frozen=False) if name == "map_keys" else ListType(kind.value, frozen=False)
    )
    start = 0 if name == "map_keys" else 1
    return Function(
        name, (kind,), returns, lambda given, context: returns.join(kind.split(given[0])[start::2])
    )


def _count(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind = known[0]
    if not isinstance(kind, CollectionType):
        raise unfit(name, kind, "a collection")
    whole = parse_type("int")

    def run(given: Sequence[bytes], context: Context) -> bytes:
        return whole.serialize(len(kind.split(given[0])) // kind.parts_per_entry)

    return Function(name, (kind,), whole, run)


def _folded(name: str, known: Sequence[Known], wanted: Known) -> Function:
    """collection_min, _max, _sum and _avg: the aggregate over the elements."""
    kind, what = known[0], name.removeprefix("collection_")
    if not isinstance(kind, ListType | SetType | VectorType):
        raise unfit(name, kind, "a list or set")
    if what in ("sum", "avg") and kind.element.name not in _NUMBERS:
        raise unfit(name, kind, "a numeric list or set")
    found = aggregate(what, kind.element)

    def run(given: Sequence[bytes], context: Context) -> bytes | None:
        state = found.start
        for part in kind.split(given[0]):
            state = found.step(state, part)
        return found.finish(state)

    return Function(name, (kind,), found.returns, run)


_NUMBERS = frozenset(("tinyint", "smallint", "int", "bigint", "varint", "float", "double", "decimal"))


def _similarity(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kinds = [kind for kind in known if isinstance(kind, VectorType)]
    if not kinds:
        raise unfit(name, known[0], "a vector")
    for kind in known:
        if kind is not None and not (isinstance(kind, VectorType) and kind.element.name == "float"):
            raise unfit(name, kind, "a vector of floats")
    if len({kind.dimensions for kind in kinds}) > 1:
        raise InvalidRequest(
            f"All arguments must have the same vector dimensions, but found vectors of "
            f"{' and '.join(str(kind.dimensions) for kind in kinds)} in call to function {name}"
        )
    vector, single = kinds[0], parse_type("float")
    measure = _SIMILARITIES[name]

    def run(given: Sequence[bytes], context: Context) -> bytes:
        a, b = (_floats(vector, data) for data in given)
        return single.serialize(measure(a, b))

    return Function(name, (vector, vector), single, run)


def _floats(kind: CqlType, data: bytes) -> list[float]:
    found = kind.deserialize(data)
    assert isinstance(found, list)
    return found


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    if not any(a) or not any(b):
        raise FunctionFailure(
            "Function system.similarity_cosine doesn't support all-zero vectors.",
            "system",
            "similarity_cosine",
            (f"vector<float, {len(a)}>", f"vector<float, {len(b)}>"),
        )
    cosine = _product(a, b) / math.sqrt(_product(a, a) * _product(b, b))
    return (1 + cosine) / 2


def _product(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _euclidean(a: Sequence[float], b: Sequence[float]) -> float:
    return 1 / (1 + math.fsum((x - y) * (x - y) for x, y in zip(a, b, strict=True)))


_SIMILARITIES: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "similarity_cosine": _cosine,
    "similarity_euclidean": _euclidean,
    "similarity_dot_product": lambda a, b: (1 + _product(a, b)) / 2,
}
FAMILIES = (
    Family("map_keys", 1, 1, _map_part, "(map<k, v>) → set<k>"),
    Family("map_values", 1, 1, _map_part, "(map<k, v>) → list<v>"),
    Family("collection_count", 1, 1, _count, "(any collection) → int"),
    *(Family(f"collection_{what}", 1, 1, _folded, "(list or set) → element") for what in ("min", "max")),
    *(
        Family(f"collection_{what}", 1, 1, _folded, "(list or set of numbers) → element")
        for what in ("sum", "avg")
    ),
    *(
        Family(name, 2, 2, _similarity, "(vector<float, n>, vector<float, n>) → float")
        for name in _SIMILARITIES
    ),
)
