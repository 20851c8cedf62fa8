"""Owns `lockstep node`: run one node in the foreground, ask one about itself, close its clients' door."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from lockstep.cli import client, options, render
from lockstep.values.errors import OutcomeUnknown

#: How often a wait asks again.
POLL_S = 0.1
DRAIN_PATH = "/v1/drain"


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


@node.command()
@options.of_change
def drain(dry_run: bool, wait: bool, timeout_s: float, host: str, call_timeout_s: float, output: str) -> None:
    """Close the clients' door of the node at --host: what is in flight is answered, other clients are told.

    The node stays a replica and a voter until its process ends; it serves clients again after a restart.
    """
    admin = client.connect(host, call_timeout_s).admin
    answer = admin.post(DRAIN_PATH, {"dry_run": dry_run})
    due_s = time.monotonic() + timeout_s
    while wait and not dry_run and answer["state"] != "drained":
        if time.monotonic() >= due_s:
            raise OutcomeUnknown("the node still answers requests", hint="the drain goes on; ask again")
        time.sleep(POLL_S)
        answer = admin.get(DRAIN_PATH)
    if output == "json":
        render.json_out(answer, "drain/1")
        return
    connections = render.counted(answer["connections"], "connection")
    clients = f"{connections}, {render.counted(answer['requests'], 'request')} in flight"
    if dry_run:
        click.echo(f"node {answer['node']} would close {clients}, in {answer['limit_ms'] / 1000:g} s at most")
        return
    cut = f"; cut off: {render.counted(answer['cut'], 'request')}" if answer["cut"] else ""
    click.echo(f"node {answer['node']} is {answer['state']}: {clients}{cut}")
