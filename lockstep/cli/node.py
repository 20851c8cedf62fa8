"""Owns `lockstep node`: run one node in the foreground, ask one node about itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from lockstep.cli import client, options, render


@click.group()
def node() -> None:
    """One node."""


@node.command()
@click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path("lockstep.toml"),
    show_default=True,
    help="Configuration file; LOCKSTEP_<SECTION>_<KEY> in the environment wins over it.",
)
def run(file: Path) -> None:
    """Run a node in the foreground until it is interrupted."""
    # The node takes this process over, so signals and exit codes are its own.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "lockstep.server.main", "--config", str(file)])


@node.command()
@options.of_call
def info(host: str, call_timeout_s: float, output: str) -> None:
    """Show the identity of the node at --host and how far it is."""
    answer = client.connect(host, call_timeout_s).status()
    asked = answer.get("node") or {}
    same = [one for one in answer.get("nodes", []) if one.get("id") == asked.get("id")]
    own = same[0] if same else {}
    facts = {
        **own,
        **asked,
        "ready": answer.get("ready"),
        "epoch": answer.get("epoch"),
        "hash": answer.get("hash"),
    }
    if output == "json":
        render.json_out(facts, "node/1")
        return
    shown = {**facts, "owns": f"{float(facts.get('owns') or 0) * 100:.1f}%"}
    render.facts([(key.replace("_", " "), value) for key, value in shown.items()])
