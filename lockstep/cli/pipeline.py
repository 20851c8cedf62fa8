"""Owns `lockstep pipeline`: jobs over whole tables, on Spark.

Invariant: nothing here reads or decides; it hands options to the jobs of `spark.jobs` and shows their plans
and reports. What a job found wrong is exit code 1, as far as it told of everything.
"""

from __future__ import annotations

from typing import Any

import click

from lockstep.cli.loads import loads
from lockstep.cli.read_sessions import sessions
from lockstep.cli.repair import headline
from lockstep.cli.shared import completion, jobs, render, runs
from lockstep.values.errors import ConfigurationError


@click.group()
def pipeline() -> None:
    """Jobs over whole tables, on Spark: export, load, follow, compare.

    Each runs on this machine, with --master on a Spark cluster, or by `spark-submit`.
    """


pipeline.add_command(loads)
pipeline.add_command(sessions)

_table: render.Decorator = click.argument("table", metavar="KEYSPACE.TABLE", shell_complete=completion.tables)


@pipeline.command()
@_table
@click.option("--to", "to", required=True, metavar="DIR", help="A new or empty directory.")
@click.option("--columns", multiple=True, metavar="NAME,...", help="Only these columns.")
@click.option("--partition-by", "by", multiple=True, metavar="NAME,...", help="Directories by these columns.")
@click.option("--resume", is_flag=True, help="Go on with an export into DIR that was broken off.")
@jobs.of_job
def export(
    table: str, to: str, columns: tuple[str, ...], by: tuple[str, ...], resume: bool, job: jobs.JobCall
) -> None:
    """Write a table as Parquet files, with a manifest of schema, rows and digests.

    A scan is no snapshot: rows that are written meanwhile are in it or not. Write times and expiries are not
    exported. `lockstep pipeline load --from DIR` brings the rows back, `verify` compares.
    """
    from lockstep.spark.jobs import export as job_of
    from lockstep.spark.jobs.tables import table_name

    wanted = job_of.Export(table_name(table), to, jobs.names(columns), jobs.names(by), resume)
    access = job.access()
    planned = job_of.plan(access, wanted)
    if job.call.dry_run:
        if not job.as_json(planned, "export-plan/1"):
            click.echo(f"reads {planned.table} at {planned.read_level}, epoch {planned.epoch}")
            render.facts([
                ("columns", ", ".join(planned.columns)),
                ("directories by", ", ".join(planned.partitioned_by) or "-"),
                ("token ranges", f"{planned.ranges} in {render.counted(planned.tasks, 'task')}"),
                ("partitions", "unknown" if planned.partitions is None else f"about {planned.partitions:,}"),
                ("stored", jobs.size_text(planned.bytes)),
                ("goes on with", "what was broken off" if planned.resumes else "-"),
            ])  # fmt: skip
            click.echo(f"writes {planned.to}/data and {planned.to}/manifest.json")
        return
    report = jobs.run(job, f"export {table}", lambda session, told: job_of.run(session, access, wanted, told))
    if job.as_json(report, "export/1"):
        return
    size = render.bytes_text(report.bytes)
    files = render.counted(report.files, "file")
    click.echo(f"{report.rows:,} rows of {report.table} in {files}, {size}, {report.elapsed_s:.1f} s")
    click.echo(report.manifest)


