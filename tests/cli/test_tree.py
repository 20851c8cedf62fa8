"""The command tree itself: help, usage errors, lazy imports, explanations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from lockstep.cli.main import COMMANDS, root
from lockstep.cli.why import TEXTS
from lockstep.local.admin_client import error_classes


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, list(arguments))


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_table_exists_and_explains_itself(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert command.name == name
    assert run(name, "--help").exit_code == 0


#: What does something and says that it is done, or reports a run in words of its own; all others read.
DOING = {
    "demo", "node run",
    *(f"cluster {name}" for name in (
        "create", "start", "stop", "kill", "pause", "resume", "partition", "heal", "forget", "destroy",
    )),
    *(f"sim {name}" for name in (
        "replay", "planted", "quorums", "placements", "dissemination", "coordinator", "matrix", "cuts",
        "reached", "fuzz", "ring", "convergence",
    )),
}  # fmt: skip


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name))


def lacking_json(tree: click.Group) -> set[str]:
    return {
        path
        for path, command in leaves(tree)
        if not any("--output" in parameter.opts for parameter in command.params)
    }


def test_every_command_that_reads_can_answer_json() -> None:
    assert lacking_json(root) == DOING


def test_a_reading_command_without_json_is_found() -> None:
    tree = click.Group("lockstep", [click.Command("status")])
    assert lacking_json(tree) == {"status"}


def test_help_needs_no_command_module() -> None:
    script = (
        "import sys; from lockstep.cli.main import root\n"
        "try: root.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('lockstep.cli.status', 'rich', 'msgspec', 'asyncio', 'http.client', 'rocksdict')\n"
        "sys.exit(', '.join(name for name in heavy if name in sys.modules) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Start here:" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["statsu"], ["error[CONFIGURATION]: No such command 'statsu'", "status"]),
        (["cluster", "destory", "x"], ["error[CONFIGURATION]: No such command 'destory'", "destroy"]),
        (
            ["cluster", "kill", "x"],
            ["error[CONFIGURATION]: Missing argument", "hint: lockstep cluster kill --help"],
        ),
        (["status", "-o", "xml"], ["error[CONFIGURATION]: Invalid value for '-o'"]),
        (["status", "--call-timeout", "0"], ["error[CONFIGURATION]: Invalid value for '--call-timeout'"]),
        (["status", "--host", "a:b"], ["error[CONFIGURATION]: `a:b` is not an address"]),
    ],
)
def test_a_wrong_command_line_exits_2_and_says_what_was_meant(arguments: list[str], texts: list[str]) -> None:
    result = CliRunner().invoke(root, arguments, prog_name="lockstep")
    assert result.exit_code == 2
    for text in texts:
        assert text in result.stderr
    assert result.stdout == ""


def test_no_arguments_show_the_help_and_exit_2() -> None:
    result = run()
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage:")


def test_every_error_code_is_explained_and_no_other() -> None:
    codes = [kind.code for kind in error_classes()]
    assert sorted(codes) == sorted(TEXTS)
    assert len(set(codes)) == len(codes)


def test_explain_takes_a_code_as_it_was_printed() -> None:
    result = run("explain", "error[CQL_UNAVAILABLE]:")
    assert result.exit_code == 0
    assert "Nothing was written" in result.output
    assert "0x1000" in result.output
    listed = run("explain")
    assert len(listed.output.splitlines()) == len(TEXTS) + 1


def test_explain_suggests_the_nearest_code() -> None:
    result = run("explain", "CQL_UNAVAIABLE")
    assert result.exit_code == 2
    assert "hint: did you mean CQL_UNAVAILABLE?" in result.stderr


def test_explain_as_json() -> None:
    document = json.loads(run("explain", "rejected", "-o", "json").stdout)
    assert document["schema"] == "error-code/1"
    assert (document["fault"], document["exit_code"]) == ("client", 3)


def test_cluster_commands_work_on_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    assert "lockstep cluster create" in run("cluster", "list").output
    created = run(
        "cluster", "create", "try", "--dc", "a:2", "--dc", "b:1", "--no-start",
        "--set", "log.format=json", "--set", "raft.tick_ms=20", "--auth",
    )  # fmt: skip
    assert created.exit_code == 0, created.output
    text = (tmp_path / "clusters" / "try" / "n3" / "lockstep.toml").read_text()
    assert 'format = "json"' in text
    assert "tick_ms = 20" in text
    assert 'authenticator = "password"' in text and 'authorizer = "role-based"' in text
    listed = json.loads(run("cluster", "list", "-o", "json").stdout)
    assert [(row["node"], row["dc"], row["state"]) for row in listed["nodes"]] == [
        ("n1", "a", "stopped"),
        ("n2", "a", "stopped"),
        ("n3", "b", "stopped"),
    ]
    assert run("cluster", "kill", "try", "n1").exit_code == 3
    assert run("cluster", "start", "other").exit_code == 3
    assert run("cluster", "create", "x", "--set", "storage.snyc=1").exit_code == 2
    assert run("cluster", "create", "x", "--dc", "a").exit_code == 2
    assert run("cluster", "destroy", "try").exit_code == 0
    assert not (tmp_path / "clusters" / "try").exists()
