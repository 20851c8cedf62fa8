"""Changes of user functions and aggregates: what a log entry says, and the pure functions that apply it.

Invariant: as in `changes`. A name with types of arguments is one function or one aggregate; an aggregate's
state and final function are there, with the types that it needs, as long as it is. What a body says is judged
before the entry is made: nothing here reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from lockstep.schema.model import Keyspace, Schema
from lockstep.schema.objects import Aggregate, Function
from lockstep.schema.summaries import (
    CREATED,
    DROPPED,
    UPDATED,
    Applied,
    ChangeSummary,
    declared_type,
    no_keyspace,
)
from lockstep.schema.types import TupleType, UserDefinedType
from lockstep.values.errors import Rejected
from lockstep.values.limits import FUNCTION_ARGUMENTS_MAX, KEYSPACE_FUNCTIONS_MAX


class CreateFunction(msgspec.Struct, frozen=True, array_like=True, tag="create_function"):
    """`arguments`: (name, type text)."""

    keyspace: str
    name: str
    arguments: tuple[tuple[str, str], ...]
    returns: str
    language: str
    body: str
    called_on_null: bool = False
    or_replace: bool = False
    if_not_exists: bool = False


class DropFunction(msgspec.Struct, frozen=True, array_like=True, tag="drop_function"):
    """`arguments`: type texts; None: whichever function of the name there is one of."""

    keyspace: str
    name: str
    arguments: tuple[str, ...] | None = None
    if_exists: bool = False


class CreateAggregate(msgspec.Struct, frozen=True, array_like=True, tag="create_aggregate"):
    """`arguments`: type texts; `initial`: CQL text of a value of the state's type, None for null."""

    keyspace: str
    name: str
    arguments: tuple[str, ...]
    state_function: str
    state_type: str
    final_function: str | None = None
    initial: str | None = None
    or_replace: bool = False
    if_not_exists: bool = False


class DropAggregate(msgspec.Struct, frozen=True, array_like=True, tag="drop_aggregate"):
    """As DropFunction."""

    keyspace: str
    name: str
    arguments: tuple[str, ...] | None = None
    if_exists: bool = False


FunctionChange = CreateFunction | DropFunction | CreateAggregate | DropAggregate


def apply_function_change(schema: Schema, change: FunctionChange, epoch: int) -> Applied:
    """The schema after a change, and its summary (None when nothing changed). Raises Rejected."""
    space = schema.by_name.get(change.keyspace)
    if isinstance(change, DropFunction | DropAggregate):
        return _drop(schema, space, change)
    if space is None:
        raise no_keyspace(change.keyspace)
    if isinstance(change, CreateFunction):
        return _create_function(schema, space, change, epoch)
    return _create_aggregate(schema, space, change, epoch)


def _thawed(space: Keyspace, text: str, what: str) -> str:
    """The canonical text of a type of an argument, result or state. Rejected for a frozen one: whether a
    value is frozen means nothing to functions, and signatures would differ by it."""
    kind = declared_type(space, text)
    of_itself = isinstance(kind, TupleType) and not isinstance(kind, UserDefinedType)
    if text.strip().lower().startswith("frozen<") and not of_itself:
        raise Rejected(f"{what} '{text}' cannot be frozen; remove frozen<> modifier from '{text}'")
    return kind.text


def _arguments(space: Keyspace, texts: Iterable[str]) -> tuple[str, ...]:
    found = tuple(_thawed(space, text, "Argument") for text in texts)
    if len(found) > FUNCTION_ARGUMENTS_MAX:
        raise Rejected(f"A function has at most {FUNCTION_ARGUMENTS_MAX} arguments")
    return found


def _function(space: Keyspace, name: str, types: tuple[str, ...]) -> Function | None:
    return next((one for one in space.functions if one.signature == (name, types)), None)


def _aggregate(space: Keyspace, name: str, types: tuple[str, ...]) -> Aggregate | None:
    return next((one for one in space.aggregates if one.signature == (name, types)), None)


