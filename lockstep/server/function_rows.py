"""Rows of `system_schema.functions` and `system_schema.aggregates`.

Invariant: types are texts as in a statement; what drivers make of a row creates an equal function.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.schema.function_changes import return_type
from lockstep.schema.model import Schema
from lockstep.server.virtual_rows import VirtualRow


def function_rows(schema: Schema) -> Iterator[VirtualRow]:
    for space in schema.keyspaces:
        for one in space.functions:
            yield {
                "keyspace_name": space.name,
                "function_name": one.name,
                "argument_types": one.argument_types,
                "argument_names": one.argument_names,
                "body": one.body,
                "called_on_null_input": one.called_on_null,
                "language": one.language,
                "return_type": one.returns,
            }


def aggregate_rows(schema: Schema) -> Iterator[VirtualRow]:
    for space in schema.keyspaces:
        for one in space.aggregates:
            yield {
                "keyspace_name": space.name,
                "aggregate_name": one.name,
                "argument_types": one.argument_types,
                "final_func": one.final_function,
                "initcond": one.initial,
                "return_type": return_type(space, one),
                "state_func": one.state_function,
                "state_type": one.state_type,
            }
