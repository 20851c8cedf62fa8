"""Pages that repeat the code are current, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from lockstep.schema.table_options import DEFAULTS
from lockstep.topology.kinds.registry import BY_NAME
from lockstep.topology.stages import mermaid

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
OPTION = re.compile(r'\boption\((?:[\w.]*options, )?"(\w+)"')
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/reference/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_what_the_code_says(generator: ModuleType) -> None:
    for name, text in generator.pages().items():
        assert (ROOT / "docs/reference" / name).read_text() == text, f"{name} is stale: run `make reference`"


def test_table_options_that_the_code_looks_at_are_not_told_to_be_kept_only() -> None:
    used = {
        name
        for path in sorted(ROOT.glob("lockstep/**/*.py"))
        if path.relative_to(ROOT).parts[1] not in ("schema", "sim")
        for name in OPTION.findall(path.read_text())
        if name in DEFAULTS
    }
    rows = [
        line for line in (ROOT / "docs/reference/cql.md").read_text().splitlines() if line.startswith("| `")
    ]
    kept = {line.split("`")[1] for line in rows if line.endswith("| kept and described |")}
    assert len(used) > 5 and kept and not used & kept


def test_the_picture_of_transitions_is_the_stage_table(generator: ModuleType) -> None:
    text = (ROOT / "docs/concepts/transitions.md").read_text()
    # The others move ranges in the same way, under other names for the first and the last stage; only a node
    # that joins commits new streams in between.
    bootstrap = mermaid(BY_NAME["bootstrap"].stages).replace("join_group0", "prepared")
    assert "  prepared --> commit_cdc_generation : barrier" in bootstrap
    lines = [line for line in bootstrap.splitlines() if not line.startswith("  commit_cdc_generation")]
    common = "\n".join(lines).replace("--> commit_cdc_generation", "--> write_both_read_old") + "\n"
    assert common == mermaid(BY_NAME["decommission"].stages).replace("left_token_ring", "new_only")
    assert generator.with_stages(text) == text, "transitions.md is stale: run `make reference`"


def test_the_picture_of_joining_is_the_table_of_phases(generator: ModuleType) -> None:
    text = (ROOT / "docs/concepts/joining.md").read_text()
    assert generator.with_phases(text) == text, "joining.md is stale: run `make reference`"


def test_the_pictures_of_topology_operations_are_the_stage_tables(generator: ModuleType) -> None:
    text = (ROOT / "docs/concepts/topology.md").read_text()
    assert generator.with_kinds(text) == text, "topology.md is stale: run `make reference`"
    assert text.count("stateDiagram-v2") == 2


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_commands_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    commands = (ROOT / "docs/reference/command-line.md").read_text()
    targets = (ROOT / "Makefile").read_text()
    named = re.findall(r"`lockstep ([a-z]+(?: [a-z]+)?)", text)
    assert all(re.search(rf"^##+ lockstep {name}\b", commands, re.MULTILINE) for name in named), named
    assert all(f"\n{name}:" in targets for name in re.findall(r"`make ([a-z-]+)", text))


def test_decisions_that_are_superseded_say_so_in_the_list() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
        (line,) = [line for line in listed.splitlines() if f"({path.name})" in line]
        assert ("superseded" in line) == ("\nSuperseded" in path.read_text()), path.name


def test_every_page_can_be_reached_from_the_first_one() -> None:
    seen, waiting = set[Path](), [ROOT / "docs/README.md"]
    while waiting:
        path = waiting.pop().resolve()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        waiting += [path.parent / target for target in LINK.findall(path.read_text()) if "://" not in target]
    assert {path.resolve() for path in ROOT.glob("docs/**/*.md")} <= seen


def test_named_modules_and_rooms_exist() -> None:
    text = (ROOT / "docs/internals/design.md").read_text()
    rows = re.findall(r"^\| `([a-z_/]+)` \| ([^|]*) \|", text, re.MULTILINE)
    rooms = {room for room, _ in rows}
    packages = {path.parent.name for path in (ROOT / "lockstep").glob("*/__init__.py")}
    assert packages <= rooms, f"rooms that the design does not mention: {sorted(packages - rooms)}"
    for room, modules in rows:
        for name in re.findall(r"`([a-z_/]+)`", modules):
            base = ROOT / "lockstep" / room / name
            assert base.is_dir() or base.with_suffix(".py").exists(), f"{room} has no module {name}"
