"""DESCRIBE of user functions and aggregates: the statements that create them again.

Invariant: as in `describe`; functions come before the aggregates that call them.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.catalog import cql_name
from lockstep.schema.model import Keyspace
from lockstep.schema.objects import Aggregate, Function

Row = tuple[str, ...]


def shown_signature(one: Function | Aggregate) -> str:
    """The name with the types of the arguments, which together name it."""
    return f"{cql_name(one.name)}({', '.join(one.argument_types)})"


def function_rows(space: Keyspace, name: str | None = None) -> list[Row]:
    """(keyspace, function, signature, statement) of the functions, those of one name if it is given."""
    return [
        (*_head(space, "function", one), function_statement(space, one))
        for one in space.functions
        if name is None or one.name == name
    ]


def aggregate_rows(space: Keyspace, name: str | None = None) -> list[Row]:
    """As `function_rows`."""
    return [
        (*_head(space, "aggregate", one), aggregate_statement(space, one))
        for one in space.aggregates
        if name is None or one.name == name
    ]


def listed(spaces: Sequence[Keyspace], what: str) -> list[Row]:
    """(keyspace, function or aggregate, signature) of all of a kind; `what` is functions or aggregates."""
    of_kind = function_rows if what == "functions" else aggregate_rows
    return [row[:3] for space in spaces for row in of_kind(space)]


def _head(space: Keyspace, what: str, one: Function | Aggregate) -> Row:
    return cql_name(space.name), what, shown_signature(one)


def function_statement(space: Keyspace, function: Function) -> str:
    """CREATE FUNCTION."""
    pairs = zip(function.argument_names, function.argument_types, strict=True)
    arguments = ", ".join(f"{cql_name(name)} {text}" for name, text in pairs)
    nulls = "CALLED" if function.called_on_null else "RETURNS NULL"
    quoted = function.body.replace("'", "''")
    # A body that ends in a dollar would end the quotes too early.
    body = f"'{quoted}'" if "$$" in f"{function.body}$" else f"$${function.body}$$"
    return (
        f"CREATE FUNCTION {cql_name(space.name)}.{cql_name(function.name)}({arguments})\n"
        f"    {nulls} ON NULL INPUT\n"
        f"    RETURNS {function.returns}\n"
        f"    LANGUAGE {cql_name(function.language)}\n"
        f"    AS {body};"
    )


def aggregate_statement(space: Keyspace, aggregate: Aggregate) -> str:
    """CREATE AGGREGATE."""
    lines = [
        f"CREATE AGGREGATE {cql_name(space.name)}.{shown_signature(aggregate)}",
        f"SFUNC {cql_name(aggregate.state_function)}",
        f"STYPE {aggregate.state_type}",
    ]
    if aggregate.final_function is not None:
        lines.append(f"FINALFUNC {cql_name(aggregate.final_function)}")
    if aggregate.initial is not None:
        lines.append(f"INITCOND {aggregate.initial}")
    return "\n    ".join(lines) + ";"
