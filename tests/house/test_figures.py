"""The counters of the house report count right: each on a package that is made up for it."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from .figures import asserts, classes, cycles, memos, sizes, tables, validates
from .figures.contract import Contract
from .figures.tree import Import, Tree, tree_of
from .report import static_figures
from .sources import product, source_of
from .tidy import PURE_ROOMS


def tree(**texts: str) -> Tree:
    """Modules of a package: `low__a` is lockstep/low/a.py, `low__package` lockstep/low/__init__.py."""
    paths = {name: name.replace("__", "/").replace("/package", "/__init__") for name in texts}
    return tree_of({f"lockstep/{paths[name]}.py": text for name, text in texts.items()})


# ---- imports


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import lockstep.low.b\n", [("lockstep.low.b", "import")]),
        ("from lockstep.low import b\n", [("lockstep.low.b", "import")]),
        ("from lockstep.low.b import thing\n", [("lockstep.low.b", "import")]),
        ("from . import b\n", [("lockstep.low.b", "import")]),
        ("from .b import thing\n", [("lockstep.low.b", "import")]),
        ("from lockstep.low import thing\n", [("lockstep.low", "import")]),
        ("try:\n    from . import b\nexcept ImportError:\n    b = 1\n", [("lockstep.low.b", "import")]),
        ("class A:\n    from . import b\n", [("lockstep.low.b", "import")]),
        ("def a():\n    from . import b\n", [("lockstep.low.b", "late")]),
        ("async def a():\n    from . import b\n", [("lockstep.low.b", "late")]),
        ("if TYPE_CHECKING:\n    from . import b\n", [("lockstep.low.b", "types")]),
        ("if typing.TYPE_CHECKING:\n    from . import b\n", [("lockstep.low.b", "types")]),
        ("if TYPE_CHECKING:\n    x = 1\nelse:\n    from . import b\n", [("lockstep.low.b", "import")]),
        ("from . import b\nfrom .b import thing\n", [("lockstep.low.b", "import")]),
        ("import os\nfrom lockstep.low import a\n", []),
    ],
)
def test_imports(text: str, found: list[tuple[str, str]]) -> None:
    made = tree(low__a=text, low__b="thing = 1\n", low__package="thing = 1\n")
    assert made.imports == tuple(Import("lockstep.low.a", *one) for one in found)


# ---- sizes


def test_sizes() -> None:
    made = tree(
        low__package="", low__a="x = 1\n" * 60, low__b="x = 1\n" * 59, high__c="from lockstep.low import a\n"
    )
    found = sizes.sizes(made, {"lockstep/low": 26, "lockstep/high": 25, "lockstep/data": 3})
    assert (found["modules"], found["lines"], found["modules under 60 lines"]) == (4, 120, 3)
    assert found["folders above 25 files"] == ["lockstep/low"]
    assert found["folders"]["lockstep/low"] == {"files": 26, "modules": 3, "lines": 119}
    assert found["folders"]["lockstep/data"] == {"files": 3, "modules": 0, "lines": 0}


def test_modules_with_one_importer() -> None:
    made = tree(
        low__package="thing = 1\n",
        low__once="",
        low__twice="",
        low__late="",
        low__typed="",
        low__never="",
        high__a="from lockstep.low import once, twice, thing\n",
        high__b="from lockstep.low import twice\ndef b():\n    from lockstep.low import late\n",
        high__c="if TYPE_CHECKING:\n    from lockstep.low import typed, once\n",
    )
    assert sizes.single_importers(made) == {
        "lockstep.low.late": "lockstep.high.b",
        "lockstep.low.once": "lockstep.high.a",
    }


# ---- classes

FAMILY = {
    "low__package": "from .base import Base as Handed\n",
    "low__base": "class Base:\n    x = 1\n    y = 1\n",
    "high__left": "import lockstep.low.base\nclass Left(lockstep.low.base.Base):\n    x = 1\n",
    "high__right": "from lockstep.low import Handed\nclass Right(Handed[int]):\n    x = 1\n",
    "high__whole": (
        "from .left import Left\nfrom . import right as other\nfrom enum import Enum\n"
        "class Whole(Left, other.Right, Enum):\n    x = 1\n"
    ),
}


def test_classes_are_measured_over_their_inheritance() -> None:
    found = {row["class"]: row["lines"] for row in classes.figures(tree(**FAMILY))["largest"]}
    assert found == {
        "lockstep.high.whole:Whole": 2 + 2 + 2 + 3,
        "lockstep.high.left:Left": 2 + 3,
        "lockstep.high.right:Right": 2 + 3,
        "lockstep.low.base:Base": 3,
    }


@pytest.mark.parametrize(("own", "above"), [(398, 0), (399, 1)])
def test_classes_above_the_limit(own: int, above: int) -> None:
    text = "class A:\n    x = 1\n" + "class B(A):\n" + "    x = 1\n" * (own - 1)
    assert classes.figures(tree(low__a=text))["above 400 lines"] == above


def arguments(count: int, separator: str = ", ") -> str:
    return separator.join(f"a{number}: int" for number in range(count))


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        (f"class A:\n    def __init__(self, {arguments(9)}): ...\n", "constructors", 9),
        (f"class A:\n    def __init__(self, {arguments(8)}): ...\n", "constructors", 0),
        (f"class A:\n    def __init__(self, {arguments(5)}, *, b, c, d, e): ...\n", "constructors", 9),
        (f"class A:\n    def run(self, {arguments(9)}): ...\n", "constructors", 0),
        (f"class A(msgspec.Struct, frozen=True):\n    {arguments(9, '; ')}\n", "values", 9),
        (f"class A(Struct):\n    {arguments(8, '; ')}\n    b: ClassVar[int]\n", "values", 0),
        (f"class B(Struct):\n    b: int\nclass A(B):\n    {arguments(8, '; ')}\n", "values", 9),
        (f"@dataclass(frozen=True)\nclass A:\n    {arguments(10, '; ')}\n", "values", 10),
        (f"class A:\n    {arguments(9, '; ')}\n", "values", 0),
    ],
)
def test_constructors(text: str, kind: str, found: int) -> None:
    counted = classes.figures(tree(low__a=text))
    other = {"constructors": "values", "values": "constructors"}[kind]
    assert counted[kind] == ({"lockstep.low.a:A": found} if found else {})
    assert not counted[other]


# ---- cycles


def test_cycles() -> None:
    made = tree(
        low__package="from . import a\n",
        low__a="from . import b\n",
        low__b="if TYPE_CHECKING:\n    from . import c\n",
        low__c="from . import a\n",
        low__d="from . import e\nfrom . import a\n",
        low__e="def e():\n    from . import d\n",
        low__f="from . import g\n",
        low__g="from . import f\n",
    )
    both = ["lockstep.low.f", "lockstep.low.g"]
    circle = ["lockstep.low.a", "lockstep.low.b", "lockstep.low.c"]
    assert cycles.cycles(made) == {
        "at import time": [both],
        "with TYPE_CHECKING": [circle, both],
        "with late imports too": [circle, ["lockstep.low.d", "lockstep.low.e"], both],
    }


# ---- memos


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("value.__dict__['kept'] = 1\n", 1),
        ("after.part.__dict__['kept'] = 1\n", 1),
        ("del value.__dict__['kept']\n", 1),
        ("value.__dict__.setdefault('kept', 1)\n", 1),
        ("def a(value):\n    kept: dict = value.__dict__\n    kept['a'] = kept['b'] = 1\n", 2),
        ("def a(value):\n    kept = value.__dict__\n    kept.update(a=1)\n", 1),
        ("def __init__(self):\n    object.__setattr__(self, 'kept', 1)\n", 1),
        ("msgspec.structs.force_setattr(value, 'kept', 1)\n", 1),
        ("found = value.__dict__['kept']\n", 0),
        ("found = value.__dict__.get('kept')\n", 0),
        ("found = 'kept' in value.__dict__\n", 0),
        ("def a(value):\n    kept = value.__dict__\ndef b(kept):\n    kept['a'] = 1\n", 0),
        ("setattr(value, 'kept', 1)\n", 0),
    ],
)
def test_memos(text: str, count: int) -> None:
    assert memos.memos(tree(low__a=text)) == ({"lockstep.low.a": count} if count else {})


def test_cached_properties() -> None:
    text = "class A:\n" + "".join(
        f"    @{decorator}\n    def {name}(self): ...\n"
        for name, decorator in {
            "a": "cached_property",
            "b": "functools.cached_property",
            "c": "property",
        }.items()
    )
    assert memos.cached_properties(tree(low__a=text)) == 2


# ---- asserts


@pytest.mark.parametrize(
    ("test", "narrowing"),
    [
        ("x is not None", True),
        ("isinstance(x, int)", True),
        ("not isinstance(x, int)", True),
        ("callable(x)", True),
        ("x is not None and isinstance(y, int)", True),
        ("x is not None and x > 1", False),
        ("x is None", False),
        ("x is not y", False),
        ("x", False),
        ("not x", False),
        ("x.valid()", False),
        ("0 < x < 2", False),
    ],
)
def test_narrowing(test: str, narrowing: bool) -> None:
    parsed = ast.parse(test, mode="eval").body
    assert asserts.narrows(parsed) is narrowing


def test_asserts_of_rooms() -> None:
    text = (
        "def a(x):\n    assert x is not None\n    assert x > 1, 'why'\n    def b():\n        assert x\n"
        "class A:\n    def validate(self):\n        assert self.x\n        assert self.y is not None\n"
        "    async def _validate_log(self):\n        assert self.z\n"
        "    def validated(self):\n        assert self.z\n"
    )
    found = asserts.asserts(
        tree(cql__a=text, cql__wire__b="assert x\n", node__c=text).sources, ["cql", "values"]
    )
    row: dict[str, Any] = {"functions": 5, "narrowing": 2, "in_validate": 2, "invariants": 4}
    row |= {"larger": 0, "per function": 0.8, "with validate": 1.2, "per larger": 6.0}
    assert found["cql"] == row
    assert found["all pure rooms"] == found["cql"]
    assert found["values"]["functions"] == found["values"]["with validate"] == 0


@pytest.mark.parametrize(
    ("body", "larger"),
    [
        ("return self.x", False),
        ("'Says what.'\n    y = x\n    assert y\n    return y", False),
        ("y = x\n    z = y\n    return z", True),
        ("for y in x:\n        if y:\n            return y", True),
    ],
)
def test_larger_functions(body: str, larger: bool) -> None:
    made = ast.parse(f"def a(x):\n    {body}\n").body[0]
    assert isinstance(made, ast.FunctionDef)
    assert asserts.is_larger(made) is larger


def test_a_room_that_lost_assertions_is_named() -> None:
    found = asserts.asserts(
        tree(cql__a="def a(x):\n    assert x\n", values__a="def a(x): ...\n").sources, ["cql", "values"]
    )
    assert asserts.below_floors(found, {"cql": 1.0, "values": 0.5}) == [
        "values: 0.0 assertions a function, and there were 0.5"
    ]


def test_no_room_has_fewer_assertions_than_it_had() -> None:
    found = asserts.asserts(product(), PURE_ROOMS, asserts.BESIDE)
    assert asserts.FLOORS.keys() == found.keys() - {"documents", "all pure rooms"}
    assert asserts.below_floors(found, asserts.FLOORS) == []


# ---- validate()


def test_validates() -> None:
    made = tree(
        low__a="class A:\n    def validate(self):\n        assert self.x\n",
        low__e="class E:\n    def check(self):\n        assert self.x\n",
        low__b="class B:\n    def validate(self):\n        self.a.validate()\n",
        low__c="def validate(value):\n    assert value\n",
        low__d="class D:\n    def validate(self, data):\n        raise ValueError\n",
    )
    assert [one.title for one in validates.validates(made)] == [
        "lockstep.low.a:A",
        "lockstep.low.b:B",
        "lockstep.low.c",
    ]


# ---- the contract

CONTRACT = """
[importlinter:contract:rooms]
type = layers
containers = lockstep
layers =
    cli
    (server)
    node | local
    values

