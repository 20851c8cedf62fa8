"""toJson and fromJson.

Invariant: fromJson of what toJson gave is the value again, floats that are no numbers aside.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.bind.json_values import json_text, parse_json, serialized
from lockstep.cql.compile.context import Context
from lockstep.cql.functions.signatures import Family, Function, Known, unfit
from lockstep.schema.types import parse_type
from lockstep.values.errors import FunctionFailure, InvalidRequest


def _to_json(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind, text = known[0], parse_type("text")
    if kind is None:
        raise unfit(name, kind, "a value")

    def run(given: Sequence[bytes | None], context: Context) -> bytes:
        return json_text(kind, given[0]).encode()

    return Function(name, (kind,), text, run, takes_null=True)


def _from_json(name: str, known: Sequence[Known], wanted: Known) -> Function:
    if wanted is None:
        raise InvalidRequest(f"{name}() cannot be used in the selection clause of a SELECT statement")
    text, kind = parse_type("text"), wanted

    def run(given: Sequence[bytes], context: Context) -> bytes | None:
        written = given[0].decode()
        try:
            return serialized(kind, parse_json(written))
        except InvalidRequest as error:
            raise FunctionFailure(
                f"Could not decode JSON string '{written}': {error.message}", "system", name, ("text",)
            ) from None

    return Function(name, (text,), kind, run)


FAMILIES = (
    *(Family(name, 1, 1, _to_json, "(any type) → text") for name in ("tojson", "to_json")),
    *(
        Family(name, 1, 1, _from_json, "(text) → the type of its place; not in selections")
        for name in ("fromjson", "from_json")
    ),
)