@pipeline.command()
@_table
@click.option(
    "--from", "sources", required=True, multiple=True, metavar="PATH", help="Files, directory, export."
)
@click.option("--format", "kind", type=click.Choice(["parquet", "csv", "json"]), help="As their names end.")
@click.option("--columns", multiple=True, metavar="NAME,...", help="Only these columns of the files.")
@click.option("--separator", default=",", show_default=True, help="Between the values of a CSV file.")
@click.option("--null", "null_text", default="", metavar="TEXT", help="What stands for no value, as NA.")
@click.option("--create", is_flag=True, help="Make the table as the manifest of an export says.")
@click.option("--rejects", default="", metavar="FILE", help="Where rejects go: KEYSPACE.TABLE.rejects.jsonl.")
@click.option("--max-rejects", default=0, show_default=True, help="With more of them nothing is written.")
@click.option("--nulls-delete", is_flag=True, help="No value in a file deletes that of the table.")
@click.option(
    "--write-time", default=0, metavar="MICROSECONDS", help="Write time of all rows; now by default."
)
@jobs.of_job
def load(table: str, sources: tuple[str, ...], kind: str | None, job: jobs.JobCall, **others: Any) -> None:
    """Load Parquet, CSV or JSON files, or an export, into a table.

    Values become the table's types exactly, or their row is a reject. All rows are checked before the first
    one is written.
    """
    from lockstep.spark.jobs import load as job_of
    from lockstep.spark.jobs.tables import table_name

    wanted = job_of.Load(
        table_name(table), sources, kind or "", jobs.names(others["columns"]), others["separator"],
        others["null_text"], others["create"], others["rejects"], others["max_rejects"],
        others["nulls_delete"], others["write_time"],
    )  # fmt: skip
    access = job.access()
    planned = job_of.plan(access, wanted)
    if job.call.dry_run:
        if not job.as_json(planned, "load-plan/1"):
            rows = "" if planned.rows is None else f", {planned.rows:,} rows"
            files = render.counted(planned.files, f"{planned.format} file")
            click.echo(f"reads {files}, {render.bytes_text(planned.bytes)}{rows}")
            for statement in planned.creates:
                click.echo(f"runs {statement}")
            click.echo(f"writes {', '.join(planned.columns)} of {planned.table}")
            if planned.not_loaded:
                click.echo(f"leaves {', '.join(planned.not_loaded)}")
        return
    report = jobs.run(job, f"load {table}", lambda session, told: job_of.run(session, access, wanted, told))
    if job.as_json(report, "load/1"):
        return
    made = ", which was made" if report.created else ""
    rows = f"{report.written:,} of {report.rows:,} rows"
    click.echo(f"{rows} written to {report.table}{made}, {report.elapsed_s:.1f} s")
    if report.rejected:
        click.echo(f"{render.counted(report.rejected, 'reject')}: {report.rejects}")


@pipeline.command()
@_table
@click.option("--to", "to", required=True, metavar="TARGET", help="parquet:DIR, or KEYSPACE.TABLE.")
@click.option(
    "--checkpoint", default="", metavar="DIR", help="How far the job is; in DIR of files if not said."
)
@click.option("--available-now", is_flag=True, help="End with what was written before the job began.")
@click.option("--columns", multiple=True, metavar="NAME,...", help="Only these columns of the table.")
@click.option(
    "--from", "starting", default="earliest", show_default=True, metavar="WHERE",
    help="Without a checkpoint: earliest, latest, or an offset.",
)  # fmt: skip
@click.option("--max-rows", default=0, metavar="COUNT", help="Of a batch, at most.")
@click.option("--max-bytes", default=0, metavar="COUNT", help="Of a batch, about.")
@click.option(
    "--on-gap", type=click.Choice(["fail", "skip"]), default="fail", show_default=True,
    help="Where changes expired before they were read.",
)  # fmt: skip
@click.option("--every", default=1.0, show_default=True, metavar="SECONDS", help="Between batches.")
@jobs.of_job
def cdc(table: str, to: str, job: jobs.JobCall, **others: Any) -> None:
    """Follow the changes of a table into Parquet files or another table, each exactly once.

    Runs until it is interrupted, and goes on where it was when it is run again. The table has the option
    `cdc`.
    """
    from lockstep.spark.jobs import cdc as job_of
    from lockstep.spark.jobs.tables import table_name

    wanted = job_of.Cdc(
        table_name(table), to, others["checkpoint"], jobs.names(others["columns"]), others["available_now"],
        others["starting"], others["max_rows"], others["max_bytes"], others["on_gap"], others["every"],
    )  # fmt: skip
    access = job.access()
    planned = job_of.plan(access, wanted)
    if job.call.dry_run:
        if not job.as_json(planned, "cdc-plan/1"):
            click.echo(f"follows {planned.table} into {planned.to}")
            render.facts([
                ("goes on from", "-" if planned.from_us is None else render.time_text(planned.from_us)),
                ("streams", f"{planned.streams} in {render.counted(planned.generations, 'generation')}"),
                ("kept for", f"{planned.kept_s:,} s" if planned.kept_s else "ever"),
                ("checkpoint", planned.checkpoint),
                ("columns", ", ".join(planned.columns)),
            ])  # fmt: skip
        return
    report = jobs.run(job, f"cdc {table}", lambda session, told: job_of.run(session, access, wanted, told))
    if job.as_json(report, "cdc/1"):
        return
    batches = "1 batch" if report.batches == 1 else f"{report.batches:,} batches"
    click.echo(f"{report.changes:,} changes of {report.table} in {batches}, {report.elapsed_s:.1f} s")
    if report.until_us:
        click.echo(f"read until {render.time_text(report.until_us)}; {report.checkpoint}")


