"""Owns the judgement of a failed test: which thing it needs is missing, or is something wrong?

Invariant: the first rule that matches decides; what no rule matches counts as a defect of ours.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DEFECT: Final = "defect: an answer differs"


class Rule(NamedTuple):
    """`missing` is True when the test needs something that is not built, or not ours to build."""

    reason: str
    missing: bool
    text: re.Pattern[str]


def _rule(reason: str, pattern: str, missing: bool = True) -> Rule:
    return Rule(reason, missing, re.compile(pattern, re.IGNORECASE))


_UNSUPPORTED: Final = r"(?:is|are) not supported"
#: In order. Patterns are searched in the error text, which ends with the traceback's last line.
RULES: Final = (
    _rule(
        "defect: the server failed", r"code=0000 \[Server error\]|ServerError|<ErrorMessage code=0000", False
    ),
    _rule("user types", rf"user(?:-defined)? types? {_UNSUPPORTED}|CREATE TYPE.*{_UNSUPPORTED}"),
    _rule("indexes", rf"(?:secondary )?index(?:es)? {_UNSUPPORTED}|CREATE (?:CUSTOM )?INDEX.*{_UNSUPPORTED}"),
    _rule("materialized views", rf"materialized views? {_UNSUPPORTED}"),
    _rule("functions and aggregates of users", rf"(?:functions?|aggregates?) (?:\S+ )?{_UNSUPPORTED}"),
    _rule("lightweight transactions", rf"(?:conditions?|conditional|IF|lightweight).{{0,60}}{_UNSUPPORTED}"),
    _rule("counters", rf"counters? .{{0,40}}{_UNSUPPORTED}"),
    _rule("roles and permissions", rf"(?:role|user|permission|GRANT|auth)\S* .{{0,40}}{_UNSUPPORTED}"),
    _rule("compact storage", r"COMPACT STORAGE"),
    _rule("tracing", r"tracing"),
    _rule("other statements", _UNSUPPORTED),
)


def judge(text: str) -> tuple[str, bool]:
    """(reason, missing) of a failure's text."""
    for rule in RULES:
        if rule.text.search(text):
            return rule.reason, rule.missing
    return DEFECT, False
