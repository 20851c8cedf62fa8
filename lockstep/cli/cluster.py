"""Owns `lockstep cluster`, local clusters of real processes, and `lockstep demo`, the tour of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.cli.shared import completion, plans, render
from lockstep.values.errors import ConfigurationError, PreconditionError
from lockstep.values.limits import TOKENS_PER_NODE_MAX

if TYPE_CHECKING:
    from lockstep.local.clusters import LocalCluster


#: What `create --auth` sets.
_AUTH = ("auth.authenticator=password", "auth.authorizer=role-based")

_name = click.argument("name", shell_complete=completion.clusters)
_some_nodes = click.argument("nodes", nargs=-1, shell_complete=completion.local_nodes)
_nodes = click.argument("nodes", nargs=-1, required=True, shell_complete=completion.local_nodes)


@click.group()
def cluster() -> None:
    """Clusters of real node processes on this machine, at 127.0.0.1, 127.0.0.2, …"""


@cluster.command()
@click.argument("name")
@click.option("-n", "--nodes", default=3, show_default=True, help="Number of nodes.")
@click.option("--dc", "dcs", multiple=True, metavar="D:N", help="N nodes in data centre D; may be repeated.")
@click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="A setting for all nodes."
)
@click.option("--first-address", default="127.0.0.1", show_default=True, help="Address of the first node.")
@click.option(
    "--auth", is_flag=True, help="Clients log in, first as cassandra/cassandra, and need permissions."
)
@click.option(
    "--membership",
    type=click.Choice(["log", "ring"]),
    default="log",
    show_default=True,
    help="With a metadata log, or on the ring without one.",
)
@click.option(
    "--ring-mode",
    type=click.Choice(["quorum", "unanimous"]),
    default=None,
    help="On the ring: a majority of the members agrees on changes (the default), or all of them do.",
)
@click.option("--start/--no-start", "begin", default=True, show_default=True, help="Start it as well.")
def create(
    name: str,
    nodes: int,
    dcs: tuple[str, ...],
    assignments: tuple[str, ...],
    first_address: str,
    auth: bool,
    membership: str,
    ring_mode: str | None,
    begin: bool,
) -> None:
    """Create the cluster NAME and start it."""
    from lockstep.local.clusters import LocalCluster

    if ring_mode is not None and membership != "ring":
        raise click.UsageError("--ring-mode is of a cluster on the ring: --membership ring")
    if membership == "ring":
        on_ring = (f"cluster.membership={membership}", f"cluster.ring_mode={ring_mode or 'quorum'}")
        assignments = (*on_ring, *assignments)
    made = LocalCluster.create(
        name,
        nodes,
        dcs=[_dc(text) for text in dcs],
        settings=_settings((*_AUTH, *assignments) if auth else assignments),
        first_address=first_address,
    )
    if begin:
        try:
            made.start(told=_tell)
        except BaseException:
            # What is left of it would be in the way of the next attempt.
            made.destroy()
            raise
    content = made.file
    click.echo(f"cluster {name}: {len(content.nodes)} nodes {'serving' if begin else 'created'}")
    if begin:
        first = content.nodes[0].address
        admin = (
            ""
            if (first, content.admin_port) == ("127.0.0.1", 7080)
            else f" --host {first}:{content.admin_port}"
        )
        login = " -u cassandra -p cassandra" if auth else ""
        click.echo(f"\n  cqlsh{login} {first} {content.cql_port}\n  lockstep status{admin}")
    else:
        click.echo(f"\n  lockstep cluster start {name}")


@cluster.command()
@_name
@_some_nodes
def start(name: str, nodes: tuple[str, ...]) -> None:
    """Start all nodes that do not run, or only NODES, and wait until they serve."""
    started = _open(name).start(nodes, told=_tell)
    click.echo(f"started {', '.join(started)}" if started else "all of them run already")


@cluster.command()
@_name
@click.option("--dc", default="dc1", show_default=True, help="Its data centre.")
@click.option("--rack", default="rack1", show_default=True, help="Its rack.")
@click.option(
    "--replaces",
    default="",
    metavar="NODE",
    help="Take the place of this dead node, given by name or id.",
    shell_complete=completion.local_nodes,
)
@click.option(
    "--tokens",
    type=click.IntRange(0, TOKENS_PER_NODE_MAX),
    default=None,
    help="How many tokens it owns, else as many as the settings say; 0: it only coordinates requests.",
)
@render.dry_run
@render.output
def add(name: str, dc: str, rack: str, replaces: str, tokens: int | None, dry_run: bool, output: str) -> None:
    """Add a node; returns when it has joined and serves."""
    local = _open(name)
    if not dry_run:
        node = local.add(dc=dc, rack=rack, replaces=replaces, tokens=-1 if tokens is None else tokens)
        if output == "json":
            render.json_out({"name": node.name, "address": node.address}, "local-node/1")
        else:
            click.echo(f"{node.name} joined at {node.address}")
        return
    node = local.next_node(dc=dc, rack=rack, replaces=replaces)
    kind = {"kind": "replace", "node": node.replaces} if replaces else {"kind": "bootstrap"}
    new = {"address": node.address, "dc": node.dc, "rack": node.rack, "num_tokens": tokens}
    plan = local.any_admin().post("/v1/requests", {**kind, "new": new, "dry_run": True})
    if output == "json":
        render.json_out(plan, "request-plan/1")
    else:
        plans.show(plan)


@cluster.command()
@_name
@_nodes
def kill(name: str, nodes: tuple[str, ...]) -> None:
    """Kill NODES at once (SIGKILL), as a crash would."""
    local = _open(name)
    local.kill(*nodes)
    click.echo(f"killed {', '.join(nodes)}")
    if not local.await_noticed(nodes):
        click.echo("the others have not noticed yet: see lockstep status", err=True)


@cluster.command()
@_name
@_nodes
def pause(name: str, nodes: tuple[str, ...]) -> None:
    """Freeze NODES (SIGSTOP): they hold their connections and answer nothing."""
    _open(name).pause(*nodes)
    click.echo(f"paused {', '.join(nodes)}")


@cluster.command()
@_name
@_nodes
def resume(name: str, nodes: tuple[str, ...]) -> None:
    """Let paused NODES go on."""
    _open(name).resume(*nodes)
    click.echo(f"resumed {', '.join(nodes)}")


@cluster.command()
@_name
@click.argument("one", metavar="A[,A2…]", shell_complete=completion.local_nodes)
@click.argument("other", metavar="B[,B2…]", shell_complete=completion.local_nodes)
def partition(name: str, one: str, other: str) -> None:
    """Cut all connections between nodes A and nodes B, in both directions."""
    _open(name).partition(one.split(","), other.split(","))
    click.echo(f"cut {one} from {other}")


@cluster.command()
@_name
def heal(name: str) -> None:
    """End every partition."""
    _open(name).heal()
    click.echo("all nodes may talk to each other")


@cluster.command()
@_name
@_some_nodes
def stop(name: str, nodes: tuple[str, ...]) -> None:
    """Stop all nodes, or only NODES, in good order; kill those that do not."""
    late = _open(name).stop(nodes)
    click.echo("stopped")
    if late:
        click.echo(f"killed, because they did not stop in time: {', '.join(late)}", err=True)


@cluster.command()
@_name
@click.argument("node", shell_complete=completion.local_nodes)
def forget(name: str, node: str) -> None:
    """Drop a stopped NODE that has left the cluster, with its data."""
    cluster = _open(name)
    _refuse_member(cluster, node)
    cluster.forget(node)
    click.echo(f"{node} is gone")


def _refuse_member(cluster: LocalCluster, node: str) -> None:
    """PreconditionError while the cluster counts the node in: its data may be the only copy."""
    try:
        known = cluster.node_id(node)
    except ConfigurationError:
        return  # It has left, or never joined; a name that means nothing is refused right after.
    raise PreconditionError(
        f"{node} is node {known} of the cluster and has not left it",
        hint=f"`lockstep topology decommission {known}` lets it leave, or `lockstep topology remove {known}` "
        "when it is dead",
    )


@cluster.command("list")
@render.output
def list_(output: str) -> None:
    """List local clusters and their nodes."""
    from lockstep.local.clusters import list_clusters

    rows: list[dict[str, Any]] = []
    for one in list_clusters():
        content = one.file
        for node in content.nodes:
            state = one.state(node.name).value
            rows.append({"cluster": one.name, "node": node.name, "address": node.address, "dc": node.dc})
            rows[-1] |= {"state": state, "cql_port": content.cql_port, "admin_port": content.admin_port}
    if output == "json":
        render.json_out({"nodes": rows}, "local-clusters/1")
    elif not rows:
        click.echo("no local clusters; make one: lockstep cluster create try -n 3")
    else:
        columns = list(rows[0])
        render.table(columns, [[row[name] for name in columns] for row in rows])


@cluster.command()
@_name
def destroy(name: str) -> None:
    """Kill all nodes of NAME and delete everything it stored."""
    _open(name).destroy()
    click.echo(f"cluster {name} is gone")


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _open(name: str) -> LocalCluster:
    from lockstep.local.clusters import LocalCluster

    return LocalCluster.open(name)


def _dc(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition(":")
    if not name or not number.isdecimal():
        raise ConfigurationError(f"`{text}` is not a data centre and a number", hint="write --dc east:3")
    return name, int(number)


def _settings(assignments: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """`section.key=value` with the value written as in TOML; a bare word is a string."""
    import tomllib

    made: dict[str, dict[str, Any]] = {}
    for text in assignments:
        path, equals, written = text.partition("=")
        section, dot, key = path.partition(".")
        if not equals or not dot:
            raise ConfigurationError(f"`{text}` is not a setting", hint="write --set log.level=debug")
        try:
            value = tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            value = written
        made.setdefault(section, {})[key] = value
    return made


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option(
    "--input",
    "input_",
    type=_FILE,
    metavar="FILE",
    help="CSV with a header to load; by default, rows made from what this machine has.",
)
@click.option("--rows", type=click.IntRange(1), help="Load at most this many rows.")
@click.option("--rate", default=600, show_default=True, type=click.IntRange(2, 20_000), help="Operations/s.")
@click.option("--settle", default=5.0, show_default=True, help="Seconds of traffic between two operations.")
@click.option("--report", default=Path("demo-report"), show_default=True, type=_DIRECTORY, metavar="DIR")
@click.option("--spark/--no-spark", default=True, show_default=True, help="End with the Spark job.")
@click.option("--first-address", default="127.0.0.1", show_default=True, help="Address of the first node.")
@click.option("--keep", is_flag=True, help="Leave the cluster running at the end.")
@click.option(
    "--act",
    type=click.Choice(["tour", "disaster"]),
    default="tour",
    show_default=True,
    help="disaster: five nodes lose most voters with their disks, and are repaired; takes no other options "
    "but --first-address and --keep.",
)
def demo(
    input_: Path | None,
    rows: int | None,
    rate: int,
    settle: float,
    report: Path,
    spark: bool,
    first_address: str,
    keep: bool,
    act: str,
) -> int:
    """Start three nodes, load them, change the topology under traffic, and check that nothing was lost."""
    if act == "disaster":
        from lockstep.local import demo_disaster

        chosen = demo_disaster.DisasterOptions(first_address=first_address, keep=keep)
        return demo_disaster.run(chosen)
    # The tour loads much that no other command needs, so it is imported only when it is used.
    from lockstep.local.demo import run
    from lockstep.local.demo_tour import Options

    return run(
        Options(
            report=report,
            input=input_,
            rows=rows,
            ops_per_s=rate,
            settle_s=settle,
            spark=spark,
            keep=keep,
            first_address=first_address,
        )
    )