@pipeline.command()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--columns", multiple=True, metavar="NAME,...", help="Only these columns, beside the key.")
@click.option("--buckets", default=4096, show_default=True, help="Digests a side.")
@click.option("--failures", default=100, show_default=True, help="Differing rows that are told.")
@click.option("--float-tolerance", default=0.0, help="How far float and double columns may lie apart.")
@click.option("--time-tolerance-ms", default=0.0, help="How far timestamp columns may lie apart.")
@jobs.of_job
def verify(
    one: str,
    other: str,
    columns: tuple[str, ...],
    buckets: int,
    failures: int,
    float_tolerance: float,
    time_tolerance_ms: float,
    job: jobs.JobCall,
) -> int:
    """Compare two tables, or a table and an export.

    A and B are each KEYSPACE.TABLE, KEYSPACE.TABLE@ADDRESS[:PORT] of another cluster, or the directory of an
    export. Exit code 0: the rows are equal. 1: they are not, and the first differences are told.
    """
    from lockstep.spark.jobs import verify as job_of
    from lockstep.spark.jobs.comparing import Tolerance

    tolerance = Tolerance(float_tolerance, time_tolerance_ms)
    wanted = job_of.Verify(one, other, jobs.names(columns), buckets, failures, tolerance)
    access = job.access()
    if job.call.dry_run:
        planned = job_of.plan(access, wanted)
        if not job.as_json(planned, "verify-plan/1"):
            for side in planned.sides:
                rows = side.rows if side.rows is not None else side.partitions
                about = (
                    "unknown"
                    if rows is None
                    else f"{rows:,} {'rows' if side.rows is not None else 'partitions'}"
                )
                click.echo(f"reads {side.side}, epoch {side.epoch}: {about}, {jobs.size_text(side.bytes)}")
            click.echo(f"compares {', '.join(planned.columns)} by {planned.buckets} digests a side")
        return 0
    report = jobs.run(
        job, f"verify {one} {other}", lambda session, told: job_of.run(session, access, wanted, told)
    )
    if not job.as_json(report, "verify/1"):
        _show_differences(report)
    return 0 if report.equal else 1


def _show_differences(report: Any) -> None:
    sides = ", ".join(f"{name}: {rows:,} rows" for name, rows in zip(report.sides, report.rows, strict=True))
    click.echo(
        f"{sides}; {report.buckets_different} of {report.buckets} digests differ, {report.elapsed_s:.1f} s"
    )
    rows = []
    for one in report.differences:
        key = ", ".join(f"{name}={value}" for name, value in one.key.items())
        if one.missing:
            rows.append(
                [
                    one.token,
                    key,
                    "(the row)",
                    *("-" if one.missing == side else "there" for side in report.sides),
                ]
            )
        rows += [[one.token, key, *values] for values in one.values]
    render.table(["token", "key", "column", *report.sides], rows)
    more = ", and more that are not told" if report.more else ""
    verdict = "equal" if report.equal else f"{render.counted(len(report.differences), 'row')} differ{more}"
    click.echo(render.styled(verdict, "green" if report.equal else "red", bold=True))


