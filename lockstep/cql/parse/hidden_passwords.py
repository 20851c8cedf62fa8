"""Statements as they may be shown to others: in traces, logs and errors, without the passwords in them.

Invariant: what could be a password is hidden whether the statement parses or not; a statement that neither is
about roles nor speaks of passwords is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

HIDDEN: Final = "'***'"
_SPACE: Final = r"(?:\s++|--[^\n]*+|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
#: A string of either form, also one that does not end.
_STRING: Final = r"'(?:[^']|'')*+(?:'|\Z)|\$\$(?:[^$]|\$(?!\$))*+(?:\$\$|\Z)"
#: Statements that give a role its password, whatever the option is called there.
_ABOUT_ROLES: Final = re.compile(rf"{_SPACE}(?:create|alter|add){_SPACE}(?:role|user)\b", re.IGNORECASE)
#: Also as part of a word, and with a letter too few.
_SPEAKS: Final = re.compile(r"pas{1,2}w", re.IGNORECASE)
#: Without quotes; elsewhere than in statements about roles it is a password only behind a sign.
_BARE: Final = r"[^\s,;()'\"$=:?]++"


def _secret(bare: str) -> re.Pattern[str]:
    """What follows such a word, with or without a sign between them; else any string."""
    return re.compile(
        rf"pas{{1,2}}w\w*+{_SPACE}(?:[=:]{_SPACE}(?P<given>{_STRING}|\"[^\"]*+\"?|{_BARE})|(?P<bare>{bare}))"
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
