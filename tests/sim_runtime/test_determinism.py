"""The same seed gives the same run, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from . import faulty_run

SCRIPT = Path(faulty_run.__file__)
ROOT = SCRIPT.parents[2]


def _elsewhere(seed: int, *flags: str, **environment: str) -> str:
    env = dict(os.environ, PYTHONPATH=str(ROOT), **environment)
    command = [sys.executable, *flags, str(SCRIPT), str(seed)]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_a_seed_repeats_in_other_processes_hash_seeds_and_allocators() -> None:
    here = faulty_run.run(7)
    assert _elsewhere(7, PYTHONHASHSEED="0") == here
    assert _elsewhere(7, PYTHONHASHSEED="4242", PYTHONMALLOC="malloc", TZ="Asia/Tokyo") == here
    assert _elsewhere(7, "-X", "importtime", PYTHONHASHSEED="1") == here


def test_a_run_does_not_depend_on_the_runs_before_it() -> None:
    first = faulty_run.run(3)
    faulty_run.run(4)
    assert faulty_run.run(3) == first


def test_seeds_differ() -> None:
    assert faulty_run.run(1).split()[0] != faulty_run.run(2).split()[0]


def test_faults_of_the_run_have_effects() -> None:
    shown = faulty_run.run(7)
    for effect in ("process.power", "process.kill", "process.pause", "net.block", "net.retransmitted"):
        assert effect in shown, effect