def _refuse_more(space: Keyspace) -> None:
    if len(space.functions) + len(space.aggregates) >= KEYSPACE_FUNCTIONS_MAX:
        raise Rejected(
            f"Keyspace '{space.name}' has {KEYSPACE_FUNCTIONS_MAX} functions and aggregates, and cannot "
            "have more"
        )


# Functions


def _create_function(schema: Schema, space: Keyspace, change: CreateFunction, epoch: int) -> Applied:
    name = change.name
    names = tuple(argument for argument, _ in change.arguments)
    if len(set(names)) != len(names):
        raise Rejected(
            f"Duplicate argument names for given function {name} with argument names [{', '.join(names)}]"
        )
    types = _arguments(space, (text for _, text in change.arguments))
    returns = _thawed(space, change.returns, "Return type")
    if _aggregate(space, name, types) is not None:
        raise Rejected(f"Function '{name}' cannot replace an aggregate")
    made = Function(name, types, names, returns, change.language, change.body, change.called_on_null, epoch)
    known = _function(space, name, types)
    if known is None:
        _refuse_more(space)
    else:
        if change.if_not_exists:
            return schema, None
        _refuse_replacing(known, made, or_replace=change.or_replace)
        if replace(made, epoch=known.epoch) == known:
            return schema, None
    kept = [one for one in space.functions if one is not known]
    assert len(kept) == len(space.functions) - (known is not None), "no other function goes"
    assert known is None or users_of(space, known) == users_of(space, made), "aggregates keep what they call"
    functions = tuple(sorted((*kept, made), key=attrgetter("signature")))
    summary = ChangeSummary(UPDATED if known else CREATED, "FUNCTION", space.name, name, types)
    return schema.with_keyspace(replace(space, functions=functions)), summary


def _refuse_replacing(known: Function, made: Function, *, or_replace: bool) -> None:
    name = made.name
    if not or_replace:
        raise Rejected(f"Function '{name}' already exists")
    if known.called_on_null != made.called_on_null:
        wanted = "CALLED ON NULL INPUT" if known.called_on_null else "RETURNS NULL ON NULL INPUT"
        raise Rejected(f"Function '{name}' must have {wanted} directive")
    if known.returns != made.returns:
        raise Rejected(
            f"Cannot replace function '{name}', the new return type {made.returns} is not compatible with "
            f"the return type {known.returns} of existing function"
        )


def users_of(space: Keyspace, function: Function) -> list[str]:
    """Aggregates that call a function, by name."""
    return sorted(
        {
            one.name
            for one in space.aggregates
            if function.signature in ((one.state_function, state_arguments(one)), _final(one))
        }
    )


def state_arguments(aggregate: Aggregate) -> tuple[str, ...]:
    return aggregate.state_type, *aggregate.argument_types


# Aggregates


def _create_aggregate(schema: Schema, space: Keyspace, change: CreateAggregate, epoch: int) -> Applied:
    name = change.name
    types = _arguments(space, change.arguments)
    state = _thawed(space, change.state_type, "State type")
    made = Aggregate(name, types, change.state_function, state, change.final_function, change.initial, epoch)
    returns = _checked_parts(space, change, made)
    if _function(space, name, types) is not None:
        raise Rejected(f"Aggregate '{name}' cannot replace a function")
    known = _aggregate(space, name, types)
    if known is None:
        _refuse_more(space)
    else:
        if change.if_not_exists:
            return schema, None
        if not change.or_replace:
            raise Rejected(f"Aggregate '{name}' already exists")
        before = return_type(space, known)
        if returns != before:
            raise Rejected(
                f"Cannot replace aggregate '{name}', the new return type {returns} isn't compatible with "
                f"the return type {before} of existing function"
            )
        if replace(made, epoch=known.epoch) == known:
            return schema, None
    kept = [one for one in space.aggregates if one is not known]
    assert len(kept) == len(space.aggregates) - (known is not None), "no other aggregate goes"
    aggregates = tuple(sorted((*kept, made), key=attrgetter("signature")))
    summary = ChangeSummary(UPDATED if known else CREATED, "AGGREGATE", space.name, name, types)
    return schema.with_keyspace(replace(space, aggregates=aggregates)), summary


