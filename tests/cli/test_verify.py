"""`metadata verify` against nodes with canned proofs: whom it suspects, of what, and from which epoch on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from lockstep.cli.main import root
from tests.cli.fake_admin import FakeAdmin, node, status

PARTS = ("directory", "schema", "service")


class Story:
    """One node: `newest` epoch, `forked` and `wrong` say from which epoch on its log and a part differ."""

    def __init__(
        self,
        newest: int = 20,
        oldest: int = 1,
        *,
        forked: int = 0,
        wrong: tuple[str, int] = ("", 0),
        checkpoints: tuple[int, ...] = (),
        **proof: Any,
    ) -> None:
        self.newest, self.oldest, self.forked, self.wrong = newest, oldest, forked, wrong
        self.checkpoints, self.more = checkpoints, proof
        self.asked: list[str] = []

    def hash(self, epoch: int) -> str:
        return f"h{epoch}" + ("x" if self.forked and epoch >= self.forked else "")

    def proof(self) -> dict[str, Any]:
        marks = [[epoch, self.hash(epoch)] for epoch in (*self.checkpoints, self.newest)]
        plain = {"problem": None, "broken": None, "marks": marks, "oldest_value": max(0, self.oldest - 1)}
        newest = {"epoch": self.newest, "hash": self.hash(self.newest), "oldest": self.oldest}
        return newest | plain | self.more

    def digest(self, epoch: int) -> Any:
        if epoch < self.oldest - 1:
            return 400, {"code": "LOG_TRUNCATED", "message": f"from epoch {self.oldest - 1} on"}
        part, since = self.wrong
        parts = {name: f"{name}{epoch}" + ("x" if name == part and epoch >= since else "") for name in PARTS}
        return {"epoch": epoch, "hash": self.hash(epoch), "digest": "".join(parts.values()), "parts": parts}

    def log(self, epoch: int) -> Any:
        if epoch < self.oldest:
            return 400, {"code": "LOG_TRUNCATED", "message": f"from epoch {self.oldest} on"}
        return {"entries": [{"epoch": epoch, "hash": self.hash(epoch)}]}

    def answer(self, request: str) -> Any:
        self.asked.append(request)
        url = urlsplit(request.removeprefix("GET "))
        query = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
        if url.path == "/v1/metadata/proof":
            return self.proof()
        if url.path == "/v1/metadata/digest":
            return self.digest(query["epoch"])
        return self.log(query["from"])


class Answers(dict[str, Any]):
    """Answers of one node: a table, and what its story tells."""

    def __init__(self, story: Story | None) -> None:
        super().__init__()
        self.story = story

    def get(self, request: str, default: Any = None) -> Any:
        found = super().get(request)
        if found is not None or self.story is None:
            return found if found is not None else (503, {"code": "PEER_UNREACHABLE", "message": "gone"})
        return self.story.answer(request)


def verify(*stories: Story | None, output: str = "json") -> tuple[Result, Callable[[], dict[str, Any]]]:
    with contextlib.ExitStack() as stack:
        fakes = [stack.enter_context(FakeAdmin({}, f"127.0.0.{at + 1}")) for at in range(len(stories))]
        for fake, story in zip(fakes, stories, strict=True):
            fake.answers = Answers(story)
        nodes = [node(at + 1, admin_port=fake.port) for at, fake in enumerate(fakes)]
        fakes[0].answers["GET /v1/status"] = status(epoch=20)
        fakes[0].answers["GET /v1/nodes"] = {"nodes": nodes}
        arguments = ["metadata", "verify", "--host", fakes[0].host, "-o", output]
        result = CliRunner().invoke(root, arguments)
    return result, lambda: dict(json.loads(result.stdout))


def test_nodes_that_agree_are_said_to_agree_with_the_digest() -> None:
    result, document = verify(Story(), Story(), Story())
    assert result.exit_code == 0, result.output
    assert document()["agree"] and document()["complete"] and document()["first_divergence"] is None
    text, _ = verify(Story(), Story(), output="table")
    assert "all logs read agree from epoch 1 to 20" in text.output
    assert "the metadata at epoch 20 is the same: digest directory20"[:60] in text.output


@pytest.mark.parametrize("since", [1, 2, 9, 19, 20])
def test_the_first_entry_of_another_history_is_found(since: int) -> None:
    result, document = verify(Story(), Story(forked=since), Story())
    assert result.exit_code == 1
    assert document()["first_divergence"] == {"node": 2, "epoch": since, "part": "log", "exact": True}
    assert [row["result"] for row in document()["nodes"]] == ["agrees", "differs", "agrees"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("since", [1, 7, 20])
def test_the_first_epoch_at_which_a_part_differs_is_found(part: str, since: int) -> None:
    result, document = verify(Story(), Story(), Story(wrong=(part, since)))
    assert result.exit_code == 1
    assert document()["first_divergence"] == {"node": 3, "epoch": since, "part": part, "exact": True}
    text, _ = verify(Story(), Story(), Story(wrong=(part, since)), output="table")
    assert f"nodes differ: node 3 differs first at epoch {since}, in {part}" in text.output


def test_of_two_nodes_that_differ_both_are_named() -> None:
    result, document = verify(Story(), Story(forked=5))
    assert result.exit_code == 1
    assert [row["result"] for row in document()["nodes"]] == ["differs", "differs"]
    assert document()["first_divergence"]["epoch"] == 5


def test_a_fork_before_what_is_kept_is_not_dated_exactly() -> None:
    _, document = verify(Story(oldest=11), Story(oldest=11, forked=3), Story(oldest=11))
    found = document()["first_divergence"]
    assert (found["node"], found["epoch"], found["exact"]) == (2, 11, False)


def test_checkpoints_compare_epochs_that_are_kept_no_more() -> None:
    kept = Story(oldest=1, checkpoints=(8,))
    agreeing = Story(oldest=15, checkpoints=(8,))
    wrong = Story(oldest=15, checkpoints=(8,))
    wrong.proof = lambda: Story.proof(wrong) | {"marks": [[8, "other"], [20, "h20"]]}  # type: ignore[method-assign]
    _, document = verify(kept, agreeing, wrong)
    found = document()["first_divergence"]
    assert (found["node"], found["epoch"], found["exact"]) == (3, 8, False)


def test_nodes_are_compared_at_the_newest_epoch_that_all_have() -> None:
    result, document = verify(Story(newest=20), Story(newest=17), Story(newest=20))
    assert (result.exit_code, document()["to"]) == (0, 17)
    assert {row["digest"] for row in document()["nodes"]} == {"directory17schema17service17"}


@pytest.mark.parametrize(
    ("third", "word"),
    [
        (None, "unreachable"),
        (Story(broken="CANNOT_APPLY: kind 99 is not known"), "stopped"),
        (Story(newest=18, oldest=19), "agrees"),
    ],
)
def test_a_node_that_cannot_be_counted_is_told_of(third: Story | None, word: str) -> None:
    result, document = verify(Story(), Story(), third)
    assert [row["result"] for row in document()["nodes"]] == ["agrees", "agrees", word]
    assert result.exit_code == (0 if word == "agrees" else 6)


def test_a_node_that_keeps_too_little_is_not_compared() -> None:
    result, document = verify(Story(oldest=20), Story(newest=10), Story(newest=20))
    assert [row["result"] for row in document()["nodes"]] == ["not compared", "agrees", "agrees"]
    assert result.exit_code == 6


def test_a_broken_chain_is_said_with_its_epoch() -> None:
    bad = Story(problem={"epoch": 7, "reason": "entry 7 does not have the hash it states"})
    result, document = verify(Story(), bad, Story())
    assert result.exit_code == 1
    assert document()["first_divergence"] == {"node": 2, "epoch": 7, "part": "log", "exact": True}
    assert document()["nodes"][1]["why"] == "entry 7 does not have the hash it states"


def test_finding_a_fork_asks_few_questions() -> None:
    first, second = Story(newest=20), Story(newest=20, forked=3)
    verify(first, second, Story())
    assert len(second.asked) <= 2 + 6
