"""What a WHERE clause restricts: partition keys, token bounds, clustering and what is left to filter.

Owns: the rules which combinations are allowed, with Cassandra's wording when they are not. Invariant: a
compiled Restrictions is exact: the keys and slices it yields, narrowed by its filters, are the rows asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.cql import tree
from lockstep.cql.catalog import TableShape, cql_name
from lockstep.cql.prepared import Scope
from lockstep.cql.terms import TermPlan, compile_term
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType, TupleType, parse_type
from lockstep.values.errors import InvalidRequest

NEEDS_FILTERING = (
    "Cannot execute this query as it might involve data filtering and thus may have unpredictable "
    "performance. If you want to execute this query despite the performance unpredictability, use "
    "ALLOW FILTERING"
)
_RANGE_OPERATORS = frozenset(("<", "<=", ">", ">="))


class Choice(msgspec.Struct, frozen=True):
    """Values for one column, or (`columns` > 1) tuples for several clustering columns in order.

    `terms` are the alternatives; or `listed` yields a whole list of them. `is_in` tells IN from =.
    """

    names: tuple[str, ...]
    types: tuple[CqlType, ...]
    terms: tuple[TermPlan, ...] = ()
    listed: TermPlan | None = None
    is_in: bool = False


class Bound(msgspec.Struct, frozen=True):
    """A limit on the clustering columns from `first` on; one term a column, or one tuple-valued term."""

    first: int
    terms: tuple[TermPlan, ...]
    inclusive: bool
    whole: TermPlan | None = None
    names: tuple[str, ...] = ()


class Filter(msgspec.Struct, frozen=True):
    """A condition that is checked on rows after the read."""

    column: Column
    type: CqlType
    operator: str
    terms: tuple[TermPlan, ...]
    listed: TermPlan | None = None
    element: TermPlan | None = None


class Restrictions(msgspec.Struct, frozen=True):
    """`partition` has one Choice a key column, or is () when the key is not fixed.

    `tokens`: (operator, term) bounds. `clustering`: choices of a prefix of the clustering columns,
    then optional bounds. `filters`: the rest.
    """

    partition: tuple[Choice, ...] = ()
    tokens: tuple[tuple[str, TermPlan], ...] = ()
    clustering: tuple[Choice, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    filters: tuple[Filter, ...] = ()

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


class _Analysis:
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
        for relation in relations:
            if relation.operator == "!=":
                raise InvalidRequest(f'Unsupported "!=" relation: {relation.names[0]} != ?')
            if relation.shape == "token":
                self.tokens.append(relation)
            elif relation.shape == "tuple":
                self._check_tuple(relation)
                if relation.operator == "=" and isinstance(relation.value, tree.TupleLiteral):
                    self._spread(relation, relation.value)
                else:
                    self.multi.append(relation)
            else:
                self.shape.column(relation.names[0])
                self.single.setdefault(relation.names[0], []).append(relation)

    def _spread(self, relation: tree.Relation, value: tree.TupleLiteral) -> None:
        if len(value.items) != len(relation.names):
            raise _tuple_width(len(relation.names), len(value.items))
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
                    f'Column "{name}" appeared twice in a relation: ({", ".join(relation.names)})'
                )
            if column.position != last + 1 and last >= 0:
                raise InvalidRequest(
                    "Clustering columns must appear in the PRIMARY KEY order in multi-column relations: "
                    f"({', '.join(relation.names)})"
                )
            seen.append(name)
            last = column.position
        if relation.operator not in _RANGE_OPERATORS | {"=", "IN"}:
            raise InvalidRequest(f"{relation.operator} cannot be used for multi-column relations")

    # Partition key

    def partition(self) -> tuple[Choice, ...]:
        keys = self.shape.table.partition_key
        given = [column for column in keys if column.name in self.single]
        if self.tokens:
            if given:
                raise InvalidRequest(
                    "Columns cannot be restricted by both a normal relation and a token relation: "
                    + ", ".join(column.name for column in given)
                )
            return ()
        usable = all(
            relation.operator in ("=", "IN") and relation.shape == "single"
            for column in given
            for relation in self.single[column.name]
        )
        if not usable:
            if self.rule.verb != "SELECT":
                raise InvalidRequest(
                    "Only EQ and IN relation are supported on the partition key "
                    f"(unless you use the token() function) for {self.rule.verb} statements"
                )
            if not self.rule.allow_filtering:
                raise InvalidRequest(
                    "Only EQ and IN relation are supported on the partition key "
                    "(unless you use the token() function or allow filtering)"
                )
        if usable and len(given) == len(keys):
            return tuple(self._choice(column) for column in keys)
        if given and self.rule.verb == "SELECT" and not self.rule.allow_filtering:
            raise InvalidRequest(NEEDS_FILTERING)
        if self.rule.verb != "SELECT":
            missing = ", ".join(column.name for column in keys if column.name not in self.single)
            raise InvalidRequest(f"Some partition key parts are missing: {missing}")
        for column in given:
            self._filter(column)
        return ()

    def token_bounds(self) -> tuple[tuple[str, TermPlan], ...]:
        keys = tuple(column.name for column in self.shape.table.partition_key)
        bounds = []
        for relation in self.tokens:
            for name in relation.names:
                self.shape.column(name)
            if self.rule.verb != "SELECT":
                raise InvalidRequest(
                    f"The token function cannot be used in WHERE clauses for {self.rule.verb} statements"
                )
            if sorted(relation.names) != sorted(keys):
                raise InvalidRequest(
                    "The token() function must be applied to all partition key components or none of them"
                )
            if relation.names != keys:
                raise InvalidRequest(
                    f"The token function arguments must be in the partition key order: {', '.join(keys)}"
                )
            if relation.operator not in _RANGE_OPERATORS | {"="}:
                raise InvalidRequest(f"{relation.operator} cannot be used with the token function")
            assert relation.value is not None
            term = compile_term(relation.value, parse_type("bigint"), "partition key token", self.scope)
            bounds.append((relation.operator, term))
        _check_bounds([operator for operator, _ in bounds], "token(" + ", ".join(keys) + ")")
        return tuple(bounds)

    # Clustering

    def clustering(self) -> tuple[tuple[Choice, ...], Bound | None, Bound | None]:
        columns = self.shape.table.clustering
        multi_at = {self.shape.column(relation.names[0]).position: relation for relation in self.multi}
        if len(multi_at) < len(self.multi):
            return self._multi_bounds()
        choices: list[Choice] = []
        at = 0
        while at < len(columns):
            column = columns[at]
            relations = self.single.get(column.name, ())
            joint = multi_at.get(at)
            if joint is not None and relations:
                raise InvalidRequest(
                    f'Column "{column.name}" cannot be restricted by both a tuple notation inequality and '
                    "a single column inequality"
                )
            if joint is not None:
                if joint.operator not in ("=", "IN"):
                    lower, upper = self._tuple_bounds([joint])
                    self._rest(at + len(joint.names), column.name, sliced=True)
                    return tuple(choices), lower, upper
                choices.append(self._tuple_choice(joint))
                at += len(joint.names)
                continue
            if not relations:
                self._rest(at + 1, column.name, sliced=False)
                return tuple(choices), None, None
            if all(relation.operator in ("=", "IN") and relation.shape == "single" for relation in relations):
                choices.append(self._choice(column))
                at += 1
                continue
            if any(
                relation.operator not in _RANGE_OPERATORS or relation.shape != "single"
                for relation in relations
            ):
                self._rest(at, column.name, sliced=False)
                return tuple(choices), None, None
            lower, upper = self._bounds(column)
            self._rest(at + 1, column.name, sliced=True)
            return tuple(choices), lower, upper
        return tuple(choices), None, None

    def _multi_bounds(self) -> tuple[tuple[Choice, ...], Bound | None, Bound | None]:
        """Two tuple inequalities that begin at one column, behind columns fixed by equality."""
        firsts = {self.shape.column(relation.names[0]).position for relation in self.multi}
        if len(firsts) != 1 or any(relation.operator in ("=", "IN") for relation in self.multi):
            names = ", ".join(self.multi[0].names)
            raise InvalidRequest(
                f"{names} cannot be restricted by more than one relation if it includes an Equal"
            )
        first = firsts.pop()
        columns = self.shape.table.clustering
        choices = []
        for column in columns[:first]:
            if column.name not in self.single:
                raise _gap(self.multi[0].names[0], column.name)
            choices.append(self._choice(column))
        lower, upper = self._tuple_bounds(self.multi)
        width = max(len(relation.names) for relation in self.multi)
        self._rest(first + width, columns[first].name, sliced=True)
        return tuple(choices), lower, upper

    def _rest(self, start: int, stopped_at: str, *, sliced: bool) -> None:
        """Relations on clustering columns that the prefix does not reach must be filtered."""
        for column in self.shape.table.clustering[start:]:
            joint = [relation for relation in self.multi if column.name == relation.names[0]]
            if column.name not in self.single and not joint:
                continue
            if not self.rule.allow_filtering or joint:
                if sliced:
                    raise InvalidRequest(
                        f'Clustering column "{column.name}" cannot be restricted (preceding column '
                        f'"{stopped_at}" is restricted by a non-EQ relation)'
                    )
                if any(r.operator.startswith("CONTAINS") for r in self.single.get(column.name, ())):
                    raise InvalidRequest(NEEDS_FILTERING)
                if column.name == stopped_at:
                    raise InvalidRequest(NEEDS_FILTERING)
                raise _gap(column.name, stopped_at)
            self._filter(column)

    def _choice(self, column: Column) -> Choice:
        relations = self.single[column.name]
        if len(relations) > 1:
            which = "an Equal" if any(relation.operator == "=" for relation in relations) else "a IN"
            raise InvalidRequest(
                f"{column.name} cannot be restricted by more than one relation if it includes {which}"
            )
        relation, kind = relations[0], self.shape.types[column.name]
        if relation.operator not in ("=", "IN"):
            raise InvalidRequest(
                f'Clustering column "{column.name}" is restricted by a non-EQ relation '
                "before a tuple notation"
            )
        if relation.operator == "=":
            assert relation.value is not None
            return Choice(
                (column.name,), (kind,), (compile_term(relation.value, kind, column.name, self.scope),)
            )
        receiver = f"in({column.name})"
        if relation.value is not None:
            listed = compile_term(relation.value, parse_type(f"list<{kind.text}>"), receiver, self.scope)
            return Choice((column.name,), (kind,), listed=listed, is_in=True)
        terms = tuple(compile_term(term, kind, receiver, self.scope) for term in relation.values)
        return Choice((column.name,), (kind,), terms, is_in=True)

    def _tuple_type(self, names: Sequence[str]) -> TupleType:
        kind = parse_type(f"tuple<{', '.join(self.shape.types[name].text for name in names)}>")
        assert isinstance(kind, TupleType)
        return kind

    def _tuple_choice(self, relation: tree.Relation) -> Choice:
        types = tuple(self.shape.types[name] for name in relation.names)
        whole = self._tuple_type(relation.names)
        if relation.operator == "=":
            assert relation.value is not None
            receiver = f"({','.join(relation.names)})"
            term = compile_term(relation.value, whole, receiver, self.scope)
            return Choice(relation.names, types, (term,))
        receiver = f"in({','.join(relation.names)})"
        if relation.value is not None:
            listed = compile_term(relation.value, parse_type(f"list<{whole.text}>"), receiver, self.scope)
            return Choice(relation.names, types, listed=listed, is_in=True)
        alternatives = []
        for value in relation.values:
            if isinstance(value, tree.TupleLiteral) and len(value.items) != len(relation.names):
                raise _tuple_width(len(relation.names), len(value.items))
            alternatives.append(compile_term(value, whole, receiver, self.scope))
        return Choice(relation.names, types, tuple(alternatives), is_in=True)

    def _bounds(self, column: Column) -> tuple[Bound | None, Bound | None]:
        relations, kind = self.single[column.name], self.shape.types[column.name]
        if kind.name == "duration":
            raise InvalidRequest("Slice restrictions are not supported on duration columns")
        _check_bounds([relation.operator for relation in relations], column.name)
        lower = upper = None
        for relation in relations:
            assert relation.value is not None
            term = compile_term(relation.value, kind, column.name, self.scope)
            bound = Bound(column.position, (term,), "=" in relation.operator, names=(column.name,))
            if relation.operator[0] == ">":
                lower = bound
            else:
                upper = bound
        return lower, upper

    def _tuple_bounds(self, relations: Sequence[tree.Relation]) -> tuple[Bound | None, Bound | None]:
        _check_bounds([relation.operator for relation in relations], f"({', '.join(relations[0].names)})")
        lower = upper = None
        for relation in relations:
            first = self.shape.column(relation.names[0]).position
            inclusive = "=" in relation.operator
            value = relation.value
            if isinstance(value, tree.TupleLiteral):
                if len(value.items) != len(relation.names):
                    raise _tuple_width(len(relation.names), len(value.items))
                terms = tuple(
                    compile_term(item, self.shape.types[name], name, self.scope)
                    for name, item in zip(relation.names, value.items, strict=True)
                )
                bound = Bound(first, terms, inclusive, names=relation.names)
            else:
                assert value is not None
                receiver = f"({','.join(relation.names)})"
                whole = compile_term(value, self._tuple_type(relation.names), receiver, self.scope)
                bound = Bound(first, (), inclusive, whole, relation.names)
            if relation.operator[0] == ">":
                lower = bound
            else:
                upper = bound
        return lower, upper

    # Filters

    def _filter(self, column: Column) -> None:
        for relation in self.single[column.name]:
            self.filters.append(self._compiled_filter(column, relation))

    def others(self) -> None:
        """Relations on columns outside the primary key."""
        for name in self.single:
            column = self.shape.column(name)
            if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
                continue
            if self.rule.verb != "SELECT":
                raise InvalidRequest(f"Non PRIMARY KEY columns found in where clause: {name} ")
            self._filter(column)

    def _compiled_filter(self, column: Column, relation: tree.Relation) -> Filter:
        kind, operator, name = self.shape.types[column.name], relation.operator, column.name
        if operator == "LIKE":
            raise InvalidRequest(
                f"LIKE restriction is only supported on properly indexed columns. {name} LIKE is not valid."
            )
        if operator == "IS NOT NULL":
            raise InvalidRequest(f"Unsupported restriction: {name} IS NOT NULL")
        if relation.shape == "element":
            return self._element_filter(column, kind, relation)
        if operator in ("CONTAINS", "CONTAINS KEY"):
            return self._contains_filter(column, kind, relation)
        if kind.is_multicell:
            raise InvalidRequest(
                f"Collection column '{name}' ({kind.text}) cannot be restricted by a '{operator}' relation"
            )
        if operator == "IN":
            if column.kind in (ColumnKind.STATIC, ColumnKind.REGULAR):
                raise InvalidRequest(
                    f"IN predicates on non-primary-key columns ({name}) is not yet supported"
                )
            choice = self._choice(column)
            return Filter(column, kind, "IN", choice.terms, choice.listed)
        if operator in _RANGE_OPERATORS and kind.name == "duration":
            raise InvalidRequest("Slice restrictions are not supported on duration columns")
        assert relation.value is not None
        return Filter(column, kind, operator, (compile_term(relation.value, kind, name, self.scope),))

    def _element_filter(self, column: Column, kind: CqlType, relation: tree.Relation) -> Filter:
        if kind.name != "map":
            raise InvalidRequest(f"Column {column.name} cannot be used as a map")
        if relation.operator != "=":
            raise InvalidRequest("Only EQ relations are supported on map entries")
        assert relation.element is not None and relation.value is not None
        element = compile_term(relation.element, kind.key, f"key({column.name})", self.scope)
        value = compile_term(relation.value, kind.value, f"value({column.name})", self.scope)
        return Filter(column, kind, "ELEMENT", (value,), element=element)

    def _contains_filter(self, column: Column, kind: CqlType, relation: tree.Relation) -> Filter:
        assert relation.value is not None
        if not kind.is_collection:
            raise InvalidRequest(f"Cannot use {relation.operator} on non-collection column {column.name}")
        if relation.operator == "CONTAINS KEY":
            if kind.name != "map":
                raise InvalidRequest(f"Cannot use CONTAINS KEY on non-map column {column.name}")
            member, receiver = kind.key, f"key({column.name})"
        else:
            member = kind.value if kind.name == "map" else kind.element
            receiver = f"value({column.name})"
        term = compile_term(relation.value, member, receiver, self.scope)
        return Filter(column, kind, relation.operator, (term,))


def analyse(shape: TableShape, relations: Sequence[tree.Relation], scope: Scope, rule: Rule) -> Restrictions:
    """Compile a WHERE clause; InvalidRequest when the table cannot answer it."""
    analysis = _Analysis(shape, scope, rule)
    analysis.sort(relations)
    partition = analysis.partition()
    tokens = analysis.token_bounds()
    choices, lower, upper = analysis.clustering()
    analysis.others()
    found = Restrictions(partition, tokens, choices, lower, upper, tuple(analysis.filters))
    if (
        rule.verb == "SELECT"
        and not rule.allow_filtering
        and (found.filters or (found.has_clustering and not partition))
    ):
        raise InvalidRequest(NEEDS_FILTERING)
    return found


def _check_bounds(operators: Sequence[str], what: str) -> None:
    if len(operators) < 2:
        return
    if "=" in operators:
        raise InvalidRequest(f"{what} cannot be restricted by more than one relation if it includes an Equal")
    for sign, edge in ((">", "start"), ("<", "end")):
        if sum(operator[0] == sign for operator in operators) > 1:
            raise InvalidRequest(f"More than one restriction was found for the {edge} bound on {what}")


def _gap(name: str, preceding: str) -> InvalidRequest:
    return InvalidRequest(
        f'PRIMARY KEY column "{cql_name(name)}" cannot be restricted as preceding column '
        f'"{cql_name(preceding)}" is not restricted'
    )


def _tuple_width(expected: int, given: int) -> InvalidRequest:
    return InvalidRequest(f"Expected {expected} elements in value tuple, but got {given}")
