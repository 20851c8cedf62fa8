"""Power cuts between two durable steps: those around files that replace others are survived, and bite."""

from __future__ import annotations

import pytest

from lockstep.sim.matrix import cuts
from lockstep.sim.matrix.cuts import Cut, run_cut
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


def test_a_place_that_is_never_reached_fails() -> None:
    assert run_cut(Cut("calm", "there is none", 1), 1).invariant == "VACUOUS"


def test_a_name_without_a_cut_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names no cut"):
        cuts.told_story("metadata", 1, 1)
