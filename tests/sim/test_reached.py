"""The report of reached branches: it names branches by their text, and its list names what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.sim import reached
from lockstep.sim.reached import Branch, Excuse, Room, excuses, functions_of, open_branches
from lockstep.values.errors import ConfigurationError

SOURCE = """
class A:
    def one(self, x):
        if x:
            return 1
        return 2

def two():
    pass
"""


def test_a_line_belongs_to_the_innermost_function() -> None:
    of = functions_of(SOURCE)
    assert (of(4), of(8), of(7)) == ("A.one", "two", "(module)")


def test_branches_are_named_by_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "room" / "a.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    monkeypatch.setattr(reached, "_PACKAGE", tmp_path)
    found = list(reached.branches_of(path, [[4, 5], [4, -3]]))
    assert found == [
        Branch("room.a", "A.one", "if x:", "return 1"),
        Branch("room.a", "A.one", "if x:", "(end)"),
    ]


def test_what_is_listed_is_excused_and_the_rest_is_open() -> None:
    listed = excuses("# why\nroom.* | A.one | if x[0]: | * | nobody gives one\n")
    one, other = (
        Branch("room.a", "A.one", "if x[0]:", "return 1"),
        Branch("room.a", "two", "if x[0]:", "(end)"),
    )
    assert listed[0].reason == "nobody gives one"
    assert open_branches([Room("room", 9, (one, other))], listed) == [other]
    text = reached.text_of([Room("room", 9, (one, other))], listed)
    assert "7 of     9 branches reached (77.8 %), 1 listed with a reason, 1 open" in text
    assert text.endswith(other.text())
    with pytest.raises(ConfigurationError, match="has 4 parts"):
        excuses("a | b | c | d")


def test_lines_of_the_list_name_what_exists() -> None:
    """Modules, functions and lines that they name are there: a list of what is gone excuses nothing."""
    known: dict[str, set[tuple[str, str]]] = {}
    for path in reached.sources():
        source = path.read_text()
        of = functions_of(source)
        lines = enumerate(source.splitlines(), start=1)
        name = ".".join(path.relative_to(reached._PACKAGE).with_suffix("").parts)
        known[name] = {(of(number), line.strip()) for number, line in lines}
    for excuse in excuses(reached.LISTED.read_text()):
        wanted = excuse.branch
        module = Excuse(Branch(wanted.module, "*", "*", "*"), "")
        found = [lines for name, lines in known.items() if module.covers(Branch(name, "", "", ""))]
        assert found, wanted.text()
        for text in (wanted.at, wanted.to):
            line = Excuse(Branch("*", wanted.function, text, "*"), "")
            named = any(line.covers(Branch("", *one, "")) for lines in found for one in lines)
            assert named or text == "(end)", f"{wanted.text()}: there is no {text}"


def test_what_runs_is_measured() -> None:
    def work() -> None:
        from lockstep.consensus.configuration import Configuration

        assert not Configuration((1, 2, 3)).problem()

    rooms = {room.name: room for room in reached.measure(work)}
    assert list(rooms) == list(reached.ROOMS)
    missed = [one for one in rooms["consensus"].unreached if one.function == "Configuration.problem"]
    assert missed and len(missed) < rooms["consensus"].branches