@pipeline.command()
@_table
@click.option("--buckets", default=4096, show_default=True, help="Digests of each replica, in all.")
@click.option("--differences", default=100, show_default=True, help="How many are told.")
@click.option(
    "--settle", default=5.0, show_default=True, metavar="SECONDS", help="Until differences are seen again."
)
@click.option(
    "--repair", "repairs", is_flag=True, help="Hand the buckets that differ to `lockstep repair --full`."
)
@render.wait_timeout
@jobs.of_job
def audit(
    table: str,
    buckets: int,
    differences: int,
    settle: float,
    repairs: bool,
    job: jobs.JobCall,
) -> int:
    """Compare all replicas of a table with each other, each asked about itself alone.

    What is written meanwhile is no difference. Exit code 0: all replicas hold the same. 1: they do not; with
    --repair 0 once the repair has ended well. 6: what was compared is the same, but a replica did not answer.
    """
    from lockstep.documents import read
    from lockstep.documents.status import Placements
    from lockstep.spark.jobs import audit as job_of
    from lockstep.spark.jobs.tables import describe, table_name

    name = table_name(table)
    wanted = job_of.Audit(name, buckets, differences, settle)
    cluster, access = job.call.cluster(), job.access()
    described = describe(access, name)
    placements = read(Placements, cluster.placements(name.keyspace, name.table))
    if job.call.dry_run:
        planned = job_of.plan(placements, wanted)
        if not job.as_json(planned, "audit-plan/1"):
            parts = render.counted(planned.ranges, "range")
            click.echo(f"compares {planned.buckets:,} buckets of {planned.table} in {parts}")
            asked = [[f"node {node}", ranges] for node, ranges in planned.replicas]
            render.table(["replica", "ranges"], asked)
        return 0
    doors = {node.id: cluster.at(node.address, node.admin_port).admin for node in cluster.node_list()}
    report = jobs.run(
        job,
        f"audit {table}",
        lambda session, told: job_of.run(session, doors, placements, described, wanted, told, access),
    )
    if not job.as_json(report, "audit/1"):
        _show_audit(report)
    if repairs and report.wrong:
        # Full: the ids of a tracked table say nothing of what an audit found.
        body = {
            "keyspace": name.keyspace, "table": name.table, "ranges": job_of.repair_ranges(report),
            "full": True,
        }  # fmt: skip
        begun = cluster.begin_repair(body)
        ended = runs.follow(begun, "repair", cluster.repair, headline, job.call.timeout_s)
        click.echo(headline(ended), err=job.call.output == "json")
        return 0 if ended["state"] == "done" else 1
    return 1 if report.different else 0 if report.complete else 6


def _show_audit(report: Any) -> None:
    rows = []
    for one in report.differences:
        key = ", ".join(f"{name}={value}" for name, value in one.key.items())
        for node, value, at_us in one.held:
            at = render.time_text(at_us) if at_us else "-"
            shown = "-" if value is None else value
            rows.append([one.token, key, one.column, f"node {node}", shown, at, at_us or "-"])
    render.table(["token", "key", "column", "replica", "value", "written", "microseconds"], rows)
    for one in report.unanswered:
        click.echo(f"node {one.node} did not answer for ({one.left}, {one.right}]: {one.why}")
    held = ", ".join(f"node {node} {count:,}" for node, count in report.rows)
    click.echo(f"{report.buckets:,} buckets at epoch {report.epoch}, rows: {held}; {report.elapsed_s:.1f} s")
    if report.settled:
        click.echo(f"{render.counted(report.settled, 'difference')} of writes under way, which are gone")
    if report.equal:
        who = "all replicas that answered hold" if report.unanswered else "all replicas hold"
        text = f"{who} the same"
    elif not report.different:
        text = (
            f"replicas may differ in {render.counted(len(report.unread), 'bucket')}, whose rows were not told"
        )
    else:
        more = f", of which {len(report.differences)} are told" if report.more else ""
        buckets = render.counted(len(report.wrong), "bucket")
        text = f"{render.counted(report.different, 'difference')} in {buckets}{more}"
    click.echo(render.styled(text, "green" if report.equal else "red", bold=True))


@pipeline.command()
@click.option(
    "--from", "first", default=1, show_default=True, help="First epoch, or the oldest that is kept."
)
@click.option("--until", "last", default=0, metavar="EPOCH", help="Last epoch; the newest by default.")
@click.option("--to", "to", default="", metavar="DIR", help="Write a row an epoch there, as Parquet.")
@jobs.of_job
def history(first: int, last: int, to: str, job: jobs.JobCall) -> int:
    """Show who changed the metadata, epoch by epoch, and prove every epoch's placements.

    Tasks apply the log anew, verify its hashes, and check of each epoch that every range has its replicas and
    that quorums of neighbouring epochs meet. Exit code 1: something does not hold.
    """
    from lockstep.spark.jobs import history as job_of

    cluster = job.call.cluster()
    newest = int(cluster.status().get("epoch", 0))
    last = last or newest
    if not 1 <= first <= last <= newest:
        raise ConfigurationError(f"epochs {first} to {last} are no range", hint=f"there are 1 to {newest}")

    def dump_of(epoch: int) -> bytes:
        return b"".join(cluster.cms_dump(epoch, entries=True))

    if job.call.dry_run:
        planned = job_of.plan(dump_of, first, last)
        if not job.as_json(planned, "history-plan/1"):
            size = render.bytes_text(planned.bytes)
            click.echo(f"reads epochs {planned.first} to {planned.last}: {planned.dumps} dumps, {size}")
            click.echo(f"proves them in {render.counted(planned.tasks, 'task')}")
        return 0
    report = jobs.run(
        job, "history", lambda session, told: job_of.run(session, dump_of, first, last, to, told)
    )
    if not job.as_json(report, "history/1"):
        rows = [
            [one.epoch, one.at, one.actor, one.summary, "; ".join(one.problems) or "holds"]
            for one in report.epochs
        ]
        render.table(["epoch", "at", "actor", "what", "proof"], rows)
        told = f"epochs {report.first} to {report.last}: {report.proved - report.wrong:,} proved"
        text = told if not report.wrong else f"{told}, {report.wrong:,} do not hold"
        click.echo(render.styled(text, "red" if report.wrong else "green", bold=True))
    return 1 if report.wrong else 0


