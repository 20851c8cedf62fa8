"""`lockstep sim run` as a process: figures as JSON, and what an interrupted run leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
#: A seed of this takes about a second.
SCENARIO = ("--scenario", "counts")


def test_figures_come_as_json() -> None:
    done = subprocess.run(
        [LOCKSTEP, "sim", "run", *SCENARIO, "-o", "json"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert (found["schema"], found["wanted"], found["seeds"], found["failed"]) == ("sim-run/1", 1, 1, 0)
    assert found["events"] > 1000 and found["judged"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_tells_how_far_it_came_and_its_figures(number: signal.Signals) -> None:
    program = (
        "import signal, sys; from lockstep.sim import runner\n"
        # A shell that starts something in the background has it ignore SIGINT, and all that it starts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "plain = runner.Batch.add\n"
        "def add(self, result):\n"
        "    plain(self, result); print('one', file=sys.stderr, flush=True)\n"
        "runner.Batch.add = add\n"
        "from lockstep.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "sim", "run", *SCENARIO, "--seeds", "500"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with running:
        assert running.stderr is not None and running.stderr.readline() == "one\n"
        running.send_signal(number)
        out, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in errors
    told = [line for line in errors.splitlines() if line != "one"]
    assert len(told) == 1 and told[0].startswith("interrupted after ") and told[0].endswith(" of 500 seeds")
    count = told[0].split()[2]
    assert int(count) >= 1
    assert f"{count} seeds, 0 failed" in out and " events, " in out
