"""Power cuts between two durable steps: those around files that replace others are survived, and bite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cli.sim import Ledger
from lockstep.sim.matrix import cuts
from lockstep.sim.matrix.cuts import Cut, CutResult, run_cut
from lockstep.values.errors import ConfigurationError

#: A choice of places, all of one scenario; `lockstep sim cuts` strikes all.
PLACES = (
    "disk.renamed raft/group-#",
    "disk.removed metadata/log-#",
    "metadata.snapshot.before_rename",
    "disk.synced store/log-#",
)


@pytest.mark.parametrize("label", PLACES)
def test_a_cut_is_survived(label: str) -> None:
    result = run_cut(Cut("metadata", label, 2), 1)
    assert not result.violation, cuts.failure_text(result)


#: Places that two scenarios reach, and how often.
REACHED = {"metadata": {"a": 2, "b": 1}, "lwt": {"a": 9, "c": 5}}


def test_each_place_is_struck_in_the_first_scenario_that_reaches_it_often_enough() -> None:
    names = [cut.name for cut in cuts.every_cut(REACHED)]
    assert names == [
        "lwt:a:5",
        "lwt:c:1",
        "lwt:c:2",
        "lwt:c:5",
        "metadata:a:1",
        "metadata:a:2",
        "metadata:b:1",
    ]


def test_samples_of_several_seeds_strike_every_place_in_every_scenario() -> None:
    drawn = [cuts.drawn_cuts(REACHED, seed, 3) for seed in range(30)]
    assert all(len(set(some)) == 3 for some in drawn)
    assert cuts.drawn_cuts(REACHED, 1, 3) == drawn[1], "the same seed draws the same"
    found = {cut.name for some in drawn for cut in some}
    assert found == {cut.name for cut in cuts.drawn_cuts(REACHED, 1, 99)} > {"lwt:a:1", "metadata:a:1"}


def test_a_place_that_is_never_reached_fails() -> None:
    assert run_cut(Cut("calm", "there is none", 1), 1).invariant == "VACUOUS"


def test_a_name_without_a_cut_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names no cut"):
        cuts.told_story("metadata", 1, 1)


def test_what_was_survived_is_noted_for_the_run_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "survived"
    ledger = Ledger(path, 3)
    assert not ledger.names
    ledger.note("lwt:a b:1")
    assert Ledger(path, 3).names == {"lwt:a b:1"}
    with pytest.raises(ConfigurationError, match="is not of seed 4"):
        Ledger(path, 4)


def test_only_cuts_that_were_not_survived_are_struck_again(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[str] = []

    def spread(work: object, parts: list[object]) -> Iterator[object]:
        for part in parts:
            if isinstance(part, Cut):
                struck.append(part.name)
                yield CutResult(cut=part, seed=1)
            else:
                yield part, REACHED.get(str(part), {})

    monkeypatch.setattr(cuts, "spread", spread)
    results = list(cuts.run_cuts("", 1, 0, print, {"lwt:c:1", "metadata:b:1"}))
    assert struck == [one.cut.name for one in results]
    assert struck == ["lwt:a:5", "lwt:c:2", "lwt:c:5", "metadata:a:1", "metadata:a:2"]
