"""What of a statement is hidden before anybody but its sender sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cql.parse.parser import parse, without_passwords
from lockstep.values.errors import InvalidRequest, SyntaxError_


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT 'a' FROM t", "SELECT 'a' FROM t"),
        ("SELECT password FROM t WHERE id = 'a'", "SELECT password FROM t WHERE id = '***'"),
        (
            "CREATE ROLE r WITH PASSWORD = 's' AND LOGIN = true",
            "CREATE ROLE r WITH PASSWORD = '***' AND LOGIN = true",
        ),
        (
            "/* x */ alter  user r with password $$s$$ superuser",
            "/* x */ alter  user r with password '***' superuser",
        ),
        ("CREATE ROLE r WITH HASHED PASSWORD = '$2a$10'", "CREATE ROLE r WITH HASHED PASSWORD = '***'"),
        ("CREATE ROLE r WITH PASSWORD = 's''s", "CREATE ROLE r WITH PASSWORD = '***'"),
        (
            "CREATE ROLE r WITH PASSWORD /* = */ = -- c\n s3cret",
            "CREATE ROLE r WITH PASSWORD /* = */ = -- c\n '***'",
        ),
        ('CREATE ROLE r WITH PASSWORD = "s" AND', "CREATE ROLE r WITH PASSWORD = '***' AND"),
        ("CREATE ROLE r WITH SECRET = 's'", "CREATE ROLE r WITH SECRET = '***'"),
        ("CREATE ROLE r WITH OPTIONS = {'k': 's'}", "CREATE ROLE r WITH OPTIONS = {'***': '***'}"),
        ("CRATE ROLE r WTH PASWORD 's'", "CRATE ROLE r WTH PASWORD '***'"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@given(st.text("CREATROLEPSWD ='$\"/*-;sk\n", max_size=60), st.text("abxyz", min_size=6, max_size=9))
def test_no_statement_about_roles_that_does_not_parse_tells_its_password(noise: str, secret: str) -> None:
    text = f"CREATE ROLE r WITH PASSWORD = '{secret}' {noise}"
    try:
        parse(text)
    except (SyntaxError_, InvalidRequest) as error:
        assert secret not in error.message
    assert secret not in without_passwords(text)
