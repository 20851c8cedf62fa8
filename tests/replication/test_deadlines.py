"""Sweeps over deadlines, on time and late."""

from __future__ import annotations

from math import inf

from lockstep.internode.waiters import Sweeps
from lockstep.values.limits import PEER_SWEEP_MS, SWEEP_LATE_MS

SWEEP_S, LATE_S = PEER_SWEEP_MS / 1000, SWEEP_LATE_MS / 1000


def test_a_sweep_on_time_expires_what_is_over() -> None:
    sweeps = Sweeps()
    assert sweeps.delay_s(12.0, 10.0) == 2.0
    assert sweeps.until_s(12.0 + LATE_S / 2) == 12.0 + LATE_S / 2
    assert sweeps.delay_s(5.0, 13.0) == SWEEP_S


def test_a_sweep_of_a_loop_that_stood_still_spares_once() -> None:
    sweeps = Sweeps()
    sweeps.delay_s(12.0, 10.0)
    assert sweeps.until_s(17.0) == -inf
    assert sweeps.delay_s(12.0, 17.0) == SWEEP_S
    assert sweeps.until_s(23.0) == 23.0, "late again: nothing is put off for ever"
    sweeps.delay_s(30.0, 23.0)
    assert sweeps.until_s(31.0) == -inf
