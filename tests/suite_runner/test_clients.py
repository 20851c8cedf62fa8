"""What the output of a client's program means."""

from __future__ import annotations

from conformance.clients import CHECKS
from conformance.clients_run import page, read

HELD = "version driver 1.2\n" + "".join(f"check {name}\n" for name in CHECKS)


def test_a_client_holds_only_when_it_ended_well_and_checked_everything() -> None:
    held = read("Rust", 0, HELD, "warning: noise\n")
    assert (held.version, held.checks, held.problem) == ("driver 1.2", CHECKS, "")
    assert read("Rust", 0, HELD.replace("check batch\n", ""), "").problem == "not checked: batch"
    assert read("Rust", 1, HELD, "Traceback\nAssertionError: 1\n\n").problem == "AssertionError: 1"
    assert read("Rust", -9, "", "").problem == "exit code -9"


def test_the_page_shows_problems() -> None:
    text = page([read("Rust", 0, HELD, ""), read("Go", 2, "", "a | b")])
    assert "| Rust | driver 1.2 | connect, " in text and "| none |" in text
    assert "| Go | - | - | a \\| b |" in text
