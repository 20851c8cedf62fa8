"""What holds for the whole suite: in which order its modules are run, and by which process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.workermanage import WorkerController

from tests import needs
from tests.quick_java import quick_home
from tests.scheduling import NICENESS, Scheduling, gives_way, place_of

# Where a shell wants no `__pycache__` beside the sources, compiled code is kept in another folder: without it
# each process of a run, and each that a test starts, compiles all it imports: most of its time to begin.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build" / "bytecode")
    )

# Nobody multiplies matrices: threads for that are made, and spin, in each process that imports NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if (quick := quick_home()) is not None:
    os.environ.setdefault("JAVA_HOME", str(quick))

# Examples are the same in each run, so a failure is of the change at hand; how fast they are made tells of
# the machine alone. HYPOTHESIS_PROFILE=fresh draws others.
_UNTIMED: Any = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
# A planted bug makes its test fail, and nobody reads which lines an example took: they are not traced.
_UNTRACED = tuple(phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain)
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, phases=_UNTRACED, **_UNTIMED)
hypothesis.settings.register_profile("fresh", **_UNTIMED)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

#: Real processes on a machine that does something else for a second miss a limit that holds: a test of them
#: has a second attempt, and the run tells the first failure at its end. More than a few are no accident.
SECOND_ATTEMPTS_MAX = 5
_OF_PROCESSES = ("needs_addresses", "needs_processes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    # Else modules with few tests come last, and these are often the long ones.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    if node.config.getoption("dist") == "loadfile":
        node.workerinput["gives_way"] = gives_way(node.gateway.id, node.workerinput["workercount"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pure", action="store_true", help="only modules whose tests need nothing of the machine"
    )


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config, "workerinput", {}).get("gives_way") and config.workerinput["workercount"] > 1:
        os.nice(NICENESS)
    for name, meaning in needs.MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Others are not even imported, for PySpark and drivers take longer to import than many a test runs."""
    if config.getoption("pure") and collection_path.match("test_*.py"):
        return not needs.is_pure(collection_path) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs.demand(tuple(mark.name for mark in item.iter_markers()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        markers = needs.markers_of(item.path)
        for marker in markers:
            item.add_marker(marker)
        if not set(markers).isdisjoint(_OF_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting the tests has made stays to the end, so collections of garbage need not walk it: that
    was half of the time of simulations, which begin with one and have more on the way."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def what_earlier_modules_left() -> Iterator[None]:
    """Stays too, for the same reason: in a process that has run many modules it is most of the heap."""
    gc.collect()
    gc.freeze()
    yield


def _first_failures(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get("rerun", []) if reporter is not None else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if (
        session.exitstatus == pytest.ExitCode.OK
        and len(_first_failures(session.config)) > SECOND_ATTEMPTS_MAX
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if failures := _first_failures(config):
        terminalreporter.section(f"second attempts: {len(failures)}, at most {SECOND_ATTEMPTS_MAX}")
    for report in failures:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(report.longreprtext)
