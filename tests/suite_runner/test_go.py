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
    found = read(suite, TOLD, 1)
    assert (found.passed, found.skipped) == (1, 1)
    assert found.failed == (
        ("TestTwo", "two_test.go:7: it | broke"),
        ("TestDocker", "starts a container of Cassandra"),
    )
    text = page([found])
    assert f"| gocql | {suite.version} | 1 | 2 | 1 |" in text
    assert "- `TestTwo`: two_test.go:7: it   broke" in text


def test_a_program_that_ends_early_has_failed() -> None:
    suite = suites([])[1]
    panicked = TOLD + "panic: test timed out after 10m0s\n"
    assert read(suite, panicked, 2).failed[-1] == ("the program itself", "panic: test timed out after 10m0s")
    assert read(suite, "", -9).failed == (("the program itself", "exit code -9"),)
    assert read(suite, "--- PASS: TestOne (0.01s)\n", 1).failed == (("the program itself", "exit code 1"),)
    assert not read(suite, "--- PASS: TestOne (0.01s)\n", 0).failed
