"""Owns the judgement of a failed test: which thing it needs is missing, or is something wrong?

Invariant: the first rule that matches decides, those on the error's text before those on the test's name;
what no rule matches counts as a defect of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

DEFECT: Final = "an answer differs"


class Rule(NamedTuple):
    """`missing` is True when the test needs something that is not built, or not ours to build."""

    reason: str
    missing: bool
    pattern: re.Pattern[str]


def _rule(reason: str, pattern: str, *, missing: bool = True) -> Rule:
    return Rule(reason, missing, re.compile(pattern, re.IGNORECASE))


INDEXES: Final = "indexes"
VIEWS: Final = "materialized views"
FUNCTIONS: Final = "functions and aggregates of users"
CLUSTERS: Final = "a cluster of another shape or configuration"
_NOT: Final = r"(?:statements )?(?:is|are) not supported"
#: In order; searched in the text that the test failed with.
BY_TEXT: Final = (
    _rule("the server failed", r"code=0000 \[Server error\]", missing=False),
    _rule(INDEXES, rf"(?:CREATE|DROP) (?:CUSTOM )?INDEX {_NOT}"),
    _rule(VIEWS, rf"MATERIALIZED VIEW {_NOT}"),
    _rule(FUNCTIONS, rf"(?:FUNCTION|AGGREGATE) {_NOT}"),
    _rule("lightweight transactions", rf"\(IF\) {_NOT}|conditional batch\S* {_NOT}"),
    _rule("counters", rf"counter (?:columns|batches|updates) {_NOT}"),
    _rule("JSON", rf"JSON {_NOT}"),
    _rule("custom types", r"Unable to parse type ''"),
    _rule("other statements", _NOT),
    _rule(CLUSTERS, r"the cluster is not configured anew|has no attribute 'nodes'|127\.0\.0\.1:9046"),
)
#: In order; searched in the test's name, for tests that swallow the error which would tell.
BY_NAME: Final = (
    _rule(CLUSTERS, r"MisconfiguredAuthenticationTests::"),
    _rule(INDEXES, r"::test_indexes"),
    _rule("a request handler that mirrors payloads", r"custom_payload|test_custom_query_"),
    _rule("traces of replicas (those of coordinators are kept)", r"test_replicas_are_queried"),
)


def judge(test: str, text: str) -> tuple[str, bool]:
    """(reason, missing) of a failed test."""
    found = _first(BY_TEXT, text) or _first(BY_NAME, test)
    return (found.reason, found.missing) if found is not None else (DEFECT, False)


def _first(rules: Iterable[Rule], text: str) -> Rule | None:
    return next((rule for rule in rules if rule.pattern.search(text)), None)
