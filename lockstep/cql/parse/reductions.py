"""What each grammar rule of terms and data statements becomes: one function a rule, children in, node out.

Invariant: a reduction only builds nodes; it resolves no name and checks nothing that needs the schema.
Clauses arrive as small tagged nodes, so that optional parts need no placeholders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lockstep.cql.compile.prepared import cql_name
from lockstep.cql.parse.tree import (
    Arithmetic,
    Assignment,
    Batch,
    Bind,
    Call,
    Cast,
    ColumnDelete,
    ColumnName,
    Conditions,
    Delete,
    Element,
    Field,
    Insert,
    ListLiteral,
    Literal,
    MapLiteral,
    Negation,
    Relation,
    Select,
    Selector,
    SetLiteral,
    Span,
    TableName,
    Truncate,
    TupleLiteral,
    TypeHint,
    Update,
    Use,
    UserLiteral,
    Using,
)
from lockstep.values.errors import InvalidRequest, SyntaxError_
from lockstep.values.limits import CQL_EXPRESSION_DEPTH_MAX

Children = list[Any]
Handler = Callable[[Children], Any]


class Flag(msgspec.Struct, frozen=True):
    """A clause that is present: IF EXISTS, DISTINCT, JSON and the like."""

    name: str


class Clause(msgspec.Struct, frozen=True):
    """A clause with a value."""

    name: str
    value: Any


class Where(msgspec.Struct, frozen=True):
    relations: tuple[Relation, ...]


class Names(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


def pick(children: Children, kind: type[Any], default: Any = None) -> Any:
    """The child of a type, or the default."""
    for child in children:
        if isinstance(child, kind):
            return child
    return default


def has_flag(children: Children, name: str) -> bool:
    return any(isinstance(child, Flag) and child.name == name for child in children)


def flag(name: str) -> Handler:
    return lambda _: Flag(name)


def first(children: Children) -> Any:
    return children[0]


def constant(value: Any) -> Handler:
    return lambda _: value


def _literal(kind: str) -> Handler:
    return lambda children: Literal(kind, children[0])


def _plain_type(children: Children) -> str:
    name = str(children[0])
    if len(children) == 1:
        return cql_name(name)
    return f"{name}<{', '.join(children[1:])}>"


def _qualified_type(children: Children) -> str:
    return f"{cql_name(children[0])}.{cql_name(children[1])}"


class Access(msgspec.Struct, frozen=True):
    """What follows a column: `kind` field, element or slice."""

    kind: str
    first: Any
    second: Any = None


def _accessed(children: Children) -> Any:
    """`column.a['b']`: what is accessed from the outside in."""
    return _accessed_term([ColumnName(children[0]), *children[1:]])


def _accessed_term(children: Children) -> Any:
    term = children[0]
    for access in children[1:]:
        if access.kind == "field":
            term = Field(term, access.first)
        elif access.kind == "element":
            term = Element(term, access.first)
        else:
            term = Span(term, access.first, access.second)
    return term


def _nested(term: Any) -> TupleLiteral:
    return TupleLiteral((term,))


def _hint(children: Children) -> TypeHint:
    return TypeHint(children[0], children[1])


def _hint_named(children: Children) -> TypeHint:
    return TypeHint(cql_name(children[0]), children[1])


def _hint_qualified(children: Children) -> TypeHint:
    name, *accesses, term = children
    if len(accesses) != 1 or accesses[0].kind != "field":
        raise SyntaxError_("line 1:0 no viable alternative: an expression cannot follow another one")
    return TypeHint(f"{cql_name(name)}.{cql_name(accesses[0].first)}", term)


def _arithmetic(operator: str) -> Handler:
    return lambda children: Arithmetic(operator, children[0], children[1], _depth(*children))


def _depth(*terms: Any) -> int:
    """How deep an operator over these terms is; InvalidRequest when that is too deep."""
    depth = 1 + max(term.depth if isinstance(term, Arithmetic | Negation) else 0 for term in terms)
    if depth > CQL_EXPRESSION_DEPTH_MAX:
        raise InvalidRequest("The statement is nested too deeply")
    return depth


def _negate(children: Children) -> Any:
    """A negative number is a literal, so that it fits where its type is expected."""
    term = children[0]
    if isinstance(term, Literal) and term.kind in ("integer", "float", "duration"):
        if term.text == "NaN":
            return term
        return Literal(term.kind, term.text[1:] if term.text.startswith("-") else f"-{term.text}")
    return Negation(term, _depth(term))


def _table_name(children: Children) -> TableName:
    return TableName(children[0], children[1]) if len(children) == 2 else TableName(None, children[0])


def _function_name(children: Children) -> tuple[str | None, str]:
    return (children[0], children[1]) if len(children) == 2 else (None, children[0])


def _call(children: Children) -> Call:
    keyspace, name = children[0]
    return Call(keyspace, name, tuple(children[1:]))


def _call_all(children: Children) -> Call:
    keyspace, name = children[0]
    if name != "count":
        raise SyntaxError_(f"line 1:0 no viable alternative at input '*' ({name}([*]...)")
    return Call(keyspace, name, (), counts_rows=True)


def _relation(shape: str, operator: str | None = None) -> Handler:
    def reduce(children: Children) -> Relation:
        names = children[0].names if isinstance(children[0], Names) else (children[0],)
        chosen = operator if operator is not None else children[1]
        return Relation(shape, names, chosen, children[-1])

    return reduce


def _relation_in(shape: str) -> Handler:
    def reduce(children: Children) -> Relation:
        names = children[0].names if isinstance(children[0], Names) else (children[0],)
        given = children[1]
        if isinstance(given, Bind):
            return Relation(shape, names, "IN", given)
        return Relation(shape, names, "IN", None, given)

    return reduce


def _compare_element(children: Children) -> Relation:
    name, element, operator, value = children
    return Relation("element", (name,), operator, value, element=element)


def _compare_element_in(children: Children) -> Relation:
    name, element, given = children
    if isinstance(given, Bind):
        return Relation("element", (name,), "IN", given, element=element)
    return Relation("element", (name,), "IN", None, given, element=element)


def _compare_field(children: Children) -> Relation:
    name, field, operator, value = children
    return Relation("field", (name,), operator, value, field=field)


def _compare_field_in(children: Children) -> Relation:
    name, field, given = children
    if isinstance(given, Bind):
        return Relation("field", (name,), "IN", given, field=field)
    return Relation("field", (name,), "IN", None, given, field=field)


def _select(children: Children) -> Select:
    fields: dict[str, Any] = {}
    using = Using()
    for child in children:
        if isinstance(child, Clause):
            if child.name in fields:
                raise InvalidRequest(f"Multiple {child.name.upper().replace('_', ' ')} clauses")
            fields[child.name] = child.value
        elif isinstance(child, Using):
            using = child
    where = pick(children, Where, Where(()))
    return Select(
        pick(children, TableName),
        where=where.relations,
        distinct=has_flag(children, "distinct"),
        json=has_flag(children, "json"),
        using=using,
        **fields,
    )


def _selector(children: Children) -> Selector:
    return Selector(children[0], children[1] if len(children) == 2 else None)


def _using(children: Children) -> Using:
    fields: dict[str, Any] = {}
    for name, value in children:
        if name in fields:
            raise SyntaxError_(f"Multiple definitions for property '{name}'")
        fields[name] = value
    return Using(**fields)


def _attribute(name: str) -> Handler:
    return lambda children: (name, children[0])


def _conditions_of(children: Children) -> Conditions | None:
    found: Conditions | None = pick(children, Conditions)
    if found is not None:
        return found
    return Conditions(not_exists=True) if has_flag(children, "if_not_exists") else None


def _insert(children: Children) -> Insert:
    names = children[1].names
    values = tuple(child for child in children[2:] if not isinstance(child, Flag | Using))
    return Insert(children[0], names, values, pick(children, Using, Using()), _conditions_of(children))


def _insert_json(children: Children) -> Insert:
    using = pick(children, Using, Using())
    unset = has_flag(children, "json_default_unset")
    return Insert(children[0], (), (), using, _conditions_of(children), json=children[1], json_unset=unset)


def _assignment(operation: str) -> Handler:
    return lambda children: Assignment(children[0], operation, children[-1])


def _assignment_with_other(operation: str) -> Handler:
    return lambda children: Assignment(children[0], operation, children[2], other=children[1])


def _assign_prepend(children: Children) -> Assignment:
    return Assignment(children[0], "prepend", children[1], other=children[2])


def _assign_shift(children: Children) -> Assignment:
    return Assignment(children[0], "append", Literal("integer", children[2]), other=children[1])


def _assign_element(children: Children) -> Assignment:
    return Assignment(children[0], "element", children[2], element=children[1])


def _assign_field(children: Children) -> Assignment:
    return Assignment(children[0], "field", children[2], field=children[1])


def _update(children: Children) -> Update:
    assignments = tuple(child for child in children if isinstance(child, Assignment))
    where = pick(children, Where)
    using = pick(children, Using, Using())
    return Update(children[0], assignments, where.relations, using, pick(children, Conditions))


def _delete(children: Children) -> Delete:
    columns = pick(children, tuple, ())
    where = pick(children, Where)
    using = pick(children, Using, Using())
    return Delete(pick(children, TableName), columns, where.relations, using, pick(children, Conditions))


def _batch(children: Children) -> Batch:
    statements = tuple(child for child in children if isinstance(child, Insert | Update | Delete))
    return Batch(pick(children, str, "LOGGED"), statements, pick(children, Using, Using()))


def _conditions(children: Children) -> Conditions:
    assert has_flag(children, "if_exists")
    return Conditions(exists=True)


def _clause_list(name: str) -> Handler:
    return lambda children: Clause(name, tuple(children))


def _clause(name: str) -> Handler:
    return lambda children: Clause(name, children[0])


_TERMS: dict[str, Handler] = {
    "name": first,
    "table_name": _table_name,
    "plain_type": _plain_type,
    "qualified_type": _qualified_type,
    "set_type": lambda children: f"set<{children[0]}>",
    "custom_type": lambda children: f"'{children[0]}'",
    "type_dimension": first,
    **{kind: _literal(kind) for kind in ("string", "integer", "float", "hex", "uuid", "duration")},
    "true": constant(Literal("boolean", "true")),
    "false": constant(Literal("boolean", "false")),
    "null": constant(Literal("null", "null")),
    "nan": constant(Literal("float", "NaN")),
    "infinity": constant(Literal("float", "Infinity")),
    "add": _arithmetic("+"),
    "subtract": _arithmetic("-"),
    "multiply": _arithmetic("*"),
    "divide": _arithmetic("/"),
    "modulo": _arithmetic("%"),
    "negate": _negate,
    "list_literal": lambda children: ListLiteral(tuple(children)),
    "empty_braces": constant(SetLiteral(())),
    "set_literal": lambda children: SetLiteral(tuple(children)),
    "map_literal": lambda children: MapLiteral(tuple(children)),
    "tuple_literal": lambda children: TupleLiteral(tuple(children)),
    "map_entry": tuple,
    "user_literal": lambda children: UserLiteral(tuple(children)),
    "field_entry": tuple,
    "type_hint": _hint,
    "call": _call,
    "function_name": _function_name,
    "function_token": constant((None, "token")),
}
_RELATIONS: dict[str, Handler] = {
    "where": lambda children: Where(tuple(children)),
    "names": lambda children: Names(tuple(children)),
    "in_terms": tuple,
    "in_bind": first,
    "compare": _relation("single"),
    "compare_in": _relation_in("single"),
    "contains": _relation("single", "CONTAINS"),
    "contains_key": _relation("single", "CONTAINS KEY"),
    "like": _relation("single", "LIKE"),
    "is_not_null": lambda children: Relation("single", (children[0],), "IS NOT NULL"),
    "compare_token": _relation("token"),
    "compare_names": _relation("tuple"),
    "compare_names_in": _relation_in("tuple"),
    "compare_element": _compare_element,
    "compare_element_in": _compare_element_in,
    "compare_field": _compare_field,
    "compare_field_in": _compare_field_in,
    "op_eq": constant("="),
    "op_lt": constant("<"),
    "op_le": constant("<="),
    "op_gt": constant(">"),
    "op_ge": constant(">="),
    "op_ne": constant("!="),
}
_SELECT: dict[str, Handler] = {
    "select": _select,
    "json": flag("json"),
    "distinct": flag("distinct"),
    "select_all": constant(Clause("selectors", ())),
    "select_some": _clause_list("selectors"),
    "selector": _selector,
    "select_column": lambda children: ColumnName(children[0]),
    "select_access": _accessed,
    "select_call_access": _accessed_term,
    "by_field": lambda children: Access("field", children[0]),
    "by_element": lambda children: Access("element", children[0]),
    "by_slice": lambda children: Access("slice", children[0], children[1]),
    "by_slice_from": lambda children: Access("slice", children[0]),
    "by_slice_up_to": lambda children: Access("slice", None, children[0]),
    "select_entry": tuple,
    "select_nested": lambda children: _nested(ColumnName(children[0])),
    "select_nested_access": lambda children: _nested(_accessed(children)),
    "function_call": _call,
    "select_call_all": _call_all,
    "cast": lambda children: Cast(children[0], children[1]),
    "select_cast": lambda children: Cast(children[0], children[1]),
    "select_hint": _hint,
    "select_hint_named": _hint_named,
    "select_hint_qualified": _hint_qualified,
    "order_by": _clause_list("order_by"),
    "group_by": _clause_list("group_by"),
    "per_partition_limit": _clause("per_partition_limit"),
    "limit": _clause("limit"),
    "allow_filtering": constant(Clause("allow_filtering", True)),
    # Readers of logs of changes ask ScyllaDB for it; here nothing is kept of what is read.
    "bypass_cache": flag("bypass_cache"),
    "ascending": lambda children: (children[0], False),
    "descending": lambda children: (children[0], True),
}
_CHANGES: dict[str, Handler] = {
    "if_not_exists": flag("if_not_exists"),
    "if_exists": flag("if_exists"),
    "insert": _insert,
    "insert_json": _insert_json,
    "json_default_null": flag("json_default_null"),
    "json_default_unset": flag("json_default_unset"),
    "using": _using,
    "using_ttl": _attribute("ttl"),
    "using_timestamp": _attribute("timestamp"),
    "using_timeout": _attribute("timeout"),
    "update": _update,
    "assign": _assignment("set"),
    "assign_append": _assignment_with_other("append"),
    "assign_remove": _assignment_with_other("remove"),
    "assign_shift": _assign_shift,
    "assign_prepend": _assign_prepend,
    "assign_plus": _assignment("append"),
    "assign_minus": _assignment("remove"),
    "assign_element": _assign_element,
    "assign_field": _assign_field,
    "conditions": _conditions,
    "if_conditions": lambda children: Conditions(relations=tuple(children)),
    "delete": _delete,
    "deletions": tuple,
    "deletion": lambda children: ColumnDelete(children[0]),
    "deletion_element": lambda children: ColumnDelete(children[0], element=children[1]),
    "deletion_field": lambda children: ColumnDelete(children[0], field=children[1]),
    "batch": _batch,
    "batch_unlogged": constant("UNLOGGED"),
    "batch_counter": constant("COUNTER"),
    "truncate": lambda children: Truncate(children[0]),
    "use": lambda children: Use(children[0]),
}
HANDLERS: dict[str, Handler] = {**_TERMS, **_RELATIONS, **_SELECT, **_CHANGES}
