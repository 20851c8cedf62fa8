"""CQL text to tokens.

Owns: what a word, a literal and a comment look like. Invariant: tokens cover the text without gaps
(white space and comments aside) or SyntaxError_ is raised. Whether a word is a keyword depends on the
place: it is one where the grammar accepts it there, and else a name unless it is reserved.
"""

from __future__ import annotations

import re
from typing import Final

from lockstep.cql.grammar import RESERVED
from lockstep.values.errors import InvalidRequest, SyntaxError_
from lockstep.values.request_limits import STATEMENT_TOKENS_MAX

_DURATION = (
    r"-?(?:\d+(?i:mo|ms|us|\u00b5s|ns|[ywdhms]))+(?![A-Za-z0-9_])"
    r"|-?P\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}"
    r"|-?P\d+W(?![A-Za-z0-9_])"
    r"|-?P(?=\d|T\d)(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?:\d+H)?(?:\d+M)?(?:\d+S)?)?(?![A-Za-z0-9_])"
)
#: Possessive: a token that does not match behind it is not looked for inside it.
_SPACE = r"(?:\s++|--[^\n]*+|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
_BLANK = re.compile(_SPACE)
_TOKEN = re.compile(
    rf"{_SPACE}(?:"
    r"(?P<STRING>'(?:[^']|'')*')"
    r"|(?P<DOLLARS>\$\$(?:[^$]|\$(?!\$))*\$\$)"
    r'|(?P<QUOTED_NAME>"(?:[^"]|"")*")'
    r"|(?P<UUID>[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"
    r"|(?P<HEX>0[xX][0-9a-fA-F]*)"
    rf"|(?P<DURATION>{_DURATION})"
    r"|(?P<FLOAT>-?\d+(?:\.(?=\.\.)|\.(?!\.)\d*(?:[eE][+-]?\d+)?|[eE][+-]?\d+))"
    r"|(?P<INTEGER>-?\d+)"
    r"|(?P<WORD>[A-Za-z][A-Za-z0-9_]*)"
    r"|(?P<SIGN><=|>=|!=|\+=|-=|\.\.|[;,.:=<>()\[\]{}+*/%?\-]))"
)
#: Words that begin something only in front of these; elsewhere they are names.
_ONLY_BEFORE: Final = {
    "cast": re.compile(r"\s*\("),
    "json": re.compile(r"(?!\s*(?:[,.(]|from\b|as\b))", re.IGNORECASE),
    "distinct": re.compile(r"(?!\s*(?:[,.(]|from\b|as\b))", re.IGNORECASE),
}
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
    tokens = []
    position = 0
    match_at = _TOKEN.match
    while (match := match_at(text, position)) is not None:
        terminal = match.lastgroup
        assert terminal is not None
        start, position = match.span(terminal)
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
        tokens.append(Token(terminal, value, start, position))
        if len(tokens) > STATEMENT_TOKENS_MAX:
            raise InvalidRequest(f"A statement has at most {STATEMENT_TOKENS_MAX} words, signs and literals")
    blank = _BLANK.match(text, position)
    assert blank is not None, "it matches nothing too"
    if blank.end() < len(text):
        raise _bad_character(text, blank.end())
    tokens.append(Token(END, "<EOF>", len(text), len(text)))
    return tokens


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
