"""Terms as text: names of result columns, and terms in messages.

Invariant: a column without an alias has the name that clients of Cassandra expect.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.cql.compile.catalog import cql_name
from lockstep.cql.parse import tree

_CELL_FACTS = ("ttl", "writetime", "maxwritetime")


def shown(term: tree.Term) -> str:
    """The name of a result column without an alias."""
    if isinstance(term, tree.ColumnName):
        return term.name
    if isinstance(term, tree.Literal):
        return f"'{term.text}'" if term.kind == "string" else term.text
    if isinstance(term, tree.Cast):
        return f"cast({shown(term.term)} as {term.type})"
    if isinstance(term, tree.TypeHint):
        return f"({term.type}){shown(term.term)}"
    if isinstance(term, tree.Bind):
        return "?"
    if isinstance(term, tree.Arithmetic):
        return f"{shown(term.left)} {term.operator} {shown(term.right)}"
    if isinstance(term, tree.Negation):
        return f"-{shown(term.term)}"
    if isinstance(term, tree.Call):
        return _call(term)
    return _compound(term)


def _compound(term: tree.Term) -> str:
    if isinstance(term, tree.Element):
        return f"{_base(term.term)}[{shown(term.key)}]"
    if isinstance(term, tree.Span):
        low, high = ("" if end is None else shown(end) for end in (term.low, term.high))
        return f"{_base(term.term)}[{low}..{high}]"
    if isinstance(term, tree.Field):
        return f"{shown(term.term)}.{term.field}"
    if isinstance(term, tree.ListLiteral):
        return f"[{_listed(term.items)}]"
    if isinstance(term, tree.SetLiteral):
        return f"{{{_listed(term.items)}}}"
    if isinstance(term, tree.TupleLiteral):
        return f"({_listed(term.items)})"
    if isinstance(term, tree.MapLiteral):
        return "{" + ", ".join(f"{shown(key)}: {shown(value)}" for key, value in term.entries) + "}"
    assert isinstance(term, tree.UserLiteral)
    return "{" + ", ".join(f"{name}: {shown(value)}" for name, value in term.entries) + "}"


def _listed(terms: Iterable[tree.Term]) -> str:
    return ", ".join(_base(term) for term in terms)


def _base(term: tree.Term) -> str:
    return cql_name(term.name) if isinstance(term, tree.ColumnName) else shown(term)


def counts_rows(term: tree.Call) -> bool:
    """count(*), or count of a literal, which is the same."""
    if term.counts_rows:
        return True
    return term.name == "count" and len(term.arguments) == 1 and isinstance(term.arguments[0], tree.Literal)


def _call(term: tree.Call) -> str:
    if counts_rows(term):
        return "count"
    if term.name in _CELL_FACTS and term.keyspace is None:
        return f"{term.name}({_listed(term.arguments)})"
    return f"{term.keyspace or 'system'}.{term.name}({_listed(term.arguments)})"
