"""What is done to the copy of cqlsh's tests."""

from __future__ import annotations

from conformance.cqlsh_run import in_python


def test_functions_in_java_are_put_into_python_and_nothing_else_is_touched() -> None:
    given = (
        "CREATE FUNCTION a (x double) RETURNS text\n    LANGUAGE java\n    AS 'return \"Word\";';\n"
        "CREATE FUNCTION b (current int, candidate int) RETURNS int LANGUAGE java\n"
        "    AS 'return current == null ? candidate : Math.max(current, candidate);' ;\n"
        "INSERT INTO t (a) VALUES ('LANGUAGE java');\n"
    )
    assert in_python(given) == (
        "CREATE FUNCTION a (x double) RETURNS text\n    LANGUAGE python AS 'return \"Word\"';\n"
        "CREATE FUNCTION b (current int, candidate int) RETURNS int "
        "LANGUAGE python AS 'return candidate if current is None else max(current, candidate)' ;\n"
        "INSERT INTO t (a) VALUES ('LANGUAGE java');\n"
    )
