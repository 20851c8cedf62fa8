"""The report of reached branches: it names branches by their text, and its list names what exists."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lockstep.sim import reached
from lockstep.sim.reached import Branch, Room, Verdict, blind_branches, excuses, functions_of
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


HEAD = "# nobody = nobody asks for it\n# tested = unit tests take it\n"


def verdict(
    *unreached: Branch, listed: str = LISTED, blind: str = "", tested: frozenset[Branch] | None = None
) -> Verdict:
    rooms = (Room("room", 9, unreached),)
    return Verdict(rooms, tuple(excuses(listed)), blind_branches(HEAD + blind), tested=tested)


def test_what_is_listed_is_excused_and_what_is_new_fails() -> None:
    found = verdict(ONE, OTHER)
    assert (found.open, found.fresh, found.holds) == ([OTHER], [OTHER], False)
    text = reached.text_of(found)
    assert "7 of     9 branches reached (77.8 %), 1 listed with a reason (11.1 %), 1 open" in text
    assert "     1 nobody gives one\n1 neither reached nor excused" in text
    assert text.endswith(OTHER.text())


def test_a_part_that_fails_fails_the_report() -> None:
    sound = verdict(ONE)
    assert sound.holds and not msgspec.structs.replace(sound, failed=("damage 2",)).holds


def test_a_single_branch_with_a_reason_is_excused() -> None:
    found = verdict(ONE, OTHER, blind=f"{OTHER.text()} | nobody\n")
    assert found.open == [OTHER] and found.holds
    text = reached.text_of(found)
    assert "2 listed with a reason (22.2 %), 0 open" in text and "     1 nobody asks for it" in text
    assert text.endswith("0 neither reached nor excused")


@pytest.mark.parametrize("line", [OTHER.text(), f"{OTHER.text()} | because"])
def test_a_single_branch_without_a_reason_of_the_head_is_refused(line: str) -> None:
    with pytest.raises(ConfigurationError, match="ends in no reason"):
        blind_branches(HEAD + line)


def test_a_reason_with_a_pattern_is_given_to_what_has_it_alone() -> None:
    head = "# limit = a bound that small runs do not meet ~ _MAX\n"
    bound = Branch("room.a", "two", "if x > ROWS_MAX:", "return 1")
    assert blind_branches(f"{head}{bound.text()} | limit").lines == {bound: "limit"}
    with pytest.raises(ConfigurationError, match="another reason"):
        blind_branches(f"{head}{OTHER.text()} | limit")


def test_a_single_branch_that_is_reached_is_excused_no_more() -> None:
    found = verdict(ONE, blind=f"{OTHER.text()} | nobody\n")
    assert found.needless == [OTHER] and not found.holds
    assert reached.text_of(found).endswith(f"excuses nothing: {OTHER.text()}")


def test_what_unit_tests_are_said_to_take_they_take() -> None:
    line = f"{OTHER.text()} | tested\n"
    assert verdict(ONE, OTHER, blind=line).holds, "nothing was measured"
    assert verdict(ONE, OTHER, blind=line, tested=frozenset({OTHER})).holds
    found = verdict(ONE, OTHER, blind=line, tested=frozenset({ONE}))
    assert found.untested == [OTHER] and not found.holds
    assert reached.text_of(found).endswith(f"no unit test takes: {OTHER.text()}")


def test_a_list_that_is_recorded_has_what_is_tested_and_keeps_what_people_said() -> None:
    third, fourth = (Branch("room.a", "three", "if y:", to) for to in ("return 1", "(end)"))
    lines = f"{OTHER.text()} | nobody\n{ONE.text()} | tested\n"
    found = verdict(OTHER, third, fourth, listed="", blind=lines, tested=frozenset({third}))
    blind = reached.recorded(found)
    assert blind.lines == {OTHER: "nobody", third: "tested"}, "ONE is reached, the fourth has no reason"
    assert blind_branches(blind.text()) == blind and blind.text().startswith(HEAD)
    untested = verdict(ONE, listed="", blind=lines, tested=frozenset())
    assert reached.recorded(untested).lines == {}


def test_what_some_parts_reach_goes_off_the_list() -> None:
    blind = blind_branches(f"{HEAD}{ONE.text()} | nobody\n{OTHER.text()} | nobody\n")
    left = reached.without_reached(blind, [Room("room", 9, (ONE,), frozenset({OTHER}))])
    assert list(left.lines) == [ONE]


def test_a_line_that_excuses_nothing_fails() -> None:
    found = verdict(OTHER, blind=f"{OTHER.text()} | nobody\n")
    assert [one.reason for one in found.unused] == ["nobody gives one"] and not found.holds
    assert "excuses nothing: room.* | A.one" in reached.text_of(found)


def test_a_line_without_a_reason_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 4 parts"):
        excuses("a | b | c | d")


def test_no_part_of_such_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names no part"):
        reached.measure(1, 1, print, "no such *")


def test_what_runs_is_measured(tmp_path: Path) -> None:
    def work() -> str:
        from lockstep.consensus.configuration import Configuration

        return Configuration((1, 2, 3)).problem()

    assert reached.metered(work, str(tmp_path / "part")) == ""
    rooms = {room.name: room for room in reached.rooms_of([str(tmp_path / "part")])}
    assert list(rooms) == list(reached.ROOMS)
    taken = [one for one in rooms["consensus"].reached if one.function == "Configuration.problem"]
    assert taken and not rooms["consensus"].reached & set(rooms["consensus"].unreached)
    missed = [one for one in rooms["consensus"].unreached if one.function == "Configuration.problem"]
    assert missed and len(missed) < rooms["consensus"].branches
    # Also modules that nothing imported.
    assert any(one.module == "storage.rocks.rocks" for one in rooms["storage"].unreached)


def test_the_nightly_set_has_every_scenario() -> None:
    names = list(reached.parts(1, 2))
    assert all(f"{name} 1" in names and f"{name} 2" in names for name in SCENARIOS)
    assert reached.parts(1, 1)["dissemination"]() == ""
