"""Replicas that lag as commands tell them, against an admin API of canned answers."""

from __future__ import annotations

import json
from typing import Any

from .test_loads import ask

AWAY = {
    "placement_group": 1,
    "last_token": 5,
    "node": 3,
    "alive": False,
    "heard": True,
    "lacks": 40,
    "lacks_bytes": 8000,
    "lacks_s": 75,
    "is_lacked": 0,
    "left_s": None,
}
FETCHES = {**AWAY, "node": 2, "alive": True, "lacks": 3, "lacks_bytes": 600, "is_lacked": 2, "left_s": 9}
ALIKE = {**AWAY, "node": 2, "alive": True, "lacks": 0, "lacks_bytes": 0, "lacks_s": None}


def told(*lags: dict[str, Any]) -> dict[str, Any]:
    counts = {"ranges": 4, "entries": 43, "entry_bytes": 8600, "reconciled": 7, "pulled": 1}
    return {"GET /v1/reconcile": {"schema": "reconcile/1", "node": 1, **counts, "lags": list(lags)}}


def test_status_shows_each_replica() -> None:
    result, _ = ask(told(AWAY, FETCHES), "reconcile", "status")
    assert "43 mutations" in result.stdout and "4 tracked ranges" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.split()[:1] in (["2"], ["3"])]
    assert rows[0][:4] == ["2", "yes", "1", "3"] and rows[1][:4] == ["3", "no", "1", "40"]
    result, _ = ask(told(AWAY), "reconcile", "status", "-o", "json")
    assert json.loads(result.stdout)["lags"][0]["lacks_s"] == 75


def test_what_is_in_cohorts_and_what_is_got_is_said() -> None:
    canned = told(AWAY)
    canned["GET /v1/reconcile"] |= {"in_cohorts": 12, "getting": 2}
    result, _ = ask(canned, "reconcile", "status")
    assert "12 in its tables alone" in result.stdout and "what it missed of 2 ranges" in result.stdout


def test_witnesses_and_what_one_keeps_are_said() -> None:
    canned = told(AWAY, {**ALIKE, "witness": True})
    canned["GET /v1/reconcile"] |= {"witnessed": 20, "witness_bytes": 4096, "witness_bytes_max": 1 << 34}
    result, _ = ask(canned, "reconcile", "status")
    assert "20 of them (4.0 KiB of at most 16.0 GiB) as a witness" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.split()[:1] in (["2"], ["3"])]
    assert [row[-1] for row in rows] == ["1", "0"]


def test_why_says_for_whom_and_since_when() -> None:
    result, _ = ask(told(AWAY, FETCHES), "reconcile", "why")
    assert "40 mutations are kept for node 3, the oldest for 75 s: it seems dead" in result.stdout
    assert "kept for node 2" in result.stdout and "it is fetching them" in result.stdout
    assert "node 2 holds 2 mutations that the asked node lacks" in result.stdout
    assert "range up to 5: 40 mutations" in result.stdout
    result, _ = ask(told({**AWAY, "table": "shop.t"}), "reconcile", "why")
    assert "tablet of shop.t up to 5: 40 mutations are kept for node 3" in result.stdout
    result, _ = ask(told(ALIKE), "reconcile", "why")
    assert "every replica holds the same" in result.stdout


def test_an_audit_names_what_differs_and_whom_it_could_not_ask() -> None:
    path, counts = "POST /v1/reconcile/audit", {"schema": "reconcile-audit/1", "node": 1, "ranges": 4}
    result, _ = ask({path: {**counts, "compared": 80}}, "reconcile", "audit")
    assert result.exit_code == 0 and "80 entries of 4 ranges compared, 0 differ" in result.stdout
    one = {"placement_group": 1, "last_token": 5, "node": 2, "given_by": 3, "start": 1, "offset": 17}
    silent = [{"node": 3, "reason": "it cannot be reached"}]
    found = {**counts, "compared": 80, "ended": False, "differing": [one], "silent": silent}
    result, _ = ask({path: found}, "reconcile", "audit")
    assert result.exit_code == 1
    assert "mutation 17 of node 3, log 1, is another one at node 2" in result.stdout
    assert "node 3 was not compared with: it cannot be reached" in result.stdout
    assert "not all were compared" in result.stdout
    for more in ({"silent": silent}, {"ended": False}):
        result, _ = ask({path: {**counts, "compared": 80, **more}}, "reconcile", "audit")
        assert result.exit_code == 6, "what was not compared may differ"


def test_watch_ends_when_nobody_lacks_anything_or_after_its_lines() -> None:
    result, _ = ask(told(ALIKE), "reconcile", "watch")
    assert "nobody lacks anything" in result.stdout
    result, _ = ask(told(AWAY), "reconcile", "watch", "--every", "0.1", "--lines", "2")
    assert result.stdout.count("node 3 lacks 40") == 2


def test_who_is_not_heard_of_is_not_said_to_hold_the_same() -> None:
    """As a node that is cut off sees the others."""
    silent = {**ALIKE, "alive": False}
    for lag in (silent, {**ALIKE, "heard": False}):
        result, _ = ask(told(lag), "reconcile", "why")
        assert "node 2 is not heard of" in result.stdout and "holds the same" not in result.stdout
        result, _ = ask(told(lag), "reconcile", "watch", "--every", "0.1", "--lines", "2")
        assert result.stdout.count("node 2 is not heard of") == 2
        assert "nobody lacks anything" not in result.stdout
