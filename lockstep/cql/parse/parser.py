"""CQL text to a statement: the shift-reduce loop over the grammar's tables.

Invariant: parsing is a function of the text alone, and raises nothing but SyntaxError_ (the text is no
CQL) or InvalidRequest (it is, but Lockstep has no such statement or it is malformed in a way the grammar
does not see). The tables are loaded at the first parse and kept; they never change.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from lockstep.cql.parse import reductions, reductions_ddl, reductions_objects, reductions_roles
from lockstep.cql.parse.grammar import unpacked
from lockstep.cql.parse.grammar_table import PACKED
from lockstep.cql.parse.hidden_passwords import without_passwords
from lockstep.cql.parse.lexer import END, Token, place, terminal_of, tokenize
from lockstep.cql.parse.tree import Bind, Statement
from lockstep.values.errors import InvalidRequest, SyntaxError_
from lockstep.values.limits import CQL_NESTING_MAX

_UNSUPPORTED: Final = re.compile(
    r"\s*+(?P<what>(?:create|drop)\s+trigger)\b",
    re.IGNORECASE,
)
_LITERAL_TERMINALS: Final = frozenset(
    ("STRING", "INTEGER", "FLOAT", "HEX", "UUID", "DURATION", "QUOTED_NAME", "EMPTY_QUOTED_NAME", END)
)
#: Tokens shown before the offending one in an error.
_SNIPPET_TOKENS: Final = 10


class _Rule(msgspec.Struct, frozen=True):
    origin: str
    length: int
    picks: tuple[tuple[int, int], ...]
    handler: Callable[[list[Any]], Any] | None
    name: str
    single: bool
    #: One symbol becomes another one: its value and place stay.
    unit: bool
    #: A repetition, whose elements so far come first. Only the stack knows their list.
    grows: bool


class _Tables(msgspec.Struct, frozen=True):
    literals: dict[str, str]
    start: int
    end: int
    states: list[dict[str, int]]
    rules: list[_Rule]


class Parsed(msgspec.Struct, frozen=True):
    """A statement and the names of its bind markers in order (None for `?`)."""

    statement: Statement
    binds: tuple[str | None, ...]


@functools.lru_cache(maxsize=1)
def _tables() -> _Tables:
    raw = unpacked(PACKED)
    handlers = {
        **reductions.HANDLERS,
        **reductions_ddl.HANDLERS,
        **reductions_objects.HANDLERS,
        **reductions_roles.HANDLERS,
    }
    rules = []
    for origin, length, picks, name in raw["rules"]:
        handler = None
        if name not in ("", "?", "start", "bind_anonymous", "bind_named"):
            handler = handlers.get(name)
            assert handler is not None, f"the grammar's {name} has no handler"
        plain = tuple((index, spliced) for index, spliced in picks)
        single = name == "start" or (name == "?" and len(plain) == 1)
        unit = name == "?" and length == len(plain) == 1 and plain[0] == (0, 0)
        grows = name == "" and bool(plain) and bool(plain[0][1])
        rules.append(_Rule(origin, length, plain, handler, name, single, unit, grows))
    return _Tables(raw["literals"], raw["start"], raw["end"], raw["states"], rules)


def parse(text: str) -> Parsed:
    """Parse one statement (a trailing `;` is allowed)."""
    tokens = tokenize(text)
    binds: list[str | None] = []
    tables = _tables()
    states_of, rules, literals = tables.states, tables.rules, tables.literals
    states: list[int] = [tables.start]
    values: list[Any] = []
    end = tables.end
    for number, token in enumerate(tokens):
        if len(states) > CQL_NESTING_MAX:
            raise InvalidRequest("The statement is nested too deeply")
        row = states_of[states[-1]]
        terminal, value = token.terminal, token.value
        if terminal not in _LITERAL_TERMINALS:
            terminal, value = terminal_of(token, text, literals, row)
        while True:
            action = row.get(terminal)
            if action is None:
                raise _unexpected(text, tokens, number, row, terminal)
            if action >= 0:
                states.append(action)
                values.append(value)
                break
            rule = rules[-1 - action]
            if rule.unit:
                states[-1] = states_of[states[-2]][rule.origin]
                row = states_of[states[-1]]
                continue
            result = _reduce(rule, values, binds)
            if rule.length:
                del states[-rule.length :]
                del values[-rule.length :]
            states.append(states_of[states[-1]][rule.origin])
            values.append(result)
            if terminal == END and states[-1] == end:
                return Parsed(values[-1], tuple(binds))
            row = states_of[states[-1]]
    raise AssertionError("the end token either accepts or fails")


def _reduce(rule: _Rule, values: list[Any], binds: list[str | None]) -> Any:
    base = len(values) - rule.length
    if rule.single:
        return values[base + rule.picks[0][0]]
    picks = rule.picks
    children: list[Any] = []
    if rule.grows:
        # The list so far goes on as the longer one: copied for each element, long ones cost their square.
        children, picks = values[base + picks[0][0]], picks[1:]
    for index, spliced in picks:
        if spliced:
            children.extend(values[base + index])
        else:
            children.append(values[base + index])
    if rule.handler is not None:
        return rule.handler(children)
    if rule.name.startswith("bind_"):
        binds.append(children[0] if children else None)
        return Bind(len(binds) - 1, binds[-1])
    return children


def _unexpected(
    text: str, tokens: list[Token], number: int, row: dict[str, int], terminal: str
) -> SyntaxError_ | InvalidRequest:
    unsupported = _UNSUPPORTED.match(text)
    if unsupported is not None:
        what = " ".join(unsupported["what"].upper().split())
        return InvalidRequest(f"{what} statements are not supported")
    token = tokens[number]
    shown = "<EOF>" if terminal == END else without_passwords(text, token.start, token.end)
    expected = [symbol for symbol in row if symbol.isupper() or symbol == END or symbol.startswith("__ANON")]
    where = place(text, token.start)
    if len(expected) == 1:
        wanted = _shown_terminal(expected[0])
        return SyntaxError_(
            f"{where} mismatched input '{shown}' expecting {wanted}{_snippet(text, tokens, number)}"
        )
    return SyntaxError_(f"{where} no viable alternative at input '{shown}'{_snippet(text, tokens, number)}")


def _shown_terminal(terminal: str) -> str:
    if terminal == END:
        return "EOF"
    for literal, name in _tables().literals.items():
        if name == terminal:
            return f"K_{terminal}" if literal.isalpha() else f"'{literal}'"
    return terminal


def _snippet(text: str, tokens: list[Token], number: int) -> str:
    token = tokens[number]
    if token.terminal == END:
        return ""
    first = max(0, number - _SNIPPET_TOKENS)
    before = without_passwords(text, tokens[first].start, token.start)
    dots_before = "..." if first > 0 else ""
    dots_after = "..." if tokens[number + 1].terminal != END else ""
    return f" ({dots_before}{before}[{without_passwords(text, token.start, token.end)}]{dots_after})"