[importlinter:contract:inside]
type = layers
containers =
    lockstep.node
layers =
    work
    log

[importlinter:contract:other]
type = forbidden
source_modules = lockstep.values
forbidden_modules = lockstep.cli
"""


@pytest.mark.parametrize(
    ("caller", "callee", "up"),
    [
        ("lockstep.values.a", "lockstep.server.b", True),
        ("lockstep.node.log.a", "lockstep.cli", True),
        ("lockstep.node.log.a", "lockstep.node.work.worker.b", True),
        ("lockstep.node.work.worker.a", "lockstep.node.log.b", False),
        ("lockstep.server.a", "lockstep.node.b", False),
        ("lockstep.node.a", "lockstep.local.b", False),
        ("lockstep.node.a", "lockstep.node.b", False),
        ("lockstep.values.a", "lockstep.unplaced.b", False),
        ("lockstep.values.a", "lockstep.server_like.b", False),
        ("os", "lockstep.cli.a", False),
    ],
)
def test_who_stands_higher(caller: str, callee: str, up: bool) -> None:
    assert Contract(CONTRACT).is_up(caller, callee) is up


def test_a_contract_without_an_order_is_refused() -> None:
    with pytest.raises(ValueError, match="orders no rooms"):
        Contract("[importlinter]\nroot_package = lockstep\n")


# ---- the text


def figures_of(**texts: str) -> dict[str, Any]:
    found = static_figures(tree(**texts), {"lockstep/low": len(texts)})
    return {"revision": "abc", "apart": {"tests": {"modules": 1, "lines": 2}}, **found}


def test_the_report_names_what_it_found() -> None:
    text = tables.report(
        figures_of(low__a="from . import b\nclass A:\n    x = 1\n", low__b="from . import a\n")
    )
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "lockstep/low 2 2 4",
        "tests 1 2",
        "lockstep.low.a:A 2 2 1",
        "2: lockstep.low.a, lockstep.low.b",
    ):
        assert row in rows


def test_two_trees_stand_side_by_side() -> None:
    before, after = figures_of(low__a="x = 1\n" * 4), figures_of(low__a="x = 1\n" * 3, low__b="")
    before["walks"] = {"INSERT": {"modules": 47, "ways up": {}}}
    after["walks"] = {"INSERT": {"modules": 35, "ways up": {}}}
    rows = [" ".join(line.split()) for line in tables.comparison(before, after).splitlines()]
    for row in (
        "lines 4 3 -1 (-25%)",
        "modules 1 2 +1 (+100%)",
        "folders 1 1",
        "INSERT: modules 47 35 -12 (-26%)",
    ):
        assert row in rows


def test_source_of_a_package_is_its_folder() -> None:
    assert source_of("", "lockstep/low/__init__.py").module == "lockstep.low"
