"""The demo itself, in a small configuration, with real nodes and a real driver."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep
from lockstep.local.demo import run
from lockstep.local.demo_tour import Options
from lockstep.values.errors import ConfigurationError, PreconditionError

#: Away from the addresses and ports of real clusters and of other tests.
PORTS = (29342, 27300, 27380)


def options(directory: Path, first_address: str, **chosen: object) -> Options:
    small = {"rows": 400, "ops_per_s": 200, "settle_s": 0.5, "spark": False, "name": "small", "ports": PORTS}
    return Options(
        report=directory / "report",
        home=directory / "home",
        first_address=first_address,
        **{**small, **chosen},  # type: ignore[arg-type]
    )


def processes_of(home: Path) -> list[str]:
    """Command lines of running processes that name the home of these clusters."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(home) in line:
            found.append(line)
    return found


@pytest.fixture
def nothing_stays(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert processes_of(tmp_path / "home") == []
    assert list((tmp_path / "home").glob("*")) == []


@pytest.mark.slow
def test_a_small_tour_holds_and_leaves_only_its_report(
    nothing_stays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(options(nothing_stays, "127.0.51.1"))
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    verdict = json.loads((nothing_stays / "report" / "verdict.json").read_text())
    assert verdict["held"] is True
    counts = verdict["counts"]
    assert counts["loaded"] == 400
    assert counts["writes_acknowledged"] > 100
    assert counts["read_back"] == 400 + counts["writes_acknowledged"]
    epochs = {phase["name"]: phase["epoch_after"] - phase["epoch_before"] for phase in verdict["phases"]}
    # Two joins, a replacement of a voter, two leaves of voters: the wish, the voters' change, the operation.
    assert epochs["grow"] >= 2 * 7
    assert epochs["replace"] >= 8
    assert epochs["shrink"] >= 2 * 8
    assert "n6 took the place of" in said.err and "left, each as metadata leader" in said.err
    assert "acknowledged rows lost" in said.out
    assert "Grow to 5 nodes" in said.err


@pytest.mark.slow
def test_a_termination_under_way_ends_every_process(nothing_stays: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from lockstep.local.demo import run; from lockstep.local.demo_tour import Options\n"
        "if __name__ == '__main__':\n"
        "    run(Options(report=Path('report'), home=Path('home').absolute(), first_address='127.0.52.1',\n"
        f"        ports={PORTS}, rows=400, settle_s=60.0, spark=False))\n"
    )
    (nothing_stays / "demo.py").write_text(script)
    demo = subprocess.Popen(
        [sys.executable, "demo.py"],
        cwd=nothing_stays,
        env={**os.environ, "PYTHONPATH": str(Path(lockstep.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stderr is not None
    deadline = time.monotonic() + 40
    for line in demo.stderr:
        if "Write and read" in line or time.monotonic() >= deadline:
            break
    assert len(processes_of(nothing_stays / "home")) == 3
    demo.send_signal(signal.SIGTERM)
    demo.stderr.read()
    demo.stderr.close()
    assert demo.wait(20) != 0


@pytest.mark.slow
def test_a_change_that_fails_ends_the_tour_with_its_reason_and_the_logs(
    nothing_stays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.55.4", PORTS[0])):
        assert run(options(nothing_stays, "127.0.55.1")) == 1
    said = capsys.readouterr().out
    assert "FAIL  grown from 3 to 5 nodes" in said
    assert "n4 cannot listen on 127.0.55.4" in said
    assert "FAIL  acknowledged rows lost" in said
    verdict = json.loads((nothing_stays / "report" / "verdict.json").read_text())
    assert verdict["held"] is False
    assert verdict["counts"]["writes_acknowledged"] > 0
    assert (nothing_stays / "report" / "node-logs" / "n1.log").stat().st_size > 0


def test_a_port_in_use_is_said_and_nothing_is_left(nothing_stays: Path) -> None:
    with (
        socket.create_server(("127.0.53.2", PORTS[0])),
        pytest.raises(PreconditionError, match=r"127\.0\.53\.2"),
    ):
        run(options(nothing_stays, "127.0.53.1"))


def test_an_earlier_demo_that_was_kept_is_named(tmp_path: Path) -> None:
    (tmp_path / "home" / "small").mkdir(parents=True)
    with pytest.raises(PreconditionError, match="was kept") as caught:
        run(options(tmp_path, "127.0.54.1"))
    assert caught.value.hint == "lockstep cluster destroy small"


def test_a_report_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file")
    with pytest.raises(ConfigurationError, match="report cannot be written"):
        run(options(tmp_path, "127.0.54.1"))
