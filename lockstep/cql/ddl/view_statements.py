"""Statements about materialized views and secondary indexes to schema changes, and back to the statements
that make them; and the WHERE clause of a view as a filter of the keys that its rows would have.

Invariant: as in `ddl`; the text of a WHERE clause that is kept reads back as the same clause, whatever it was
written like. As in `ddl`: the change holds all that applying it needs; making it looks at no schema. Whether
a row of the base table is in the view depends on the columns of the view's key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.literals import shown
from lockstep.cql.compile.prepared import Catalog, Scope, TableShape, cql_name, shape_of
from lockstep.cql.compile.terms import compile_term
from lockstep.cql.functions.native import family, overloads
from lockstep.cql.parse import tree
from lockstep.cql.parse.parser import parse
from lockstep.schema.model import Column, ColumnKind, Keyspace, Table
from lockstep.schema.objects import Index
from lockstep.schema.table_options import OptionValue
from lockstep.schema.type_changes import VALUES, CreateIndex, DropIndex, IndexChange, IndexedPart
from lockstep.schema.types import CqlType
from lockstep.schema.view_changes import AlterView, CreateView, DropView, ViewChange
from lockstep.values.errors import ConfigurationInvalid, InvalidRequest, SyntaxError_

#: Whether a row whose key columns have these values (by column id) is in the view.
KeyFilter = Callable[[Mapping[int, bytes]], bool]

_Key = tuple[bytes, ...]
#: What no term of a filter depends on.
_ALWAYS: Final = Context(0, 0, 0, 0, bytes(14), bytes)
_COMPARISONS: Final[dict[str, Callable[[_Key, _Key], bool]]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def filter_of(where: str, base: Table, space: Keyspace) -> KeyFilter:
    """The filter of a stored clause."""
    return compile_filter(parsed_where(where), base, space)


def parsed_where(where: str) -> tuple[tree.Relation, ...]:
    """The relations of a stored clause."""
    statement = parse(f"SELECT * FROM t WHERE {where}").statement
    assert isinstance(statement, tree.Select), "a clause makes a statement with any table"
    return statement.where


def compile_filter(relations: Sequence[tree.Relation], base: Table, space: Keyspace) -> KeyFilter:
    """InvalidRequest when a relation does not fit its column or is not one of those that views can have."""
    shape = shape_of(base, space)
    scope = Scope(())
    scope.enter(shape)
    checks = [_check(one, shape, scope) for one in relations if one.operator != "IS NOT NULL"]
    return lambda values: all(check(values) for check in checks)


def _check(relation: tree.Relation, shape: TableShape, scope: Scope) -> KeyFilter:
    columns = [shape.column(name) for name in relation.names]
    terms = relation.values if relation.operator == "IN" else (relation.value,)
    if None in terms or relation.operator not in (*_COMPARISONS, "IN"):
        raise InvalidRequest(
            f"WHERE of a materialized view cannot restrict {columns[0].name} by {relation.operator}"
        )
    if relation.shape == "token":
        raise InvalidRequest("Cannot use token relation when defining a materialized view")
    if relation.shape == "tuple":
        _check_joint(columns, shape)
    kinds = [shape.types[column.name] for column in columns]
    names = [column.name for column in columns]
    targets = []
    for term in terms:
        items = (term,) if relation.shape == "single" else _items(term, len(columns))
        triples = zip(items, kinds, names, strict=True)
        targets.append(
            tuple(kind.sort_key(_constant(item, kind, name, scope)) for item, kind, name in triples)
        )
    places = [(column.id, kind.sort_key) for column, kind in zip(columns, kinds, strict=True)]

    def key(values: Mapping[int, bytes]) -> tuple[bytes, ...]:
        return tuple(sort_key(values[column]) for column, sort_key in places)

    if relation.operator == "IN":
        return lambda values: key(values) in targets
    compare, target = _COMPARISONS[relation.operator], targets[0]
    return lambda values: compare(key(values), target)


def _check_joint(columns: Sequence[Column], shape: TableShape) -> None:
    for column in columns:
        if column.kind != ColumnKind.CLUSTERING:
            raise InvalidRequest(
                "Multi-column relations can only be applied to clustering columns "
                f"but was applied to: {column.name}"
            )
    first = columns[0].position
    if [column.position for column in columns] != list(range(first, first + len(columns))):
        shown = ", ".join(column.name for column in columns)
        raise InvalidRequest(
            f"Clustering columns must appear in the PRIMARY KEY order in multi-column relations: ({shown})"
        )


def _items(term: tree.Term | None, width: int) -> tuple[tree.Term, ...]:
    if not isinstance(term, tree.TupleLiteral) or len(term.items) != width:
        raise InvalidRequest(f"Expected {width} elements in value tuple of a multi-column relation")
    return term.items


def _constant(term: tree.Term | None, kind: CqlType, name: str, scope: Scope) -> bytes:
    assert term is not None
    _refuse_moments(term)
    found = compile_term(term, kind, name, scope).get((), _ALWAYS)
    if not isinstance(found, bytes):
        raise InvalidRequest(f"Invalid null value in condition for column {name}")
    return found


def _refuse_moments(term: tree.Term) -> None:
    """InvalidRequest when a term could be worth something else at another time."""
    if isinstance(term, tree.Bind):
        raise InvalidRequest("Cannot use query parameters in CREATE MATERIALIZED VIEW statements")
    if isinstance(term, tree.Call):
        known = overloads(term.keyspace, term.name)
        if not known and term.name != "token" and family(term.keyspace, term.name) is None:
            raise InvalidRequest("WHERE of a materialized view can only call built-in functions")
        if not all(function.pure for function in known):
            raise InvalidRequest(f"WHERE of a materialized view cannot call {term.name}")
        inner: Sequence[tree.Term] = term.arguments
    elif isinstance(term, tree.Arithmetic):
        inner = (term.left, term.right)
    elif isinstance(term, tree.Negation | tree.TypeHint | tree.Cast):
        inner = (term.term,)
    elif isinstance(term, tree.TupleLiteral | tree.ListLiteral | tree.SetLiteral):
        inner = term.items
    elif isinstance(term, tree.MapLiteral):
        inner = [part for entry in term.entries for part in entry]
    elif isinstance(term, tree.UserLiteral):
        inner = [value for _, value in term.entries]
    else:
        inner = ()
    for part in inner:
        _refuse_moments(part)


ViewStatement = tree.CreateViewStatement | tree.AlterViewStatement | tree.DropViewStatement
Options = tuple[tuple[str, OptionValue], ...]

_NOT_NULL: Final = "IS NOT NULL"


def view_change(
    statement: ViewStatement, keyspace: str, uuid: str, options: Options, descending: Sequence[str]
) -> ViewChange:
    """The change that a statement asks for in a keyspace; `uuid`, `options` and `descending` are what its
    properties come to. InvalidRequest or ConfigurationInvalid."""
    name = statement.table.name
    if isinstance(statement, tree.DropViewStatement):
        return DropView(keyspace, name, statement.if_exists)
    if statement.properties.compact_storage:
        raise InvalidRequest("Cannot use 'COMPACT STORAGE' when defining a materialized view")
    if isinstance(statement, tree.AlterViewStatement):
        if statement.properties.clustering_order:
            raise InvalidRequest("Cannot alter the clustering order of a materialized view")
        if any(option == "id" for option, _ in options):
            raise ConfigurationInvalid("Cannot alter table id.")
        return AlterView(keyspace, name, options, statement.if_exists)
    key = statement.primary_key
    single = [relation for relation in statement.where if relation.shape == "single"]
    return CreateView(
        keyspace,
        name,
        uuid,
        statement.base.keyspace or keyspace,
        statement.base.name,
        tuple(_selected(selector) for selector in statement.selectors),
        key.partition if key is not None else (),
        key.clustering if key is not None else (),
        tuple(sorted(descending)),
        tuple(sorted({relation.names[0] for relation in single if relation.operator == _NOT_NULL})),
        tuple(
            sorted({name for found in statement.where if found.operator != _NOT_NULL for name in found.names})
        ),
        where_text(statement.where),
        options,
        statement.if_not_exists,
        base_order=not statement.properties.clustering_order,
    )


def _selected(selector: tree.Selector) -> str:
    expression = selector.expression
    if selector.alias is not None:
        raise InvalidRequest("Cannot use alias when defining a materialized view")
    if not isinstance(expression, tree.ColumnName):
        raise InvalidRequest(
            f"Can only select columns by name when defining a materialized view (got {shown(expression)})"
        )
    return expression.name


def check_where(statement: tree.CreateViewStatement, keyspace: str, catalog: Catalog) -> None:
    """InvalidRequest when the WHERE clause compares what cannot be compared. Whether the base table is there
    and the clause allowed is judged where the change is applied."""
    space = catalog.schema.by_name.get(keyspace)
    base = space.by_name.get(statement.base.name) if space is not None else None
    if space is not None and base is not None:
        compile_filter(statement.where, base, space)


# Texts


def where_text(relations: Sequence[tree.Relation]) -> str:
    """A WHERE clause as CQL text."""
    return " AND ".join(_relation_text(relation) for relation in relations)


def shown_where(text: str) -> str:
    """A stored clause without quotes that it does not need."""
    return where_text(parsed_where(text)) if '"' in text else text


def _relation_text(relation: tree.Relation) -> str:
    if relation.shape == "token":
        raise InvalidRequest("Cannot use token relation when defining a materialized view")
    if relation.shape not in ("single", "tuple"):
        raise InvalidRequest("WHERE of a materialized view can only restrict columns, not elements of them")
    name = cql_name(relation.names[0])
    if relation.shape == "tuple":
        name = f"({', '.join(map(cql_name, relation.names))})"
    if relation.operator == _NOT_NULL:
        return f"{name} {_NOT_NULL}"
    if relation.operator == "IN":
        return f"{name} IN ({', '.join(_text(value) for value in relation.values)})"
    if relation.value is None:
        raise InvalidRequest(f"WHERE of a materialized view cannot have {relation.operator}")
    return f"{name} {relation.operator} {_text(relation.value)}"


def _text(term: tree.Term) -> str:
    if isinstance(term, tree.Literal):
        return _quoted(term.text) if term.kind == "string" else term.text
    if isinstance(term, tree.TypeHint):
        return f"({term.type}){_text(term.term)}"
    if isinstance(term, tree.Negation):
        return f"-{_text(term.term)}"
    if isinstance(term, tree.TupleLiteral):
        return f"({', '.join(map(_text, term.items))})"
    if isinstance(term, tree.ListLiteral):
        return f"[{', '.join(map(_text, term.items))}]"
    if isinstance(term, tree.SetLiteral):
        return f"{{{', '.join(map(_text, term.items))}}}"
    if isinstance(term, tree.MapLiteral):
        return f"{{{', '.join(f'{_text(key)}: {_text(value)}' for key, value in term.entries)}}}"
    if isinstance(term, tree.UserLiteral):
        return f"{{{', '.join(f'{cql_name(name)}: {_text(value)}' for name, value in term.entries)}}}"
    if isinstance(term, tree.Cast):
        return f"CAST({_text(term.term)} AS {term.type})"
    if isinstance(term, tree.Arithmetic):
        return f"({_text(term.left)} {term.operator} {_text(term.right)})"
    if isinstance(term, tree.Call):
        space = "" if term.keyspace is None else f"{cql_name(term.keyspace)}."
        name = term.name if term.name == "token" else cql_name(term.name)
        return f"{space}{name}({', '.join(map(_text, term.arguments))})"
    raise InvalidRequest("Cannot use query parameters in CREATE MATERIALIZED VIEW statements")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def view_statement(view: Table, options: Sequence[str]) -> str:
    """CREATE MATERIALIZED VIEW for a view with these texts of options."""
    definition = view.view
    assert definition is not None, f"{view.name} is no view"
    ordered = [*view.partition_key, *view.clustering, *view.regular]
    selected = "*" if definition.all_columns else ", ".join(cql_name(column.name) for column in ordered)
    partition = ", ".join(cql_name(column.name) for column in view.partition_key)
    if len(view.partition_key) > 1:
        partition = f"({partition})"
    key = ", ".join([partition, *(cql_name(column.name) for column in view.clustering)])
    space = cql_name(view.keyspace)
    return (
        f"CREATE MATERIALIZED VIEW {space}.{cql_name(view.name)} AS\n"
        f"    SELECT {selected}\n"
        f"    FROM {space}.{cql_name(definition.base)}\n"
        f"    WHERE {shown_where(definition.where)}\n"
        f"    PRIMARY KEY ({key})\n"
        f" WITH " + "\n    AND ".join(options) + ";"
    )


def index_change(
    statement: tree.CreateIndexStatement | tree.DropIndexStatement, keyspace: str
) -> IndexChange:
    """The change that a statement asks for in a keyspace. InvalidRequest or SyntaxError_."""
    if isinstance(statement, tree.DropIndexStatement):
        return DropIndex(keyspace, statement.table.name, statement.if_exists)
    targets = tuple(IndexedPart(target.column, target.what or "") for target in statement.targets)
    return CreateIndex(
        keyspace,
        statement.table.name,
        statement.name or "",
        targets,
        statement.class_ or "",
        _options(statement.properties),
        statement.custom,
        statement.if_not_exists,
    )


def _options(properties: tree.Properties) -> tuple[tuple[str, str], ...]:
    if properties.clustering_order or properties.compact_storage:
        raise SyntaxError_("CREATE INDEX has no such properties")
    found: tuple[tuple[str, str], ...] = ()
    for name, value in properties.options:
        if name != "options":
            raise SyntaxError_(f"Unknown property '{name}'")
        if isinstance(value, str):
            raise InvalidRequest("Invalid value for property 'options'. It should be a map.")
        found = tuple(value)
    return found


def target_text(table: Table, index: Index) -> str:
    """What an index is on, as CREATE INDEX names it."""
    column = table.by_id[index.column]
    name = cql_name(column.name)
    if index.target == VALUES and not column.type.startswith(("map<", "list<", "set<")):
        return name
    return f"{index.target}({name})"


def index_statement(table: Table, index: Index) -> str:
    """CREATE INDEX for an index of a table."""
    custom = "CUSTOM " if index.class_ else ""
    text = (
        f"CREATE {custom}INDEX {cql_name(index.name)} ON {cql_name(table.keyspace)}.{cql_name(table.name)} "
        f"({target_text(table, index)})"
    )
    if index.class_:
        text += f" USING {_quoted(index.class_)}"
    if index.options:
        pairs = ", ".join(f"{_quoted(name)}: {_quoted(value)}" for name, value in index.options)
        text += f" WITH OPTIONS = {{{pairs}}}"
    return text + ";"
