"""The report of reached branches: it names branches by their text, and its list names what exists."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lockstep.sim import reached
from lockstep.sim.reached import Branch, Excuse, Room, Verdict, blind_branches, excuses, functions_of
from lockstep.sim.scenarios import SCENARIOS
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


ONE, OTHER = Branch("room.a", "A.one", "if x[0]:", "return 1"), Branch("room.a", "two", "if x[0]:", "(end)")
LISTED = "# why\nroom.* | A.one | if x[0]: | * | nobody gives one\n"


def verdict(*unreached: Branch, listed: str = LISTED, blind: tuple[Branch, ...] = ()) -> Verdict:
    return Verdict((Room("room", 9, unreached),), tuple(excuses(listed)), frozenset(blind))


def test_what_is_listed_is_excused_and_what_is_new_fails() -> None:
    found = verdict(ONE, OTHER)
    assert (found.open, found.fresh, found.holds) == ([OTHER], [OTHER], False)
    text = reached.text_of(found)
    assert "7 of     9 branches reached (77.8 %), 1 listed with a reason (11.1 %), 1 open" in text
    assert "     1 nobody gives one\n1 open: 0 known, 1 new" in text
    assert text.endswith(OTHER.text())


def test_a_part_that_fails_fails_the_report() -> None:
    sound = verdict(ONE)
    assert sound.holds and not msgspec.structs.replace(sound, failed=("damage 2",)).holds


def test_what_is_known_to_be_open_does_not_fail_and_is_counted() -> None:
    known = blind_branches(f"{OTHER.text()}\n")
    found = verdict(ONE, OTHER, blind=tuple(known))
    assert found.open == [OTHER] and found.holds
    assert reached.text_of(found).endswith("1 open: 1 known, 0 new")


def test_a_line_that_excuses_nothing_fails() -> None:
    found = verdict(OTHER, blind=(OTHER,))
    assert [one.reason for one in found.unused] == ["nobody gives one"] and not found.holds
    assert "excuses nothing: room.* | A.one" in reached.text_of(found)


def test_a_line_without_a_reason_is_refused() -> None:
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
        known[name] = {(of(number), reached.line_name(line)) for number, line in lines}
    for excuse in excuses(reached.LISTED.read_text()):
        wanted = excuse.branch
        module = Excuse(Branch(wanted.module, "*", "*", "*"), "")
        found = [lines for name, lines in known.items() if module.covers(Branch(name, "", "", ""))]
        assert found, wanted.text()
        for text in (wanted.at, wanted.to):
            line = Excuse(Branch("*", wanted.function, text, "*"), "")
            named = any(line.covers(Branch("", *one, "")) for lines in found for one in lines)
            assert named or text == "(end)", f"{wanted.text()}: there is no {text}"


def test_what_runs_is_measured(tmp_path: Path) -> None:
    def work() -> str:
        from lockstep.consensus.configuration import Configuration

        return Configuration((1, 2, 3)).problem()

    assert reached.metered(work, str(tmp_path / "part")) == ""
    rooms = {room.name: room for room in reached.rooms_of([str(tmp_path / "part")])}
    assert list(rooms) == list(reached.ROOMS)
    missed = [one for one in rooms["consensus"].unreached if one.function == "Configuration.problem"]
    assert missed and len(missed) < rooms["consensus"].branches
    # Also modules that nothing imported.
    assert any(one.module == "storage.rocks.rocks" for one in rooms["storage"].unreached)


def test_the_nightly_set_has_every_scenario_of_a_batch() -> None:
    names = list(reached.parts(1, 2))
    for name, scenario in SCENARIOS.items():
        assert (f"{name} 1" in names and f"{name} 2" in names) is scenario.by_default
    assert reached.parts(1, 1)["dissemination"]() == ""