@pipeline.command()
@click.option("--seed", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=100, show_default=True, help="How many.")
@click.option(
    "--scenario", default="", help="Of `sim run`, or quorums; several with commas; round all by default."
)
@click.option("--plant", "plants", multiple=True, metavar="BUG@SEED", help="Plant a bug for this seed alone.")
@click.option("--twice-every", default=20, show_default=True, help="One seed in so many runs twice; 0: none.")
@click.option("--to", "to", default="", metavar="DIR", help="Write a row a seed there, as Parquet.")
@click.option(
    "--report",
    default="",
    metavar="FILE",
    help="Keep a line a seed there as it ends; what it has already is not run again.",
)
@jobs.of_job
def sweep(
    seed: int,
    seeds: int,
    scenario: str,
    plants: tuple[str, ...],
    twice_every: int,
    to: str,
    report: str,
    job: jobs.JobCall,
) -> int:
    """Run many seeds of the simulator, or many proofs of quorums, in tasks of some seconds.

    A seed that fails is a row with its digest and the command that repeats it, also one whose process ends.
    Exit code 1: some failed, or gave two digests. A sweep that was killed goes on from its --report.
    """
    from lockstep.spark.jobs import sweep as job_of

    wanted = job_of.cases(seed, seeds, scenario, plants)
    if job.call.dry_run:
        planned = job_of.plan(wanted, twice_every)
        if not job.as_json(planned, "sweep-plan/1"):
            click.echo(
                f"runs {planned.seeds:,} seeds of {', '.join(planned.scenarios)}, {planned.twice:,} twice"
            )
        return 0
    found = jobs.run(
        job, "sweep", lambda session, told: job_of.run(session, wanted, told, to, twice_every, report)
    )
    if not job.as_json(found, "sweep/1"):
        _show_failures(found)
    return 1 if found.failed or found.not_repeatable else 0


def _show_failures(report: Any) -> None:
    for one in report.failures:
        click.echo(f"FAILED {one.scenario} seed {one.seed} ({one.digest}) {one.invariant}")
        click.echo(f"  {one.violation.splitlines()[0].partition('; ')[0]}")
        again = f"sim replay {one.seed} --scenario {one.scenario}"
        if one.plant or one.scenario == "quorums":
            planted = f" --plant {one.plant}@{one.seed}" if one.plant else ""
            again = f"pipeline sweep --scenario {one.scenario} --seed {one.seed} --seeds 1{planted}"
        click.echo(f"  again: lockstep {again}")
    for name, seed in report.not_repeatable:
        click.echo(f"NOT REPEATABLE {name} seed {seed}")
    text = f"{report.seeds:,} seeds, {report.failed} failed, {report.run_twice} run twice"
    if report.not_repeatable:
        text += f", {len(report.not_repeatable)} not repeatable"
    bad = bool(report.failed or report.not_repeatable)
    click.echo(render.styled(text, "red" if bad else "green", bold=True))
    click.echo(
        f"{report.tasks:,} tasks, {report.task_s:.1f} CPU s each, {report.repeated_tasks:,} of them lost; "
        f"{report.cpu_s:.1f} CPU s in all, {report.elapsed_s:.1f} s; {report.events:,} events; "
        f"{report.resumed:,} runs were in the report"
    )
