"""What a WHERE clause restricts, compiled: partition keys, token bounds, clustering and what is left to
filter; and its relations sorted by what they restrict.

Invariant: a compiled Restrictions is exact: the keys and slices it yields, narrowed by its filters, are the
rows asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.cql.compile.literals import shown
from lockstep.cql.compile.prepared import Scope, TableShape
from lockstep.cql.compile.terms import TermPlan
from lockstep.cql.parse import tree
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest

RANGE_OPERATORS = frozenset(("<", "<=", ">", ">="))


class Choice(msgspec.Struct, frozen=True):
    """Values for one column, or with `joint` tuples for clustering columns in order, be it only one.

    `terms` are the alternatives; or `listed` yields a whole list of them. `is_in` tells IN from =.
    """

    names: tuple[str, ...]
    types: tuple[CqlType, ...]
    terms: tuple[TermPlan, ...] = ()
    listed: TermPlan | None = None
    is_in: bool = False
    joint: bool = False

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.types) > 0, "each column of a choice has its type"
        assert self.joint or len(self.names) == 1, "a choice of several columns is one of tuples"
        assert self.listed is None or not self.terms, "alternatives are written out or listed"
        assert self.is_in or (self.listed is None and len(self.terms) == 1), "equality is with one value"


class Bound(msgspec.Struct, frozen=True):
    """A limit on the clustering columns from `first` on; one term a column, or one tuple-valued term."""

    first: int
    terms: tuple[TermPlan, ...]
    inclusive: bool
    whole: TermPlan | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.first >= 0 and self.names, "a bound is on clustering columns"
        assert self.whole is None or not self.terms, "a bound has a term a column or one for all"
        assert self.whole is not None or len(self.terms) == len(self.names), "each column has its term"


class Filter(msgspec.Struct, frozen=True):
    """A condition that is checked on rows after the read."""

    column: Column
    type: CqlType
    operator: str
    terms: tuple[TermPlan, ...]
    listed: TermPlan | None = None
    element: TermPlan | None = None

    def __post_init__(self) -> None:
        assert self.operator == "IN" or (self.listed is None and len(self.terms) == 1), "IN alone has several"
        assert (self.element is not None) is (self.operator == "ELEMENT"), "an entry is found by its key"


class IndexUse(msgspec.Struct, frozen=True):
    """An index that chooses rows: one condition that it answers, or bounds of its values. `whole`: it chooses
    partitions."""

    index_id: int
    whole: bool
    conditions: tuple[Filter, ...]

    def __post_init__(self) -> None:
        assert self.conditions, "an index answers something"
        assert len({found.column.id for found in self.conditions}) == 1, "an index is of one column"


class Restrictions(msgspec.Struct, frozen=True):
    """`partition` has one Choice a key column, or is () when the key is not fixed.

    `tokens`: (operator, term) bounds. `clustering`: choices of a prefix of the clustering columns,
    then optional bounds. `filters`: the rest. `index`: what chooses rows; `uses_indexes`: whether indexes
    answer the clause, which some statements refuse, be one chosen or not.
    """

    partition: tuple[Choice, ...] = ()
    tokens: tuple[tuple[str, TermPlan], ...] = ()
    clustering: tuple[Choice, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    filters: tuple[Filter, ...] = ()
    index: IndexUse | None = None
    uses_indexes: bool = False

    def __post_init__(self) -> None:
        assert self.index is None or self.uses_indexes, "who chooses an index uses them"
        # Written out: text statements are compiled as they come.
        lower, upper = self.lower, self.upper
        assert lower is None or lower.first == self.clustering_width, "bounds follow what is fixed"
        assert upper is None or upper.first == self.clustering_width, "bounds follow what is fixed"

    @property
    def clustering_width(self) -> int:
        """Clustering columns fixed to single values or alternatives."""
        return sum(len(choice.names) for choice in self.clustering)

    @property
    def has_clustering(self) -> bool:
        return bool(self.clustering) or self.lower is not None or self.upper is not None


class Rule(msgspec.Struct, frozen=True):
    """What a statement kind allows: `verb` is SELECT, UPDATE or DELETE."""

    verb: str
    allow_filtering: bool = False


class Clause:
    """Sorts the relations of one WHERE clause; lives for one compilation."""

    def __init__(self, shape: TableShape, scope: Scope, rule: Rule) -> None:
        self.shape = shape
        self.scope = scope
        self.rule = rule
        self.single: dict[str, list[tree.Relation]] = {}
        self.multi: list[tree.Relation] = []
        self.tokens: list[tree.Relation] = []
        self.filters: list[Filter] = []

    def sort(self, relations: Sequence[tree.Relation]) -> None:
        for given in relations:
            kind = self.shape.types.get(given.names[0])
            relation = given if kind is not None and kind.is_multicell else _one_alternative(given)
            if relation.operator.startswith("CONTAINS") and self.rule.verb != "SELECT":
                raise InvalidRequest(f"Cannot use {self.rule.verb} with {relation.operator}")
            if relation.operator == "!=":
                raise InvalidRequest(f'Unsupported "!=" relation: {_shown_unequal(relation)}')
            if relation.shape == "token":
                self.tokens.append(relation)
            elif relation.shape == "tuple":
                self._check_tuple(given)
                if relation.operator == "=" and isinstance(relation.value, tree.TupleLiteral):
                    self._spread(relation, relation.value)
                elif (values := _only_values(relation)) is not None:
                    name = relation.names[0]
                    listed = tree.Relation("single", (name,), "IN", values=values)
                    self.single.setdefault(name, []).append(listed)
                else:
                    self.multi.append(relation)
            else:
                self.shape.column(relation.names[0])
                self.single.setdefault(relation.names[0], []).append(relation)
        self._join_ranges()
        for relation in self.multi:
            self._check_overlap(relation)

    def _join_ranges(self) -> None:
        """Bounds of one column belong to the bounds of tuples that begin with it."""
        firsts = {relation.names[0] for relation in self.multi if relation.operator in RANGE_OPERATORS}
        for name in sorted(firsts):
            given = self.single.get(name, ())
            if given and all(one.shape == "single" and one.operator in RANGE_OPERATORS for one in given):
                for one in self.single.pop(name):
                    assert one.value is not None
                    value = tree.TupleLiteral((one.value,))
                    self.multi.append(tree.Relation("tuple", (name,), one.operator, value))

    def _check_overlap(self, relation: tree.Relation) -> None:
        for name in relation.names:
            others = [one for one in self.multi if one is not relation and name in one.names]
            others.extend(self.single.get(name, ()))
            for other in others:
                both = (relation.operator, other.operator)
                if "=" in both:
                    raise InvalidRequest(
                        f"{name} cannot be restricted by more than one relation if it includes an Equal"
                    )
                if "IN" in both:
                    raise InvalidRequest(
                        f"{name} cannot be restricted by more than one relation if it includes a IN"
                    )
                if relation.names[0] != other.names[0]:
                    raise InvalidRequest(
                        f'Column "{name}" cannot be restricted by two inequalities not starting with '
                        "the same column"
                    )

    def _spread(self, relation: tree.Relation, value: tree.TupleLiteral) -> None:
        if len(value.items) != len(relation.names):
            raise tuple_width(len(relation.names), value)
        for name, item in zip(relation.names, value.items, strict=True):
            self.single.setdefault(name, []).append(tree.Relation("single", (name,), "=", item))

    def _check_tuple(self, relation: tree.Relation) -> None:
        seen: list[str] = []
        last = -1
        for name in relation.names:
            column = self.shape.column(name)
            if column.kind is not ColumnKind.CLUSTERING:
                raise InvalidRequest(
                    "Multi-column relations can only be applied to clustering columns "
                    f"but was applied to: {name}"
                )
            if name in seen:
                raise InvalidRequest(
                    f'Column "{name}" appeared twice in a relation: {_shown_tuple(relation)}'
                )
            if column.position != last + 1 and last >= 0:
                raise InvalidRequest(
                    "Clustering columns must appear in the PRIMARY KEY order in multi-column relations: "
                    f"{_shown_tuple(relation)}"
                )
            seen.append(name)
            last = column.position
        if relation.operator not in RANGE_OPERATORS | {"=", "IN"}:
            raise InvalidRequest(f"{relation.operator} cannot be used for multi-column relations")

    # Partition key


def _one_alternative(relation: tree.Relation) -> tree.Relation:
    """IN of one listed term is equality."""
    if relation.operator != "IN" or len(relation.values) != 1:
        return relation
    return tree.Relation(relation.shape, relation.names, "=", relation.values[0])


def _only_values(relation: tree.Relation) -> tuple[tree.Term, ...] | None:
    """The values of `(c) IN ((1), (2))`, which is `c IN (1, 2)`."""
    if len(relation.names) > 1 or relation.operator != "IN" or relation.value is not None:
        return None
    found: list[tree.Term] = []
    for value in relation.values:
        if not isinstance(value, tree.TupleLiteral):
            return None
        if len(value.items) != 1:
            raise tuple_width(1, value)
        found.append(value.items[0])
    return tuple(found)


def _shown_unequal(relation: tree.Relation) -> str:
    if relation.shape == "tuple":
        return _shown_tuple(relation)
    assert relation.value is not None, "a value that something is unequal to"
    given = shown(relation.value)
    if relation.shape == "token":
        return f"token({', '.join(relation.names)}) != {given}"
    element = "" if relation.element is None else f"[{shown(relation.element)}]"
    return f"{relation.names[0]}{element} != {given}"


def _shown_tuple(relation: tree.Relation) -> str:
    given = f"({', '.join(map(shown, relation.values))})" if relation.value is None else shown(relation.value)
    return f"({', '.join(relation.names)}) {relation.operator} {given}"


def tuple_width(expected: int, given: tree.TupleLiteral) -> InvalidRequest:
    return InvalidRequest(
        f"Expected {expected} elements in value tuple, but got {len(given.items)}: {shown(given)}"
    )
