"""Terms with their types: what a literal, a bind variable or a call gives, as serialised bytes.

Owns: the rules which literal fits which type. Invariant: a compiled term yields bytes that are valid and
canonical for the type it was compiled for, None for null, or UNSET for an unset bind variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.literals import FITTING, literal_bytes, natural_type, shown
from lockstep.cql.compile.prepared import Scope
from lockstep.cql.functions.arithmetic import TIMES, cast_function, negation, operand_types, operation
from lockstep.cql.functions.native import family, overloads
from lockstep.cql.functions.signatures import Function, Known
from lockstep.cql.functions.user_functions import choose_own, overloads_in
from lockstep.cql.parse import tree
from lockstep.cql.wire.messages import UNSET, Value
from lockstep.schema.clustering import derived_key
from lockstep.schema.types import (
    CollectionType,
    CqlType,
    TupleType,
    UserDefinedType,
    VectorType,
    parse_type,
)
from lockstep.schema.types.numbers import int_bytes
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import CQL_EXPRESSION_DEPTH_MAX

Values = Sequence[Value]


class TermPlan:
    """A compiled term. `constant` says that `get` ignores its arguments."""

    constant = False

    def get(self, values: Values, context: Context) -> Value:
        raise AssertionError("abstract")


class Constant(TermPlan):
    constant = True

    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def get(self, values: Values, context: Context) -> Value:
        return self.data


class Marker(TermPlan):
    """A bind variable; validates what the client sent."""

    def __init__(self, index: int, kind: CqlType) -> None:
        self.index = index
        self.kind = kind
        self.validate = kind.validate
        self.canonical = kind.canonical if needs_canonical(kind) else None

    def get(self, values: Values, context: Context) -> Value:
        value = values[self.index]
        if isinstance(value, bytes):
            self.validate(value)
            if self.canonical is not None:
                return self.canonical(value)
        return value


class Computed(TermPlan):
    """A term that has to be worked out for every execution."""

    def __init__(self, compute: Callable[[Values, Context], Value]) -> None:
        self.get = compute  # type: ignore[assignment,method-assign]


def needs_canonical(kind: CqlType) -> bool:
    return kind.is_collection or isinstance(kind, TupleType | VectorType)


def compile_term(term: tree.Term, kind: CqlType, receiver: str, scope: Scope) -> TermPlan:
    """Compile `term` for a place of type `kind`; `receiver` names the place in errors and bind specs.

    InvalidRequest when the term cannot be of that type.
    """
    if isinstance(term, tree.Literal):
        return Constant(literal_bytes(term, kind, receiver))
    if isinstance(term, tree.Bind):
        scope.bind(term.index, receiver, kind)
        return Marker(term.index, kind)
    if isinstance(term, tree.Call):
        plan, returned = compile_call(term, scope, kind)
        if not assignable_type(returned, kind):
            raise InvalidRequest(
                f"Type error: cannot assign result of function {term.name} (type {returned.text}) "
                f"to {receiver} (type {kind.text})"
            )
        return _as_stored(plan, returned, kind)
    if isinstance(term, tree.TypeHint):
        hinted = scope.type_named(term.type)
        if not assignable_type(hinted, kind):
            raise InvalidRequest(f"Cannot assign value {term.type} to {receiver} of type {kind.text}")
        return _as_stored(compile_term(term.term, hinted, receiver, scope), hinted, kind)
    if isinstance(term, tree.Arithmetic | tree.Negation | tree.Cast):
        if isinstance(term, tree.Cast):
            plan, returned = _cast(term, scope, receiver)
        else:
            plan, returned = _computation(term, scope, kind, receiver)
        if not assignable_type(returned, kind):
            raise InvalidRequest(
                f"Type error: cannot assign result of {shown(term)} (type {returned.text}) "
                f"to {receiver} (type {kind.text})"
            )
        return _as_stored(plan, returned, kind)
    if isinstance(term, tree.ListLiteral):
        return _list_literal(term, kind, receiver, scope)
    if isinstance(term, tree.SetLiteral):
        return _set_literal(term, kind, receiver, scope)
    if isinstance(term, tree.MapLiteral):
        return _map_literal(term, kind, receiver, scope)
    if isinstance(term, tree.TupleLiteral):
        return _tuple_literal(term, kind, receiver, scope)
    if isinstance(term, tree.UserLiteral):
        return user_literal(term, kind, receiver, scope)
    raise InvalidRequest(f"Invalid term for {receiver} of type {kind.text}")


def compile_call(term: tree.Call, scope: Scope, wanted: CqlType | None) -> tuple[TermPlan, CqlType]:
    """A function call and the type it returns; `wanted` chooses between overloads that both fit."""
    if scope.depth >= CQL_EXPRESSION_DEPTH_MAX:
        raise InvalidRequest("The statement is nested too deeply")
    scope.depth += 1
    found = _compiled_call(term, scope, wanted)
    scope.depth -= 1
    assert scope.depth >= 0, "each call that is compiled was begun"
    return found


def _compiled_call(term: tree.Call, scope: Scope, wanted: CqlType | None) -> tuple[TermPlan, CqlType]:
    if term.name == "token" and term.keyspace in (None, "system"):
        return _token_call(term, scope), parse_type("bigint")
    found = family(term.keyspace, term.name)
    if found is not None:
        function = found.function([known_type(argument, scope) for argument in term.arguments], wanted)
    else:
        function = choose_overload(term, wanted, lambda argument, kind: fits(argument, kind, scope), scope)
    plans = [
        compile_term(argument, kind, f"arg{index}({function.name})", scope)
        for index, (argument, kind) in enumerate(zip(term.arguments, function.arguments, strict=True))
    ]
    return _applied(function, plans), function.returns


def known_type(term: tree.Term, scope: Scope) -> Known:
    """The type that a term has by itself; None when its place decides."""
    if isinstance(term, tree.Literal):
        return natural_type(term)
    if isinstance(term, tree.TypeHint):
        return scope.type_named(term.type)
    if isinstance(term, tree.TupleLiteral) and len(term.items) == 1:
        return known_type(term.items[0], scope)
    if isinstance(term, tree.Cast):
        return scope.type_named(term.type)
    if not isinstance(term, tree.Call | tree.Arithmetic | tree.Negation):
        return None
    if is_loose(term):
        return None
    kind = scope.types.get(term)
    if kind is None:
        if isinstance(term, tree.Call):
            _, kind = compile_call(term, scope, None)
        else:
            _, kind = _computation(term, scope, None, "")
        scope.types[term] = kind
    return kind


def is_loose(term: tree.Term) -> bool:
    """Whether a number can take any numeric type that its place expects."""
    if isinstance(term, tree.Literal):
        return term.kind in ("integer", "float", "null")
    if isinstance(term, tree.Arithmetic):
        return is_loose(term.left) and is_loose(term.right)
    if isinstance(term, tree.Negation):
        return is_loose(term.term)
    if isinstance(term, tree.TupleLiteral) and len(term.items) == 1:
        return is_loose(term.items[0])
    return isinstance(term, tree.Bind)


#: As markers of operations are named.
_OPERATION_NAMES = {"+": "_add", "-": "_substract", "*": "_multiply", "/": "_divide", "%": "_modulo"}


def _computation(
    term: tree.Arithmetic | tree.Negation, scope: Scope, wanted: Known, receiver: str
) -> tuple[TermPlan, CqlType]:
    """Arithmetic without columns, and its type."""
    if isinstance(term, tree.Negation):
        kind = wanted if is_loose(term.term) and wanted is not None else known_type(term.term, scope)
        if kind is None:
            raise InvalidRequest(f"Cannot infer type for {shown(term)} (try using a cast)")
        function = negation(kind, shown(term.term))
        plan = compile_term(term.term, kind, "arg0(system._negate)", scope)
        return _applied(function, [plan]), function.returns
    sides = (term.left, term.right)
    known = (known_type(term.left, scope), known_type(term.right, scope))
    check_operands(term, known, wanted)
    left, right = operand_types(
        shown(term),
        known,
        (is_loose(term.left), is_loose(term.right)),
        wanted,
    )
    function = operation(term.operator, left, right, (shown(term.left), shown(term.right)))
    plans = [
        compile_term(side, kind, f"arg{index}(system.{_OPERATION_NAMES[term.operator]})", scope)
        for index, (side, kind) in enumerate(zip(sides, (left, right), strict=True))
    ]
    return _applied(function, plans), function.returns


def _cast(term: tree.Cast, scope: Scope, receiver: str) -> tuple[TermPlan, CqlType]:
    """CAST of a term without columns, and the type it is cast to."""
    source, target = known_type(term.term, scope), scope.type_named(term.type)
    if source is None:
        raise InvalidRequest(
            f"Ambiguous call to function system.cast_as_{target.name}: use type casts to disambiguate"
        )
    function = Function("cast", (source,), target, cast_function(source, target, shown(term.term)))
    return _applied(function, [compile_term(term.term, source, receiver, scope)]), target


def choose_overload(
    term: tree.Call, wanted: CqlType | None, fit: Callable[[tree.Term, CqlType], int], scope: Scope
) -> Function:
    """The overload whose argument types fit best; InvalidRequest when none does."""
    known = overloads(term.keyspace, term.name)
    own = overloads_in(scope.space_of(term.keyspace, term.name), term.name)
    if own:
        return choose_own(term.name, (*known, *own), term.arguments, wanted, fit)
    if not known:
        raise InvalidRequest(f"Unknown function '{term.name}'")
    _check_told_apart(term, known, wanted, fit)
    best, best_score = None, -1
    for function in known:
        if len(function.arguments) != len(term.arguments):
            continue
        scores = [
            fit(argument, kind) for argument, kind in zip(term.arguments, function.arguments, strict=True)
        ]
        if all(scores):
            score = 2 * sum(scores) + (wanted is not None and function.returns == wanted)
            if score > best_score:
                best, best_score = function, score
    if best is None:
        wrong = len(known[0].arguments) != len(term.arguments)
        if wrong and len(known) == 1:
            raise InvalidRequest(
                f"Invalid number of arguments in call to function {term.name}: "
                f"{len(known[0].arguments)} required but {len(term.arguments)} provided"
            )
        raise InvalidRequest(f"Invalid call to function {term.name}, none of its type signatures match")
    return best


def _check_told_apart(
    term: tree.Call,
    known: Sequence[Function],
    wanted: CqlType | None,
    fit: Callable[[tree.Term, CqlType], int],
) -> None:
    """InvalidRequest when a bind variable of no type leaves open which overload is meant."""
    if not any(isinstance(argument, tree.Bind) for argument in term.arguments):
        return
    possible = [
        function
        for function in known
        if len(function.arguments) == len(term.arguments)
        and (wanted is None or function.returns == wanted)
        and all(map(fit, term.arguments, function.arguments))
    ]
    if len(possible) > 1:
        signatures = ", ".join(
            f"system.{one.name} : ({', '.join(kind.text for kind in one.arguments)}) -> {one.returns.text}"
            for one in possible
        )
        raise InvalidRequest(
            f"Ambiguous call to function {term.name} (can be matched by following signatures: {signatures}): "
            "use type casts to disambiguate"
        )


def check_operands(term: tree.Arithmetic, known: tuple[Known, Known], wanted: Known) -> None:
    """InvalidRequest when a bind variable of no type leaves open which operation is meant: one of numbers or
    texts, for those of times with a duration are told apart by the other side."""
    sides = (term.left, term.right)
    if not any(isinstance(side, tree.Bind) for side in sides):
        return
    left, right = known
    if left is not None and left.name in TIMES and (left.name == "date" or wanted is not None):
        return
    if right is not None and right.name == "duration" and wanted is not None and wanted.name in TIMES:
        return
    raise InvalidRequest(
        f"Ambiguous '{term.operator}' operation with args {shown(term.left)} and {shown(term.right)}: "
        "use type hint to disambiguate, example '(int) ?'"
    )


def _applied(function: Function, plans: Sequence[TermPlan]) -> TermPlan:
    def compute(values: Values, context: Context) -> bytes | None:
        arguments: list[Value] = []
        for plan in plans:
            argument = plan.get(values, context)
            if argument is UNSET:
                raise InvalidRequest(f"Invalid unset value for argument of function {function.name}")
            if argument is None and not function.takes_null:
                return None
            arguments.append(argument)
        return function.run(arguments, context)

    return Computed(compute)


def _token_call(term: tree.Call, scope: Scope) -> TermPlan:
    kinds, of_key = scope.partition_types, scope.token_of
    if len(term.arguments) != len(kinds):
        raise InvalidRequest(
            f"Invalid number of arguments in call to function token: "
            f"{len(kinds)} required but {len(term.arguments)} provided"
        )
    plans = [
        compile_term(argument, kind, f"arg{index}(token)", scope)
        for index, (argument, kind) in enumerate(zip(term.arguments, kinds, strict=True))
    ]

    def compute(values: Values, context: Context) -> bytes:
        parts = []
        for plan in plans:
            part = plan.get(values, context)
            if not isinstance(part, bytes):
                raise InvalidRequest("Invalid null or unset value in call to function token")
            parts.append(part)
        return of_key(derived_key(parts)).to_bytes(8, "big", signed=True)

    return Computed(compute)


#: For each type others whose bytes mean the same in it, or (for varint) the same behind redundant ones.
_READ_AS = {
    "text": ("ascii",),
    "uuid": ("timeuuid",),
    "timestamp": ("bigint",),
    "bigint": ("timestamp",),
    "varint": ("int", "bigint", "timestamp"),
    "date": ("int",),
    "time": ("bigint",),
}


def assignable_type(given: CqlType, wanted: CqlType) -> bool:
    """Whether a value of type `given` may stand where `wanted` is expected."""
    if given == wanted or wanted.name == "blob":
        return True
    if given.name in _READ_AS.get(wanted.name, ()):
        return True
    return _can_be_unfrozen(given) and _can_be_unfrozen(wanted) and _bare(given.text) == _bare(wanted.text)


def _as_stored(plan: TermPlan, given: CqlType, wanted: CqlType) -> TermPlan:
    """What is assignable as the type wanted keeps it: varints are told from each other by their bytes."""
    if wanted.name != "varint" or given.name == "varint":
        return plan

    def compute(values: Values, context: Context) -> Value:
        found = plan.get(values, context)
        return int_bytes(int.from_bytes(found, "big", signed=True)) if isinstance(found, bytes) else found

    return Computed(compute)


def _can_be_unfrozen(kind: CqlType) -> bool:
    return kind.is_collection or isinstance(kind, UserDefinedType)


def _bare(text: str) -> str:
    return text[len("frozen<") : -1] if text.startswith("frozen<") else text


def fits(term: tree.Term, kind: CqlType, scope: Scope) -> int:
    """2 when the term is exactly of the type, 1 when it can be, 0 when not (binds can be anything)."""
    if isinstance(term, tree.Literal):
        if term.kind == "null":
            return 1
        natural = {"string": "text", "hex": "blob", "float": "double"}.get(term.kind, term.kind)
        if natural == "integer":
            natural = "int"
        return 2 if natural == kind.name else int(kind.name in FITTING[term.kind])
    if isinstance(term, tree.Bind):
        return 1
    if isinstance(term, tree.TypeHint | tree.Cast):
        hinted = scope.type_named(term.type)
        return 2 if hinted == kind else int(assignable_type(hinted, kind))
    return int(_parts_fit(term, kind, scope))


def _parts_fit(term: tree.Term, kind: CqlType, scope: Scope) -> bool:
    """Whether a literal with parts, if it is one, can be of the type."""
    if isinstance(term, tree.ListLiteral):
        if not isinstance(kind, CollectionType | VectorType) or kind.name not in ("list", "vector"):
            return False
        return all(fits(item, kind.element, scope) for item in term.items)
    if isinstance(term, tree.SetLiteral):
        if kind.name == "set":
            return all(fits(item, kind.element, scope) for item in term.items)
        return kind.name == "map" and not term.items
    if isinstance(term, tree.MapLiteral):
        if kind.name != "map":
            return False
        return all(fits(key, kind.key, scope) and fits(part, kind.value, scope) for key, part in term.entries)
    if isinstance(term, tree.UserLiteral):
        return kind.name == "udt"
    if isinstance(term, tree.TupleLiteral) and isinstance(kind, TupleType) and kind.name != "udt":
        pairs = zip(term.items, kind.elements, strict=False)
        return len(term.items) <= len(kind.elements) and all(fits(*pair, scope) for pair in pairs)
    if isinstance(term, tree.TupleLiteral):
        return len(term.items) == 1 and fits(term.items[0], kind, scope) > 0
    return True


def _assemble(
    plans: Sequence[TermPlan], join: Callable[[list[bytes]], bytes], what: str = "collections"
) -> TermPlan:
    """A collection of compiled parts: constant when all parts are."""

    def compute(values: Values, context: Context) -> bytes:
        parts = []
        for plan in plans:
            part = plan.get(values, context)
            if part is None:
                raise InvalidRequest(f"null is not supported inside {what}")
            if part is UNSET:
                raise InvalidRequest(f"unset value is not supported inside {what}")
            parts.append(part)
        return join(parts)

    if all(isinstance(plan, Constant) for plan in plans):
        parts = [plan.data for plan in plans if isinstance(plan, Constant) and plan.data is not None]
        if len(parts) != len(plans):
            raise InvalidRequest(f"null is not supported inside {what}")
        return Constant(join(parts))
    return Computed(compute)


def _list_literal(term: tree.ListLiteral, kind: CqlType, receiver: str, scope: Scope) -> TermPlan:
    if isinstance(kind, VectorType):
        if len(term.items) != kind.dimensions:
            raise InvalidRequest(
                f"Invalid vector literal for {receiver} of type {kind.text}; "
                f"expected {kind.dimensions} elements, but given {len(term.items)}"
            )
    elif kind.name != "list":
        raise InvalidRequest(f"Invalid list literal for {receiver} of type {kind.text}")
    assert isinstance(kind, VectorType | CollectionType)
    inner = f"value({receiver})"
    plans = [_element(item, kind.element, inner, scope, kind.name, receiver) for item in term.items]
    return _assemble(plans, kind.join, "vectors" if isinstance(kind, VectorType) else "collections")


def _set_literal(term: tree.SetLiteral, kind: CqlType, receiver: str, scope: Scope) -> TermPlan:
    if kind.name == "map" and not term.items:
        assert isinstance(kind, CollectionType)
        return Constant(kind.join([]))
    if kind.name != "set":
        raise InvalidRequest(f"Invalid set literal for {receiver} of type {kind.text}")
    assert isinstance(kind, CollectionType)
    inner = f"value({receiver})"
    plans = [_element(item, kind.element, inner, scope, "set", receiver) for item in term.items]
    return _assemble(plans, kind.join)


def _map_literal(term: tree.MapLiteral, kind: CqlType, receiver: str, scope: Scope) -> TermPlan:
    if kind.name != "map":
        raise InvalidRequest(f"Invalid map literal for {receiver} of type {kind.text}")
    assert isinstance(kind, CollectionType)
    plans = []
    for key, value in term.entries:
        plans.append(_element(key, kind.key, f"key({receiver})", scope, "map", receiver))
        plans.append(_element(value, kind.value, f"value({receiver})", scope, "map", receiver))
    return _assemble(plans, kind.join)


def _element(
    term: tree.Term, kind: CqlType, inner: str, scope: Scope, literal: str, receiver: str
) -> TermPlan:
    if not fits(term, kind, scope):
        part = "key" if inner.startswith("key(") else "value"
        raise InvalidRequest(
            f"Invalid {literal} literal for {receiver}: {part} {shown(term)} is not of type {kind.text}"
        )
    return compile_term(term, kind, inner, scope)


def _tuple_literal(term: tree.TupleLiteral, kind: CqlType, receiver: str, scope: Scope) -> TermPlan:
    if not isinstance(kind, TupleType) or isinstance(kind, UserDefinedType):
        if len(term.items) == 1:
            return compile_term(term.items[0], kind, receiver, scope)
        raise InvalidRequest(f"Invalid tuple type literal for {receiver} of type {kind.text}")
    if len(term.items) > len(kind.elements):
        raise InvalidRequest(
            f"Invalid tuple literal for {receiver}: too many elements. "
            f"Type {kind.text} expects {len(kind.elements)} but got {len(term.items)}"
        )
    plans = [
        compile_term(item, element, f"{receiver}[{index}]", scope)
        for index, (item, element) in enumerate(zip(term.items, kind.elements, strict=False))
    ]
    missing: list[bytes | None] = [None] * (len(kind.elements) - len(plans))

    def compute(values: Values, context: Context) -> bytes:
        parts: list[bytes | None] = []
        for plan in plans:
            part = plan.get(values, context)
            if part is UNSET:
                raise InvalidRequest(f"Invalid unset value for tuple field number {len(parts)}")
            parts.append(part)
        return kind.join(parts + missing)

    if all(isinstance(plan, Constant) for plan in plans):
        return Constant(kind.join([plan.data for plan in plans if isinstance(plan, Constant)] + missing))
    return Computed(compute)


def user_literal(term: tree.UserLiteral, kind: CqlType, receiver: str, scope: Scope) -> TermPlan:
    """`{field: value, ...}`: fields that are not named are null."""
    if not isinstance(kind, UserDefinedType):
        raise InvalidRequest(f"Invalid user type literal for {receiver} of type {kind.text}")
    given: dict[str, tree.Term] = {}
    for name, value in term.entries:
        found = kind.field(name)
        if found is None:
            raise InvalidRequest(f"Unknown field '{name}' in value of user defined type {kind.type_name}")
        if not fits(value, found[1], scope):
            raise InvalidRequest(
                f"Invalid user type literal for {receiver}: field {name} is not of type {found[1].text}"
            )
        given[name] = value
    plans = [
        Constant(None) if name not in given else compile_term(given[name], field, f"{receiver}.{name}", scope)
        for name, field in zip(kind.field_names, kind.elements, strict=True)
    ]

    def compute(values: Values, context: Context) -> bytes:
        parts: list[bytes | None] = []
        for plan in plans:
            part = plan.get(values, context)
            if part is UNSET:
                name = kind.field_names[len(parts)]
                raise InvalidRequest(
                    f"Invalid unset value for field '{name}' of user defined type {kind.type_name}"
                )
            parts.append(part)
        return kind.join(parts)

    if all(isinstance(plan, Constant) for plan in plans):
        return Constant(kind.join([plan.data for plan in plans if isinstance(plan, Constant)]))
    return Computed(compute)
