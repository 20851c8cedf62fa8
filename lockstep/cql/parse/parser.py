"""CQL text to tokens and to a statement, by the shift-reduce loop over the grammar's tables; and statements
as they may be shown to others, in traces, logs and errors, without the passwords in them.

Owns: what a word, a literal and a comment look like.

Invariant: parsing is a function of the text alone, and raises nothing but SyntaxError_ (the text is no CQL)
or InvalidRequest (it is, but Lockstep has no such statement or it is malformed in a way the grammar does not
see). The tables are loaded at the first parse and kept; they never change. Tokens cover the text without gaps
(white space and comments aside) or SyntaxError_ is raised. Whether a word is a keyword depends on the place:
it is one where the grammar accepts it there, and else a name unless it is reserved. What could be a password
is hidden whether the statement parses or not; a statement that neither is about roles nor speaks of passwords
is shown as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from lockstep.cql.parse import reductions, reductions_ddl, reductions_objects
from lockstep.cql.parse.grammar import RESERVED, unpacked
from lockstep.cql.parse.grammar_table import PACKED
from lockstep.cql.parse.tree import Bind, Statement
from lockstep.values.errors import InvalidRequest, SyntaxError_
from lockstep.values.limits import CQL_NESTING_MAX
from lockstep.values.node_limits import (
    PLAIN_STATEMENT_CHARACTERS_MAX,
    PLAIN_STATEMENT_TOKENS_MAX,
    STATEMENT_TOKENS_MAX,
)

HIDDEN: Final = "'***'"
_HIDDEN_SPACE: Final = r"(?:\s++|--[^\n]*+|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
#: A string of either form, also one that does not end.
_STRING: Final = r"'(?:[^']|'')*+(?:'|\Z)|\$\$(?:[^$]|\$(?!\$))*+(?:\$\$|\Z)"
#: Statements that give a role its password, whatever the option is called there.
_ABOUT_ROLES: Final = re.compile(
    rf"{_HIDDEN_SPACE}(?:create|alter|add){_HIDDEN_SPACE}(?:role|user)\b", re.IGNORECASE
)
#: Also as part of a word, and with a letter too few.
_SPEAKS: Final = re.compile(r"pas{1,2}w", re.IGNORECASE)
#: Without quotes; elsewhere than in statements about roles it is a password only behind a sign.
_BARE: Final = r"[^\s,;()'\"$=:?]++"


def _secret(bare: str) -> re.Pattern[str]:
    """What follows such a word, with or without a sign between them; else any string."""
    return re.compile(
        rf"pas{{1,2}}w\w*+{_HIDDEN_SPACE}(?:[=:]{_HIDDEN_SPACE}(?P<given>{_STRING}|\"[^\"]*+\"?|{_BARE})|(?P<bare>{bare}))"
        rf"|(?P<string>{_STRING})",
        re.IGNORECASE,
    )


_OF_ROLES: Final = _secret(rf"{_STRING}|{_BARE}")
_ELSEWHERE: Final = _secret(_STRING)


def without_passwords(text: str, start: int = 0, end: int | None = None) -> str:
    """The statement, or its part from `start` to `end`, with HIDDEN in place of what may be a password."""
    end = len(text) if end is None else end
    shown, at = [], start
    for first, last in _spans(text, end):
        if last <= start:
            continue
        assert at <= max(first, start), "what is hidden comes in order, or a part of it would be shown"
        shown += [text[at : max(first, start)], HIDDEN]
        at = last
    return "".join([*shown, text[at:end]])


def _spans(text: str, end: int) -> Iterator[tuple[int, int]]:
    """Where what is hidden begins and ends, in order, as far as `end`."""
    about_roles, spoken = _ABOUT_ROLES.match(text), _SPEAKS.search(text, 0, end)
    if about_roles is None and spoken is None:
        return
    begin = 0 if about_roles is not None or spoken is None else spoken.start()
    for found in (_ELSEWHERE if about_roles is None else _OF_ROLES).finditer(text, begin, end):
        assert found.lastgroup is not None, "each alternative is a group"
        yield found.span(found.lastgroup)


_DURATION = (
    r"-?(?:\d++(?i:mo|ms|us|\u00b5s|ns|[ywdhms]))+(?![A-Za-z0-9_])"
    r"|-?P\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}"
    r"|-?P\d++W(?![A-Za-z0-9_])"
    r"|-?P(?=\d|T\d)(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?:\d+H)?(?:\d+M)?(?:\d+S)?)?(?![A-Za-z0-9_])"
)
#: Digits of a number in a text. What types allow is far less; patterns look at all of them several times.
_DIGITS_MAX: Final = 65_000
#: Possessive: a token that does not match behind it is not looked for inside it.
_SPACE = r"(?:\s++|--[^\n]*+|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*+"
_BLANK = re.compile(_SPACE)
_TOKEN = re.compile(
    rf"{_SPACE}(?:"
    r"(?P<STRING>'[^']*+'(?!'))"
    r"|(?P<DOLLARS>\$\$(?:[^$]++|\$(?!\$))*+\$\$)"
    r'|(?P<QUOTED_NAME>"[^"]*+"(?!"))'
    r"|(?P<DOUBLED>['\"])"
    rf"|(?P<LONG_NUMBER>-?\d{{{_DIGITS_MAX}}})"
    r"|(?P<UUID>[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"
    r"|(?P<HEX>0[xX][0-9a-fA-F]*+)"
    rf"|(?P<DURATION>{_DURATION})"
    r"|(?P<FLOAT>-?\d++(?:\.(?=\.\.)|\.(?!\.)\d*+(?:[eE][+-]?\d++)?|[eE][+-]?\d++))"
    r"|(?P<INTEGER>-?\d++)"
    r"|(?P<WORD>[A-Za-z][A-Za-z0-9_]*+)"
    r"|(?P<SIGN><=|>=|!=|\+=|-=|\.\.|[;,.:=<>()\[\]{}+*/%?\-]))"
)
#: Words that begin something only in front of these; elsewhere they are names.
_ONLY_BEFORE: Final = {
    "cast": re.compile(r"\s*\("),
    "json": re.compile(r"(?!\s*(?:[,.(]|from\b|as\b))", re.IGNORECASE),
    "distinct": re.compile(r"(?!\s*(?:[,.(]|from\b|as\b))", re.IGNORECASE),
}
#: First words of statements that may have STATEMENT_TOKENS_MAX.
_LONG: Final = ("insert", "update", "delete", "begin")
#: Where the first word of a long text is looked for.
_BEGIN_CHARACTERS: Final = 4096
END: Final = "$END"


class Token:
    """One token: its terminal (for a word: WORD until `terminal_of` decides), value and place."""

    __slots__ = ("end", "start", "terminal", "value")

    def __init__(self, terminal: str, value: str, start: int, end: int) -> None:
        self.terminal = terminal
        self.value = value
        self.start = start
        self.end = end


def tokenize(text: str) -> list[Token]:
    """All tokens, then one END token. Literals keep their text; strings are unquoted. InvalidRequest for more
    than can be planned."""
    _require_size(text)
    tokens: list[Token] = []
    position, most = 0, STATEMENT_TOKENS_MAX
    match_at = _TOKEN.match
    while (match := match_at(text, position)) is not None:
        terminal = match.lastgroup
        assert terminal is not None
        start, position = match.span(terminal)
        if terminal == "DOUBLED":
            terminal = "STRING" if text[start] == "'" else "QUOTED_NAME"
            position = _end_of_quoted(text, start)
        elif terminal == "LONG_NUMBER":
            raise InvalidRequest(f"A number has at most {_DIGITS_MAX} digits")
        value = text[start:position]
        if terminal == "STRING":
            value = value[1:-1].replace("''", "'")
        elif terminal == "QUOTED_NAME":
            if value == '""':
                # No rule takes it: nothing has an empty name.
                terminal = "EMPTY_QUOTED_NAME"
            else:
                value = value[1:-1].replace('""', '"')
        elif terminal == "DOLLARS":
            terminal, value = "STRING", value[2:-2]
        if not tokens and value.lower() not in _LONG:
            most = PLAIN_STATEMENT_TOKENS_MAX
        tokens.append(Token(terminal, value, start, position))
        if len(tokens) > most:
            raise InvalidRequest(f"A statement of this kind has at most {most} words, signs and literals")
    blank = _BLANK.match(text, position)
    assert blank is not None, "it matches nothing too"
    if blank.end() < len(text):
        raise _bad_character(text, blank.end())
    tokens.append(Token(END, "<EOF>", len(text), len(text)))
    return tokens


def _require_size(text: str) -> None:
    """InvalidRequest, before anything is read, for a long text that does not begin as a change of rows."""
    if len(text) <= PLAIN_STATEMENT_CHARACTERS_MAX:
        return
    begin = text[:_BEGIN_CHARACTERS]
    blank = _BLANK.match(begin)
    assert blank is not None, "it matches nothing too"
    if not begin[blank.end() :].lower().startswith(_LONG):
        raise InvalidRequest(
            f"A statement of this kind has at most {PLAIN_STATEMENT_CHARACTERS_MAX} characters"
        )


def _end_of_quoted(text: str, start: int) -> int:
    """Behind the quote that ends what begins at `start`; a doubled one does not. Looked for one by one: a
    pattern would keep other threads waiting until it has seen them all."""
    quote, at = text[start], start + 1
    while (end := text.find(quote, at)) >= 0:
        if text[end + 1 : end + 2] != quote:
            return end + 1
        at = end + 2
    raise _bad_character(text, start)


def terminal_of(
    token: Token, text: str, literals: dict[str, str], accepted: dict[str, int]
) -> tuple[str, str]:
    """Terminal and value of a word or sign, where the grammar accepts `accepted`."""
    value = token.value
    if token.terminal == "SIGN":
        return literals.get(value, value), value
    word = value.lower()
    keyword = literals.get(word)
    if keyword is not None and keyword in accepted:
        guard = _ONLY_BEFORE.get(word)
        if guard is None or guard.match(text, token.end):
            return keyword, value
    if word in RESERVED:
        return keyword if keyword is not None else word.upper(), value
    return "NAME", word


def place(text: str, position: int) -> str:
    """`line L:C` of a position, lines from 1, columns from 0."""
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1)
    return f"line {line}:{column}"


def _bad_character(text: str, position: int) -> SyntaxError_:
    character = text[position]
    if character in "'\"" or text.startswith("$$", position):
        return SyntaxError_(f"{place(text, len(text))} mismatched character '<EOF>' expecting '{character}'")
    return SyntaxError_(f"{place(text, position)} no viable alternative at character '{character}'")


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
        **reductions_objects.ROLE_HANDLERS,
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
                assert len(values) == 1, "a text is one statement"
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
