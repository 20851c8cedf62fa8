"""Owns the reasons of failed tests: what of ours, or of the test, makes them fail.

Invariant: the first rule that matches decides, those on the error's text before those on the test's name;
what no rule matches counts as a defect of ours. A reason is a label: every failed test counts as failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

DEFECT: Final = "an answer differs"
JAVA: Final = "functions written in Java: ours are written in Python"


class Rule(NamedTuple):
    reason: str
    pattern: re.Pattern[str]


def _rule(reason: str, pattern: str) -> Rule:
    return Rule(reason, re.compile(pattern, re.IGNORECASE))


#: In order; searched in the text that the test failed with.
BY_TEXT: Final = (
    _rule("the server failed", r"code=0000 \[Server error\]"),
    _rule(JAVA, r"language 'java' is not"),
    _rule("custom types", r"Unable to parse type ''"),
    _rule("changes of system tables by hand", r"Virtual table \S+ cannot be modified"),
    _rule("statements that are not supported", r"(?:statements )?(?:is|are) not supported"),
    _rule("a cluster that is configured in another way", r"the cluster is not configured anew"),
)
#: In order; searched in the test's name, for tests that swallow the error which would tell.
BY_NAME: Final = (_rule("a cluster whose nodes share an address", r"SingleInterfaceTest::"),)


def judge(test: str, text: str) -> str:
    """The reason of a failed test."""
    return _first(BY_TEXT, text) or _first(BY_NAME, test) or DEFECT


def _first(rules: Iterable[Rule], text: str) -> str:
    return next((rule.reason for rule in rules if rule.pattern.search(text)), "")
