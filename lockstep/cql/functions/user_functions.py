"""User functions and aggregates of a keyspace as statements call them.

Invariant: what a call compiles to is a function of the keyspace's value; `definitions` are equal exactly when
calls of a name compile to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.aggregates import NAMES as NATIVE_AGGREGATES
from lockstep.cql.functions.native import family, overloads
from lockstep.cql.functions.signatures import Function
from lockstep.cql.functions.user_batches import Code, NamedType
from lockstep.cql.functions.user_calls import UserCalls
from lockstep.cql.parse import tree
from lockstep.schema import objects
from lockstep.schema.function_changes import parts_of
from lockstep.schema.model import Keyspace
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in, types_used
from lockstep.values.errors import InvalidRequest


def code_of(space: Keyspace, function: objects.Function) -> Code:
    """A function as workers get it."""
    used = types_used(space, (function.returns, *function.argument_types))
    return Code(
        space.name,
        function.name,
        function.argument_names,
        function.argument_types,
        function.returns,
        function.body,
        function.called_on_null,
        tuple(NamedType(one.name, one.field_names, one.field_types) for one in used),
    )


def calls_of(context: Context) -> UserCalls:
    if context.calls is None:
        raise InvalidRequest("User-defined functions cannot be called here")
    return context.calls


def scalar(space: Keyspace, function: objects.Function) -> Function:
    """A user function as a call compiles to it."""
    code = code_of(space, function)

    def run(arguments: Sequence[bytes | None], context: Context) -> bytes | None:
        given = tuple(arguments)
        if None in given and not code.called_on_null:
            return None
        return calls_of(context).call(code, given)

    return Function(
        function.name,
        tuple(type_in(space, text) for text in function.argument_types),
        type_in(space, function.returns),
        run,
        pure=False,
        takes_null=True,
    )


def overloads_in(space: Keyspace | None, name: str) -> tuple[Function, ...]:
    """The user functions of a name."""
    if space is None:
        return ()
    return tuple(scalar(space, function) for function in space.functions if function.name == name)


def definitions(space: Keyspace | None, name: str) -> tuple[Any, ...]:
    """All that a call of this name depends on."""
    if space is None:
        return ()
    codes = [code_of(space, one) for one in space.functions if one.name == name]
    aggregates = [one for one in space.aggregates if one.name == name]
    parts = [code_of(space, part) for one in aggregates for part in parts_of(space, one) if part is not None]
    return (*codes, *(msgspec.structs.replace(one, epoch=0) for one in aggregates), *parts)


def qualified(term: Any, space: Keyspace) -> Any:
    """A term whose calls of the keyspace's own functions name the keyspace, as result columns do."""
    if not space.functions:
        return term
    if isinstance(term, tuple):
        return tuple(qualified(part, space) for part in term)
    if not isinstance(term, msgspec.Struct):
        return term
    parts = {name: qualified(getattr(term, name), space) for name in term.__struct_fields__}
    if isinstance(term, tree.Call) and term.keyspace is None and _is_own(term.name, space):
        parts["keyspace"] = space.name
    return type(term)(**parts)


def _is_own(name: str, space: Keyspace) -> bool:
    return not is_native(name) and name in space.function_names


def is_native(name: str) -> bool:
    """Whether a name without a keyspace means functions of the language itself."""
    return bool(overloads(None, name)) or family(None, name) is not None or name in NATIVE_AGGREGATES


class Callee(Protocol):
    """A function or an aggregate, to choose by what it takes."""

    @property
    def arguments(self) -> tuple[CqlType, ...]: ...

    @property
    def returns(self) -> CqlType: ...


C = TypeVar("C", bound=Callee)


def choose_own(
    name: str,
    known: Sequence[C],
    terms: Sequence[tree.Term],
    wanted: CqlType | None,
    fit: Callable[[tree.Term, CqlType], int],
) -> C:
    """The overload that a call means: the one whose types are its arguments', else the only one that could
    take them, or the only such one with the result that is wanted. InvalidRequest."""
    found = []
    for one in known:
        if len(one.arguments) != len(terms):
            continue
        scores = [fit(term, kind) for term, kind in zip(terms, one.arguments, strict=True)]
        if all(score == 2 for score in scores):
            return one
        if all(scores):
            found.append(one)
    if len(found) > 1 and wanted is not None:
        found = [one for one in found if one.returns == wanted] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidRequest(
            f"Ambiguous call to function {name} (can be matched by following signatures: "
            f"{_listed(name, found)}): use type casts to disambiguate"
        )
    if len(known) == 1 and len(known[0].arguments) != len(terms):
        raise InvalidRequest(
            f"Invalid number of arguments in call to function {name}: "
            f"{len(known[0].arguments)} required but {len(terms)} provided"
        )
    raise InvalidRequest(
        f"Invalid call to function {name}, none of its type signatures match (known type signatures: "
        f"{_listed(name, known)})"
    )


def _listed(name: str, known: Sequence[C]) -> str:
    return ", ".join(
        f"{name} : ({', '.join(kind.text for kind in one.arguments)}) -> {one.returns.text}" for one in known
    )
