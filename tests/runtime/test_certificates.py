"""When certificates end: read from real ones, refused when ended, told before."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.node.work.condition_watches import WARNED_BEFORE_S, watch_certificates
from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Tls
from lockstep.runtime.real import Certificate, own_certificate, refuse_ended
from lockstep.runtime.real.certificates import ends_of
from lockstep.runtime.real.family import RealClock
from lockstep.values.errors import ConfigurationError
from tests.server.certificates import Authority

DAY_US = 86_400 * 1_000_000


def by_openssl(certificate: Path) -> str:
    shown = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", str(certificate)],
        check=True, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    text = shown.stdout.strip().removeprefix("notAfter=")
    return datetime.datetime.strptime(f"{text} +0000", "%b %d %H:%M:%S %Y %Z %z").strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def test_the_end_is_the_one_that_openssl_shows(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    # Beyond 2049 times have their long form.
    for name, days in (("soon", 1), ("late", 400), ("ended", -1), ("long", 20_000)):
        certificate, key = authority.issue(name, days)
        found = own_certificate(Tls(str(certificate), str(key)))
        assert (found.file, found.ends) == (str(certificate), by_openssl(certificate))
    chain = tmp_path / "chain.pem"
    chain.write_text((tmp_path / "late.pem").read_text() + (tmp_path / "soon.pem").read_text())
    assert own_certificate(Tls(str(chain), "")).ends == by_openssl(tmp_path / "soon.pem")


def test_an_ended_certificate_is_refused_with_its_date(tmp_path: Path) -> None:
    authority, now_us = Authority(tmp_path), RealClock().wall_us()
    good, ended = (own_certificate(Tls(str(authority.issue(n, d)[0]), "")) for n, d in (("a", 2), ("b", -1)))
    refuse_ended(good, now_us)
    with pytest.raises(ConfigurationError, match=rf"b\.pem expired on {ended.ends}"):
        refuse_ended(ended, now_us)


@given(st.binary(max_size=200))
def test_what_is_no_certificate_is_told_as_such(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError, KeyError)):
        ends_of(data)


def test_files_without_a_certificate_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    for content in ("", "text", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        file.write_text(content)
        with pytest.raises(ConfigurationError, match=r"x\.pem"):
            own_certificate(Tls(str(file), ""))


class Wall:
    def __init__(self) -> None:
        self.now_us = 0

    def wall_us(self) -> int:
        return self.now_us

    def monotonic_s(self) -> float:
        return self.now_us / 1e6


def test_operators_are_told_thirty_days_before() -> None:
    clock, events = Wall(), []

    def log(event: str, **facts: Any) -> None:
        events.append((event, facts.get("subject")))

    conditions = Conditions(clock, log)
    ends_us = 100 * DAY_US
    conditions.watch(watch_certificates(conditions, clock, [Certificate("node.pem", ends_us, "2027-03-01")]))
    assert not conditions.current()
    clock.now_us = ends_us - WARNED_BEFORE_S * 1_000_000
    (told,) = conditions.current()
    assert (told.code, told.subject, told.detail) == (
        "CERTIFICATE_EXPIRES",
        "node.pem",
        "expires on 2027-03-01",
    )
    clock.now_us = ends_us
    assert conditions.current()[0].detail == "expired on 2027-03-01"
    assert events == [("node.condition_began", "node.pem")]
