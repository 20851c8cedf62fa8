"""How failed logins make later ones wait: the pure machine by tables, then the door itself."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from lockstep.cql.wire import client as wire
from lockstep.server.auth import authentication as login_delays
from lockstep.server.auth.authentication import LoginDelays
from lockstep.values.node_limits import LOGIN_FAILURES_KEPT_MAX, LOGIN_WAIT_S_MAX
from tests.server.parts import CQL_PORT, nodes
from tests.server.wire_client import WireClient


def fail(delays: LoginDelays, role: str, address: str, times: int, now_s: float = 0.0) -> float:
    """Fail one after the other, each when its turn comes; when the last one did."""
    for _ in range(times):
        wait_s = delays.begin(role, address, now_s)
        assert wait_s is not None
        now_s += wait_s
        delays.failed(role, address, now_s)
    return now_s


@pytest.mark.parametrize(
    ("failures", "wait_s"),
    [(0, 0), (1, 0), (3, 0), (4, 0.1), (5, 0.2), (6, 0.4), (8, 1.6), (9, 3.2), (12, 3.2), (100, 3.2)],
)
def test_waits_grow_up_to_a_bound(failures: int, wait_s: float) -> None:
    delays = LoginDelays()
    for _ in range(failures):
        delays.failed("boss", "10.0.0.1", 0.0)
    assert delays.begin("boss", "10.0.0.1", 0.0) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("role", "address", "least_s", "most_s"),
    [
        ("boss", "10.0.0.1", 3.0, 3.2),
        ("boss", "10.0.0.2", 0.1, 0.5),
        ("app", "10.0.0.1", 0.1, 1.0),
        ("app", "10.0.0.2", 0.0, 0.0),
    ],
)
def test_others_hardly_wait_for_who_guesses(role: str, address: str, least_s: float, most_s: float) -> None:
    delays = LoginDelays()
    now_s = fail(delays, "boss", "10.0.0.1", 40)
    found = delays.begin(role, address, now_s)
    assert found is not None and least_s <= found <= most_s + 1e-9


def test_guessing_at_once_is_no_faster_than_one_after_the_other() -> None:
    delays = LoginDelays()
    now_s = fail(delays, "boss", "10.0.0.1", 20)
    waits = [delays.begin("boss", "10.0.0.1", now_s) for _ in range(50)]
    admitted = [wait for wait in waits if wait is not None]
    assert all(b - a == pytest.approx(3.2) for a, b in itertools.pairwise(admitted))
    assert max(admitted) <= LOGIN_WAIT_S_MAX and len(admitted) <= 1 + LOGIN_WAIT_S_MAX / 3.2
    # An hour of it looks at about a thousand passwords.
    tried, now_s = 0, 0.0
    one = LoginDelays()
    while now_s < 3600:
        now_s, tried = fail(one, "boss", "10.0.0.1", 1, now_s), tried + 1
    assert tried < 1200


def test_what_failed_is_forgiven_with_time_and_by_success() -> None:
    delays = LoginDelays()
    now_s = fail(delays, "boss", "10.0.0.1", 12)
    assert delays.begin("boss", "10.0.0.1", now_s + 60) == 0
    now_s = fail(delays, "boss", "10.0.0.1", 8, now_s + 60)
    delays.succeeded("boss", "10.0.0.1")
    assert (delays.begin("boss", "10.0.0.1", now_s) or 0) < 1.6


def test_addresses_of_one_owner_count_as_one() -> None:
    delays = LoginDelays()
    for number in range(20):
        delays.failed("boss", f"2001:db8::{number:x}", 0.0)
    assert delays.begin("boss", "2001:db8::ffff", 0.0) == pytest.approx(3.2)
    assert delays.begin("app", "2001:db8:0:1::1", 0.0) == 0
    delays.failed("boss", "::ffff:10.0.0.9", 0.0)
    assert login_delays._network("::ffff:10.0.0.9") == "10.0.0.9"


def test_what_is_remembered_is_bounded_and_the_latest_stays() -> None:
    delays = LoginDelays()
    for number in range(LOGIN_FAILURES_KEPT_MAX + 100):
        delays.failed(f"role-{number}", "10.0.0.1", 0.0)
    assert delays.remembered <= 3 * LOGIN_FAILURES_KEPT_MAX
    assert (delays.begin("anybody", "10.0.0.1", 0.0) or 0) == pytest.approx(1.0)


def test_the_door_makes_who_guesses_wait_and_lets_the_right_password_in(tmp_path: Path) -> None:
    def log_in(password: str) -> tuple[bool, float]:
        began_s = time.monotonic()
        with WireClient(cluster.members[0].address, CQL_PORT) as client:
            client.startup()
            admitted = isinstance(client.log_in("cassandra", password), wire.AuthSuccess)
        return admitted, time.monotonic() - began_s

    with nodes(tmp_path, 1, auth_authenticator="password") as cluster:
        assert log_in("cassandra")[0]
        tried = [log_in(f"guess {number}") for number in range(7)]
        assert not any(admitted for admitted, _ in tried)
        assert sum(seconds for _, seconds in tried[4:]) >= 0.65
        assert log_in("cassandra")[0]
        assert log_in("cassandra")[1] < 0.1