def _checked_parts(space: Keyspace, change: CreateAggregate, made: Aggregate) -> str:
    """The type that an aggregate returns. Rejected when its functions are not there or do not fit."""
    written = ", ".join((change.state_type, *change.arguments))
    shown = f"{space.name}.{made.state_function}({written})"
    folds = _function(space, made.state_function, state_arguments(made))
    if folds is None:
        raise Rejected(f"State function {shown} doesn't exist")
    if folds.returns != made.state_type:
        raise Rejected(
            f"State function {shown} return type must be the same as the first argument type - check "
            "STYPE, argument and return types"
        )
    if made.final_function is not None and _function(space, *_final(made)) is None:
        raise Rejected(
            f"Final function {space.name}.{made.final_function}({change.state_type}) doesn't exist"
        )
    if made.initial is None and not folds.called_on_null:
        raise Rejected(
            f"Cannot create aggregate '{made.name}' without INITCOND because state function "
            f"{space.name}.{made.state_function} does not accept 'null' arguments"
        )
    return return_type(space, made)


def _final(aggregate: Aggregate) -> tuple[str, tuple[str, ...]]:
    return aggregate.final_function or "", (aggregate.state_type,)


def parts_of(space: Keyspace, aggregate: Aggregate) -> tuple[Function, Function | None]:
    """The state and the final function of an aggregate that is there."""
    folds = _function(space, aggregate.state_function, state_arguments(aggregate))
    assert folds is not None, "an aggregate keeps its functions"
    return folds, _function(space, *_final(aggregate)) if aggregate.final_function is not None else None


def return_type(space: Keyspace, aggregate: Aggregate) -> str:
    """Canonical text of the type that an aggregate returns."""
    final = parts_of(space, aggregate)[1]
    return aggregate.state_type if final is None else final.returns


# Dropping


def _drop(schema: Schema, space: Keyspace | None, change: DropFunction | DropAggregate) -> Applied:
    word = "FUNCTION" if isinstance(change, DropFunction) else "AGGREGATE"
    shown = f"{change.keyspace}.{change.name}"
    if change.arguments is not None:
        shown += f"({', '.join(change.arguments)})"
    missing = Rejected(f"{word.capitalize()} '{shown}' doesn't exist", keyspace=change.keyspace)
    if space is None:
        if change.if_exists:
            return schema, None
        raise missing
    kinds: Iterable[Function | Aggregate] = space.functions if word == "FUNCTION" else space.aggregates
    named = [one for one in kinds if one.name == change.name]
    if change.arguments is None:
        if len(named) > 1:
            raise _ambiguous(word, change.name)
    else:
        types = _arguments(space, change.arguments)
        named = [one for one in named if one.argument_types == types]
    if not named:
        if change.if_exists:
            return schema, None
        raise missing
    dropped = named[0]
    if isinstance(dropped, Function):
        users = users_of(space, dropped)
        if users:
            listed = ", ".join(f"{space.name}.{user}" for user in users)
            raise Rejected(f"Function '{shown}' is still referenced by aggregates [{listed}]")
        left = replace(space, functions=tuple(one for one in space.functions if one is not dropped))
    else:
        left = replace(space, aggregates=tuple(one for one in space.aggregates if one is not dropped))
    gone = len(space.functions) + len(space.aggregates) - len(left.functions) - len(left.aggregates)
    assert gone == 1, "one goes, and no other"
    summary = ChangeSummary(DROPPED, word, space.name, dropped.name, dropped.argument_types)
    return schema.with_keyspace(left), summary


def _ambiguous(word: str, name: str) -> Rejected:
    return Rejected(
        f"'DROP {word} {name}' matches multiple function definitions; specify the argument types by issuing "
        f"a statement like 'DROP {word} {name} (type, type, ...)'. You can use cqlsh "
        f"'DESCRIBE {word} {name}' command to find all overloads"
    )
