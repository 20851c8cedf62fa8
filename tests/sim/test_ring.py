"""The ring's simulation holds where it must, breaks where it must, and finds each planted bug."""

from __future__ import annotations

import functools

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.ring.member import RingMember
from lockstep.ring.ring import Mode
from lockstep.sim.mutants.rings import PLANTS
from lockstep.sim.ring.harness import RingRun, Setting
from lockstep.sim.ring.report import RACES, SOMETIMES, Verdict, check, found
from lockstep.values.errors import ConfigurationError

#: The first seed that finds each bug.
SEEDS: dict[str, int] = {
    "forgets-promises": 1,
    "promises-twice": 1,
    "most-is-all": 1,
    "commits-after-abort": 1,
    "never-asks": 1,
    "forgets-votes": 1,
    "half-is-enough": 1,
    "own-first": 2,
    "lower-ballots": 7,
    "abort-is-local": 11,
    "no-tombstones": 7,
    "content-only": 2,
}
CALM = Setting(Mode.QUORUM, 1)


@functools.cache
def a_hundred_seeds(mode: Mode, aborting: bool) -> Verdict:
    return check(Setting(mode, 1, aborting), 100)


def test_29_a_majority_under_ballots_keeps_one_chain_whatever_operators_abort() -> None:
    verdict = a_hundred_seeds(Mode.QUORUM, True)
    assert verdict.holds and not verdict.failures, verdict.text()
    assert verdict.commits > 400


def test_where_all_accept_careful_operators_keep_one_chain() -> None:
    verdict = a_hundred_seeds(Mode.UNANIMOUS, False)
    assert verdict.holds and not verdict.failures, verdict.text()
    assert verdict.commits > 200


def test_29_where_all_accept_an_operators_abort_is_found_to_race_a_hidden_commit() -> None:
    """Scenario 29: the mode does not promise more, and the run that shows it is repeated exactly."""
    setting = Setting(Mode.UNANIMOUS, 1)
    verdict = check(setting, 60, done=lambda verdict: bool(verdict.failures))
    assert verdict.holds, verdict.text()
    [broken] = verdict.failures
    assert broken.invariant in RACES
    again = RingRun(broken.setting).result()
    assert (again.violation, again.story) == (broken.violation, broken.story)


def test_a_newcomers_hidden_commit_leads_to_two_commits_on_one_ring() -> None:
    """The worse form of the race; most seeds show that an aborted change comes back."""
    result = RingRun(Setting(Mode.UNANIMOUS, 85)).result()
    assert result.invariant == "COMMIT-1", result.violation
    assert not RingRun(Setting(Mode.UNANIMOUS, 85, aborting=False)).result().violation


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "aborting"), [(Mode.QUORUM, True), (Mode.UNANIMOUS, False)])
def test_a_hundred_seeds_meet_all_there_is(mode: Mode, aborting: bool) -> None:
    verdict = a_hundred_seeds(mode, aborting)
    assert verdict.holds and not verdict.missing, verdict.text()


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    result = found(name, 1, SEEDS[name])
    assert result is not None, f"seed {SEEDS[name]} does not find {name} any more"
    assert not RingRun(result.setting).result().violation, "without the bug the seed holds"


def test_each_planted_bug_has_its_seed() -> None:
    assert SEEDS.keys() == PLANTS.keys() and len(PLANTS) >= 6


def test_machines_are_asked_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RingMember] = []

    def asks(member: RingMember) -> None:
        asked.append(member)

    monkeypatch.setattr(RingMember, "validate", asks)
    result = RingRun(CALM).result()
    assert not result.violation and len(asked) == result.steps > 500


def test_an_unsound_machine_fails_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsound(_member: RingMember) -> None:
        raise AssertionError("unsound")

    monkeypatch.setattr(RingMember, "validate", unsound)
    result = RingRun(CALM).result()
    assert result.invariant == "ASSERTION" and "unsound" in result.violation


def test_the_command_tells_what_holds_and_what_is_found() -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(root, ["sim", "ring", *arguments])
        return result.exit_code, result.output

    status, text = run("--seeds", "2")
    assert status == 0 and text.strip().endswith("holds") and "2 seeds from 1 on" in text
    status, text = run("--seeds", "1", "--plant", "promises-twice", "--seed", str(SEEDS["promises-twice"]))
    assert status == 0 and "found with seed" in text
    status, text = run("--seeds", "1", "--plant", "all")
    assert status == 1 and len(text.splitlines()) == len(PLANTS)
    assert "NOT FOUND" in text and "half-is-enough: found with seed 1" in text
    status, text = run("--seeds", "1", "--mode", "unanimous")
    assert status == 1 and "DOES NOT HOLD" in text, "one seed does not show the race"
    status, text = run("--trace", "--seed", "3")
    assert status == 0 and "seed 3 holds" in text and "proposes" in text


def test_an_unknown_bug_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is no planted bug"):
        found("nothing", 1)
    with pytest.raises(ConfigurationError, match="there is no planted bug"):
        check(CALM, 1, "nothing")


def test_the_lists_of_what_must_be_met_name_each_fact_once() -> None:
    assert all(len(names) == len(set(names)) for names in SOMETIMES.values())
