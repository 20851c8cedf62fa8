"""What the output of Go's tests means."""

from __future__ import annotations

from conformance.go_run import page, read, suites

TOLD = """=== RUN   TestOne
--- PASS: TestOne (0.01s)
=== RUN   TestTwo
=== RUN   TestTwo/part
2026/12/01 noise
    two_test.go:7: it | broke
--- FAIL: TestTwo (0.02s)
    --- FAIL: TestTwo/part (0.02s)
=== RUN   TestDocker
    docker_test.go:49: exit status 125
--- FAIL: TestDocker (0.02s)
=== RUN   TestThree
    three_test.go:9: not here
--- SKIP: TestThree (0.00s)
FAIL
"""


def test_tests_count_without_their_parts_and_failures_say_why() -> None:
    suite = suites(["127.0.0.1"])[0]
    found = read(suite, TOLD)
    assert (found.passed, found.skipped) == (1, 1)
    assert found.failed == (
        ("TestTwo", "two_test.go:7: it | broke"),
        ("TestDocker", "starts a container of Cassandra"),
    )
    text = page([found])
    assert f"| gocql | {suite.version} | 1 | 2 | 1 |" in text
    assert "- `TestTwo`: two_test.go:7: it   broke" in text
