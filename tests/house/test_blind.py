"""The list of branches that no simulation reaches names what exists: who changes a line changes the list."""

from __future__ import annotations

from lockstep.sim import reached
from lockstep.sim.reached import Branch, Excuse, excuses, functions_of


def test_lines_of_the_list_name_what_exists() -> None:
    """Modules, functions and lines that they name are there: a list of what is gone excuses nothing."""
    known: dict[str, set[tuple[str, str]]] = {}
    for path in reached.sources():
        source = path.read_text()
        of = functions_of(source)
        lines = enumerate(source.splitlines(), start=1)
        name = ".".join(path.relative_to(reached._PACKAGE).with_suffix("").parts)
        known[name] = {(of(number), reached.line_name(line)) for number, line in lines}
    for branch in reached.known_blind().lines:
        lines_of = known.get(branch.module, set())
        for text in (branch.at, branch.to):
            named = text == "(end)" or any(line == text for _, line in lines_of)
            assert named, f"{branch.text()}: there is no {text}"
    for excuse in excuses(reached.LISTED.read_text()):
        wanted = excuse.branch
        module = Excuse(Branch(wanted.module, "*", "*", "*"), "")
        found = [lines for name, lines in known.items() if module.covers(Branch(name, "", "", ""))]
        assert found, wanted.text()
        for text in (wanted.at, wanted.to):
            line = Excuse(Branch("*", wanted.function, text, "*"), "")
            named = any(line.covers(Branch("", *one, "")) for lines in found for one in lines)
            assert named or text == "(end)", f"{wanted.text()}: there is no {text}"
