"""The act in which most voters are lost, with real nodes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lockstep.local.demo_disaster import NAME, DisasterOptions, run
from lockstep.values.errors import PreconditionError

pytestmark = pytest.mark.slow
PORTS = (29442, 27400, 27480)


def test_the_rest_goes_on_by_the_plan_that_was_shown_and_nothing_stays_behind(tmp_path: Path) -> None:
    out = io.StringIO()
    options = DisasterOptions("127.0.1.201", PORTS, tmp_path)
    assert run(options, out) == 0, out.getvalue()
    told = out.getvalue()
    for text in (
        "nodes 1, 2, 3 vote",
        "its log goes on, votes, manages",
        "node 1 is absent",
        "may be lost: entries above epoch",
        "300 of 300",
        "every check held",
        "lockstep topology remove 2 --force",
    ):
        assert text in told, told
    assert not (tmp_path / NAME).exists()


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    with pytest.raises(PreconditionError):
        run(DisasterOptions("127.0.1.201", PORTS, tmp_path), io.StringIO())
