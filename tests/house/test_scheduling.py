"""Processes of a run begin with what suits them, and every test is run once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from tests.scheduling import WAITING, Scheduling, gives_way, place_of

TESTS = [
    *[f"tests/spark/test_{name}.py::test_{at}" for name in "ab" for at in range(3)],
    *[f"tests/docs/test_shell_blocks.py::test_page[{at}]" for at in range(4)],
    *[f"tests/acceptance/test_{at}.py::test_it" for at in range(4)],
    *[f"tests/sim/test_runs.py::test_a_seed_passes[{at}]" for at in range(30)],
    *[f"tests/metadata/test_{name}.py::test_{at}" for name in "abcd" for at in range(5)],
]


class Process:
    """Runs what it is given in that order."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def shared_out(count: int) -> list[list[str]]:
    """Which tests each of so many equally fast processes runs, in that order."""
    option = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda _name: ["popen"] * count, option=option)
    scheduling = Scheduling(config)
    processes = [Process(f"gw{number}") for number in range(count)]
    nodes: list[Any] = list(processes)
    for node in nodes:
        scheduling.add_node(node)
        scheduling.add_node_collection(node, TESTS)
    scheduling.schedule()
    ran: list[list[str]] = [[] for _ in nodes]
    for turn in itertools.count():
        waiting = [at for at, process in enumerate(processes) if len(process.given) > len(ran[at])]
        if not waiting:
            break
        assert turn < len(TESTS), "each turn runs a test"
        for at in waiting:
            index = processes[at].given[len(ran[at])]
            ran[at].append(TESTS[index])
            scheduling.mark_test_complete(nodes[at], index)
    assert scheduling.tests_finished and all(process.shutting_down for process in processes)
    return ran


def waits(test: str) -> bool:
    return test.split("/")[1] in WAITING


def test_one_process_of_several_gives_way_and_begins_with_what_computes() -> None:
    for count in range(1, 6):
        first = [ran[0] for ran in shared_out(count)]
        giving_way = [gives_way(f"gw{number}", count) for number in range(count)]
        assert giving_way.count(True) == 1
        assert [not waits(test) for test in first] == giving_way


def test_every_test_is_run_once_whatever_the_number_of_processes() -> None:
    for count in range(1, 6):
        assert sorted(itertools.chain.from_iterable(shared_out(count))) == sorted(TESTS)


def test_the_last_process_computes_while_the_others_wait() -> None:
    *waiting, computing = shared_out(3)
    for ran in waiting:
        kinds = [waits(test) for test in ran]
        assert kinds[0] and kinds == sorted(kinds, reverse=True), "first all that waits"
    kinds = [waits(test) for test in computing]
    assert not any(kinds), "what waits was taken by the others before all was computed"
    assert any(not waits(test) for test in itertools.chain(*waiting)), "they take part in what is left"


def test_one_process_does_what_shares_a_runtime() -> None:
    spark = [test for test in TESTS if test.startswith("tests/spark/")]
    [ran] = [ran for ran in shared_out(3) if spark[0] in ran]
    assert [test for test in ran if test in spark] == spark


def test_what_waits_and_what_is_long_comes_first() -> None:
    rooms = ("spark", "docs", "acceptance", "testing", "local", "sim", "node", "server", "values")
    places = [place_of(f"tests/{room}/test_a.py::test_b") for room in rooms]
    assert places == sorted(set(places))
    assert place_of("tests/cql/test_a.py::test_b") == place_of("tests/topology/tablets/test_a.py::test_b")
