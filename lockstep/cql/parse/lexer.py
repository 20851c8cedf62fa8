"""CQL text to tokens.

Owns: what a word, a literal and a comment look like. Invariant: tokens cover the text without gaps
(white space and comments aside) or SyntaxError_ is raised. Whether a word is a keyword depends on the
place: it is one where the grammar accepts it there, and else a name unless it is reserved.
"""

from __future__ import annotations

import re
from typing import Final

from lockstep.cql.parse.grammar import RESERVED
from lockstep.values.errors import InvalidRequest, SyntaxError_
from lockstep.values.request_limits import (
    PLAIN_STATEMENT_CHARACTERS_MAX,
    PLAIN_STATEMENT_TOKENS_MAX,
    STATEMENT_TOKENS_MAX,
)

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
