"""Owns `lockstep why` and `lockstep explain`: the story of a thing from the log and why it is not as it
should be now, and what each error code of the tree means and what to do about it.

Invariant: every sentence of a story is made from what a node answers; when nothing is wrong it says so, and
exits 0. Every code of the tree has its text here; a test fails for one that has not.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import click
import msgspec

from lockstep.cli import read_sessions
from lockstep.cli.shared import apart, render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.recovery import ClusterState
from lockstep.documents.requests import Request, Story
from lockstep.documents.runs import Loads
from lockstep.documents.service import GlobalState, LocalStates, Service
from lockstep.documents.status import ListedNode, Status
from lockstep.documents.tablets import TabletPlan
from lockstep.local.admin_client import class_by_code, error_classes
from lockstep.values.errors import ConfigurationError, LockstepError, RequestError

#: Code -> (what happened, what to do).
TEXTS: Final[dict[str, tuple[str, str]]] = {
    "LOCKSTEP": ("Something failed that has no code of its own.", "Read the sentence, then the node's log."),
    "CONFIGURATION": (
        "A setting, an argument or a name is wrong; nothing was changed.",
        "Correct what the sentence names and try again. Unknown keys come with the closest known one.",
    ),
    "PRECONDITION": (
        "The present state of the cluster does not allow this; nothing was changed.",
        "Bring about the state that the sentence asks for; --dry-run shows it beforehand.",
    ),
    "NODE_RESTARTING": (
        "The node begins another life in its process, after a repair of the groups: it is back in seconds.",
        "Connect again. `lockstep recovery` shows which incarnation of the cluster it is of.",
    ),
    "CHANGES_GONE": (
        "Changes that were to be read are not in the log of their table any more: they expired, or the table "
        "was dropped and made anew.",
        "Go on with what is there (the option onGap, or --on-gap skip), or begin anew with another "
        "checkpoint. A longer ttl of the table's option cdc leaves more time.",
    ),
    "REQUEST": ("A CQL request failed.", "The codes that begin with CQL_ say more."),
    "CQL_CREDENTIALS": (
        "The login was refused: no such role, another password, or a role that may not log in. At the admin "
        "port: no credential, or another node's token.",
        "LIST ROLES shows who may log in; ALTER ROLE ... WITH PASSWORD sets another password. Commands take "
        "--token-file FILE with admin.token of the node's data directory, or --user ROLE.",
    ),
    "CQL_UNAUTHORIZED": (
        "The role has no permission for this, or was dropped since it logged in. At the admin port also: the "
        "request came from a web page, or called the node by a name that is not its.",
        "LIST ALL PERMISSIONS OF a role shows what it may do; GRANT gives more.",
    ),
    "CQL_SYNTAX": ("The statement is not CQL.", "The sentence names line and column of the first bad word."),
    "CQL_INVALID": (
        "The statement is CQL, but it does not fit the schema or a rule.",
        "lockstep describe KEYSPACE.TABLE shows what the schema is now.",
    ),
    "CQL_COLUMNS_GONE": (
        "Columns of the table were dropped while the request was under way.",
        "Nothing to do: coordinators plan the request anew, and clients see its outcome.",
    ),
    "CQL_FUNCTION": (
        "A function or an operator could not work its arguments out, as in a division by zero; or a user "
        "function failed, took too long or too much memory.",
        "Look at the values and the function that the message names; the statement itself is fine.",
    ),
    "CQL_CONFIGURATION": (
        "Options of a keyspace or table are not allowed, such as a replication factor above the nodes.",
        "lockstep ring shows data centres and nodes; correct the options.",
    ),
    "CQL_ALREADY_EXISTS": (
        "A keyspace or table of this name exists.",
        "Add IF NOT EXISTS, or choose another name.",
    ),
    "CQL_UNPREPARED": (
        "This node does not know the prepared statement.",
        "Drivers prepare it again by themselves.",
    ),
    "CQL_PROTOCOL": (
        "The bytes are not the native protocol, or not in order.",
        "Use a driver with protocol v4 or v5.",
    ),
    "CQL_SERVER": ("A defect in the server.", "Look in the node's log for the cause, and report it."),
    "CQL_OVERLOADED": ("The node has more requests in flight than it allows.", "Slow down, then try again."),
    "CQL_DRAINING": (
        "The node takes leave of its clients (a drain, or it is being stopped). Nothing was done.",
        "Drivers try another node by themselves.",
    ),
    "CQL_UNAVAILABLE": (
        "Too few replicas are alive for the consistency level. Nothing was written.",
        "lockstep status shows which nodes are down. Start them, or lower the consistency level.",
    ),
    "CQL_TRUNCATE": (
        "The table is emptied in the log, but a live node did not confirm in time: it may show old rows.",
        "Run TRUNCATE again; lockstep status shows which node is behind.",
    ),
    "CQL_WRITE_TIMEOUT": (
        "Too few replicas confirmed in time. The write may or may not be applied, now or later.",
        "Write again with the same values and timestamp if that is harmless (not counters, not IF).",
    ),
    "CQL_CAS_UNKNOWN": (
        "A conditional write was proposed and then lost sight of: it may or may not be applied, also later.",
        "Read at SERIAL what is there; a condition that names the value expected makes another try safe.",
    ),
    "CQL_READ_TIMEOUT": (
        "Too few replicas answered in time.",
        "Read again; lockstep status shows slow or lost nodes.",
    ),
    "CQL_READ_FAILURE": (
        "A replica could not read.",
        "Look in the log of the replicas; a disk may be failing.",
    ),
    "CQL_WRITE_FAILURE": (
        "A replica could not write. The write may be applied at other replicas.",
        "Look in the log of the replicas; a disk may be full. Then write again.",
    ),
    "METADATA": (
        "A change of the metadata failed.",
        "The more exact codes are REJECTED, OUTCOME_UNKNOWN, NOT_LEADER.",
    ),
    "REJECTED": (
        "The change was judged and refused; it is not in the log and never will be.",
        "The sentence names what is in the way, often another operation: lockstep topology requests.",
    ),
    "OPERATION_RUNNING": (
        "An operation that holds ranges excludes the change; it is not in the log.",
        "Wait for the operation (lockstep topology watch) or cancel it, then try again.",
    ),
    "VERSION_MISMATCH": (
        "Some node of the cluster runs a version that cannot read this entry, or the joining node's cannot "
        "read the log.",
        "Upgrade the nodes that the sentence names, then try again.",
    ),
    "LOG_TRUNCATED": (
        "This node keeps the metadata log only from a later epoch on.",
        "Ask for an epoch that it has, or ask a node with an older log or an archive directory.",
    ),
    "OUTCOME_UNKNOWN": (
        "The change may or may not have happened, or it still runs.",
        "lockstep cms log shows whether it is there. The same request may safely be sent again.",
    ),
    "NOT_LEADER": (
        "This node does not lead the metadata group.",
        "Nothing to do: nodes forward by themselves.",
    ),
    "LEADERSHIP_LOST": (
        "The leader that took this change leads no more; the change may still be committed.",
        "The same request may safely be sent again: nodes do so by themselves until the deadline.",
    ),
    "CANNOT_APPLY": (
        "The log has an entry that this node cannot apply, so it stopped serving rather than skip it.",
        "Run the same version on all nodes; lockstep metadata verify compares their logs.",
    ),
    "PEER": (
        "Talking to another node failed.",
        "The more exact codes begin with PEER_, HANDSHAKE_ and FRAME_.",
    ),
    "PEER_UNREACHABLE": (
        "No connection; nothing was sent.",
        "Check address and port, and that the node runs: lockstep cluster list, lockstep status --host.",
    ),
    "PEER_TIMEOUT": (
        "No answer in time; whether the other side acted is unknown.",
        "Ask again. If it stays so, the node is paused, overloaded or cut off.",
    ),
    "HANDSHAKE_REFUSED": (
        "The other node belongs to another cluster or lineage, or is not who it should be.",
        "Compare cluster.name and the data directories of both; never copy a data directory between nodes.",
    ),
    "FRAME_CORRUPT": (
        "Bytes were damaged on the way; the connection was closed and nothing of them was used.",
        "Once is bad luck. If it repeats, suspect the network hardware or memory of one machine.",
    ),
    "REPLICA_REFUSAL": (
        "A replica refused a request for the sender's good.",
        "Coordinators plan again by themselves.",
    ),
    "STALE_EPOCH": (
        "The sender planned before a change that matters here.",
        "Coordinators catch up and plan again. If clients see it, that node cannot fetch the log.",
    ),
    "OTHER_RING": (
        "On the ring without a log, the sender has another ring of the same epoch than this node. It served "
        "nothing of what was planned with that.",
        "`lockstep ring why` at both nodes. The one that differs from most is emptied and joins anew.",
    ),
    "INDEX_NOT_AVAILABLE": (
        "This node is still building a secondary index, or the entries of rows that were streamed to it.",
        'Read again: coordinators ask other replicas meanwhile. system."IndexInfo" lists what is built.',
    ),
    "NOT_REPLICA": ("This node does not hold the range any more, or not yet.", "Coordinators plan again."),
    "NODE_EXCLUDED": (
        "The node that asks is on the exclude list; nobody takes its requests for data.",
        "Let it catch up, then `lockstep topology exclude NODE --undo`.",
    ),
    "RANGE_LACKING": (
        "This replica lost what it stored of the range; coordinators ask others until it is filled.",
        "`lockstep status` shows how far it is; docs/operate/damaged-table-file.md.",
    ),
    "SESSION_CLOSED": (
        "The work belongs to an operation that has ended.",
        "Nothing to do: it was fenced off.",
    ),
    "STORAGE": (
        "Reading or writing stored data failed.",
        "The more exact codes are CORRUPT_FILE and DISK_REFUSED.",
    ),
    "CORRUPT_FILE": (
        "A file does not hold what was written to it; the node stops rather than serve it.",
        "Keep the file for analysis and check the disk. A file below store: `lockstep node recover` has the "
        "node filled again from its replicas; docs/operate/lost-store.md.",
    ),
    "TABLE_FILE_DAMAGED": (
        "A file of tables is damaged or gone: reads of what is in it are answered by other replicas.",
        "Check the disk, then `lockstep node scrub`: docs/operate/damaged-table-file.md.",
    ),
    "DISK_REFUSED": ("The disk is full or failing.", "Make room or replace it, then start the node again."),
}


@click.command()
@click.argument("code", required=False)
@render.output
def explain(code: str | None, output: str) -> None:
    """Say what an error CODE means and what to do; without CODE, list them all."""
    if code is None:
        codes = [kind.code for kind in error_classes()]
        if output == "json":
            render.json_out({"codes": [_described(kind) for kind in error_classes()]}, "error-codes/1")
        else:
            render.table(["code", "meaning"], [[one, TEXTS[one][0]] for one in codes])
        return
    wanted = code.upper().removeprefix("ERROR[").rstrip("]:")
    kind = class_by_code(wanted)
    if kind is None:
        close = difflib.get_close_matches(wanted, list(TEXTS), n=1)
        hint = f"did you mean {close[0]}?" if close else "lockstep explain lists all codes"
        raise ConfigurationError(f"there is no error code {wanted}", hint=hint)
    described = _described(kind)
    if output == "json":
        render.json_out(described, "error-code/1")
        return
    click.echo(f"{described['code']}: {described['meaning']}\n\n{described['action']}\n")
    render.facts(
        [
            (name.replace("_", " "), described[name])
            for name in described
            if name not in ("code", "meaning", "action")
        ]
    )


def _described(kind: type[LockstepError]) -> dict[str, Any]:
    meaning, action = TEXTS[kind.code]
    described: dict[str, Any] = {
        "code": kind.code,
        "meaning": meaning,
        "action": action,
        "fault": kind.fault,
        "retry_may_help": kind.retriable,
        "outcome_known": kind.outcome_known,
        "exit_code": kind.exit_code,
    }
    if issubclass(kind, RequestError):
        described["cql_code"] = f"0x{kind.cql_code:04X}"
    return described


Reasons = list[dict[str, str]]

KINDS: Final = ("node", "request", "operation", "epoch", "token")
_PREFIXED: Final = re.compile(rf"({'|'.join(KINDS)})[:/](.+)")
_TABLET: Final = "tablet:"
_LOAD: Final = "load:"
_SESSION: Final = "session:"
#: A job renews the lease of its load long before.
_LEASE_SOON_S: Final = 60.0
_RANGE: Final = re.compile(r"([A-Za-z]\w*)(?:\.(\w+))?:(-?\d+)")
_USAGE: Final = (
    "a node (id, host id or address), node:ID, request:ID, operation:ID, epoch:E, token:T, "
    "KEYSPACE[.TABLE]:TOKEN, `range KEYSPACE TOKEN`, tablet:KEYSPACE.TABLE:N, load:JOB, session:ID, cms, "
    "cmg, or a code of lockstep explain"
)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("thing", metavar="THING", nargs=-1, required=True)
@click.option("--events", default=40, show_default=True, type=click.IntRange(min=0), help="Newest ones told.")
@render.of_call
@click.pass_context
def why(context: click.Context, thing: tuple[str, ...], events: int, call: render.Call) -> None:
    """Tell the story of THING, why it waits or does not work, and what to do about it.

    THING is a node (id, host id or address; also one that has left), `request:ID`, `operation:ID`, `epoch:E`,
    a token (`KEYSPACE.TABLE:TOKEN`, `range KEYSPACE TOKEN`, or `token:T` for all keyspaces), a tablet
    (`tablet:KEYSPACE.TABLE:N`), a bulk load (`load:JOB`), a read session (`session:ID`), `cms` or `cmg` (the
    groups behind the metadata), or an error code. A plain number is a node; a prefix says otherwise.
    """
    code = thing[0].upper().removeprefix("ERROR[").rstrip("]:")
    if len(thing) == 1 and class_by_code(code) is not None:
        context.invoke(explain, code=code, output=call.output)
        return
    told = _told(call.cluster(), thing)
    if call.as_json(told, "why/1"):
        return
    _show(told, events)


def _told(cluster: ClusterClient, thing: tuple[str, ...]) -> dict[str, Any]:
    """A `why/1` document: the story, and reasons where it is not as it should be."""
    kind, name, keyspace, table = _parsed(thing)
    if kind == "service":
        return {
            "thing": "the metadata service",
            "reasons": _service(read(Service, cluster.cms())),
            "story": [],
        }
    if kind == "group":
        return {
            "thing": "the management group",
            "reasons": _group(read(GlobalState, cluster.group_global("cmg"))),
            "story": [],
        }
    if kind == "tablet":
        plan = read(TabletPlan, cluster.admin.get("/v1/tablets/plan", explain=name))
        return {"thing": f"tablet {name}", "reasons": [_reason(line) for line in plan.explained], "story": []}
    if kind == "session":
        return read_sessions.why(read_sessions.found(cluster), name)
    if kind == "load":
        return _load(read(Loads, cluster.loads()), name)
    if kind == "node":
        return _node(cluster, name)
    found = cluster.story(kind, name, keyspace=keyspace or None, table=table or None)
    if kind == "request":
        reasons = _request(read(Request, cluster.request(name)))
    else:
        reasons = _degraded(read(Status, cluster.status()), keyspace) if kind == "token" else []
    return {**_of(found), "reasons": reasons}


def _parsed(thing: tuple[str, ...]) -> tuple[str, str, str, str]:
    """(kind, name, keyspace, table)."""
    if thing[0] == "range" and len(thing) == 3:
        keyspace, _, table = thing[1].partition(".")
        return "token", thing[2], keyspace, table
    if len(thing) != 1:
        raise ConfigurationError(f"{' '.join(thing)} is not one thing", hint=f"it is {_USAGE}")
    text = thing[0]
    if text in ("cms", "metastorage", "voters"):
        return "service", text, "", ""
    if text == "cmg":
        return "group", text, "", ""
    if text.startswith(_TABLET):
        return "tablet", text.removeprefix(_TABLET), "", ""
    for start, kind in ((_LOAD, "load"), (_SESSION, "session")):
        if text.startswith(start):
            return kind, text.removeprefix(start), "", ""
    prefixed = _PREFIXED.fullmatch(text)
    if prefixed is not None:
        return prefixed[1], prefixed[2], "", ""
    ranged = _RANGE.fullmatch(text)
    if ranged is not None:
        return "token", ranged[3], ranged[1], ranged[2] or ""
    return "node", text, "", ""


def _of(answer: Mapping[str, Any]) -> dict[str, Any]:
    story = read(Story, answer)
    return {
        "thing": story.thing,
        "from_epoch": story.from_epoch,
        "left_out": story.left_out,
        "story": msgspec.to_builtins(story.events),
    }


def _show(told: Mapping[str, Any], most: int) -> None:
    reasons, story = told["reasons"], told["story"]
    fine = told.get("fine", "nothing is wrong" if not story else "")
    click.echo(f"{told['thing']}: {'' if reasons else fine}".rstrip(" "))
    for reason in reasons:
        click.echo(f"  {reason['sentence']}")
        if reason["hint"]:
            click.echo(f"    hint: {reason['hint']}")
    shown = story[len(story) - most :] if most < len(story) else story
    left_out = int(told.get("left_out") or 0) + len(story) - len(shown)
    if left_out:
        click.echo(f"  {left_out} earlier events are left out (--events, -o json)")
    if told.get("from_epoch"):
        click.echo(f"  what was before epoch {told['from_epoch'] + 1} is not kept at this node")
    width = max((len(str(event["epoch"])) for event in shown), default=0)
    last = None
    for event in shown:
        again = event["epoch"] == last
        at = " " * 8 if again or not event.get("at_us") else _clock(event["at_us"])
        number = " " * width if again else str(event["epoch"]).rjust(width)
        click.echo(f"  {'     ' if again else 'epoch'} {number}  {at}  {event['text']}")
        last = event["epoch"]


def _clock(at_us: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_us / 1e6))


def _reason(sentence: str, hint: str = "") -> dict[str, str]:
    return {"sentence": sentence, "hint": hint}


def _service(told: Service) -> Reasons:
    found = []
    if told.frozen:
        found.append(_reason(f"it is frozen: {told.frozen}", "lockstep cms thaw"))
    if told.leader is None:
        found.append(_reason("no leader is known: nothing can be changed", "start voters that are down"))
    for member in told.members:
        if member.state != "Healthy":
            state = member.state or "does not answer"
            found.append(_reason(f"node {member.node} {state}: {member.reason or 'no reason told'}",
                                 f"lockstep why {member.node}"))  # fmt: skip
    for one in told.waiting:
        whom = f"node {one.node}: " if one.node else ""
        hint = "lockstep cms reconfigure --cancel ends the change" if told.change is not None else ""
        found.append(_reason(f"its voters wait for {whom}{one.reason}, {one.since_s or 0:.0f} s", hint))
    if told.paused:
        hint = "lockstep cms reconfigure --resume"
        found.append(_reason(f"voters are not changed automatically: {told.paused}", hint))
    return found


def _degraded(status: Status, keyspace: str) -> Reasons:
    """What is known to be lacking in ranges of the keyspace; of all keyspaces when none is named."""
    return [
        _reason(f"{one.summary}; at risk: {one.at_risk}", one.hint)
        for one in status.conditions
        if one.code == "RANGES_DEGRADED" and keyspace in ("", one.subject)
    ]


def _load(told: Loads, job: str) -> dict[str, Any]:
    """Why a bulk load is not part of its table."""
    load = next((one for one in told.loads if one.job == job), None)
    if load is None:
        raise ConfigurationError(f"no load is called {job}", hint="lockstep pipeline loads list")
    table = f"{load.keyspace}.{load.table}"
    reasons = []
    if load.state == "running":
        files = render.counted(load.staged_files, "file")
        held = f"the asked node holds {files}, {render.bytes_text(load.staged_bytes)}"
        reasons.append(
            _reason(
                f"it was not committed yet: its job has run for {load.age_s:.0f} s, and {held}",
                f"lockstep pipeline loads cancel {job} ends it",
            )
        )
        if load.lease_left_s is not None and load.lease_left_s < _LEASE_SOON_S:
            reasons.append(
                _reason(
                    f"its lease ends in {max(load.lease_left_s, 0):.0f} s: then nothing of it is left",
                    "its job renews the lease while its tasks stage files; look whether it still runs",
                )
            )
    elif load.state != "committed":
        reasons.append(_reason(f"it was {load.state} at epoch {load.ended_epoch}: {load.reason}",
                               "load again under another loadId"))  # fmt: skip
    fine = f"it is part of {table} since epoch {load.ended_epoch}, {render.counted(load.rows, 'row')}"
    return {"thing": f"load {job} of {table}", "reasons": reasons, "story": [], "fine": fine}


def _group(told: GlobalState) -> Reasons:
    return [
        _reason(f"node {member.node} is not available: {member.reason or member.state}",
                f"lockstep why {member.node}")
        for member in told.members
        if not member.available
    ]  # fmt: skip


def _request(told: Request) -> Reasons:
    found = [
        _reason(f"it waits for node {one.node}: {one.reason}", f"lockstep why {one.node}")
        if one.node
        else _reason(f"it waits in the queue: {one.reason}", "lockstep topology requests")
        for one in told.waiting
    ]
    if told.reason:
        found.append(_reason(told.reason))
    return found


def _node(cluster: ClusterClient, name: str) -> dict[str, Any]:
    """What both groups and running operations say of a node now, after its story."""
    try:
        story = _of(cluster.story("node", name))
    except ConfigurationError as error:
        raise ConfigurationError(f"{name} is no thing that has a story: {error.message}",
                                 hint=f"{error.hint}; else say {_USAGE}") from None  # fmt: skip
    wanted = int(story["thing"].rpartition(" ")[2])
    status = read(Status, cluster.status())
    node = next((one for one in status.nodes if one.id == wanted), None)
    if node is None:
        return {**story, "thing": f"node {wanted}", "reasons": [], "fine": "it has left the cluster"}
    return {
        **story,
        "thing": f"node {wanted} ({node.address})",
        "reasons": _node_reasons(cluster, status, node),
        "fine": "nothing is wrong",
    }


def _of_silent(cluster: ClusterClient, node: ListedNode) -> dict[str, str]:
    away = apart.found(cluster, read(ClusterState, cluster.cluster_state()), [node])
    if away:
        return _reason(f"it does not take part: {away[0].sentence}", away[0].hint)
    return _reason("it seems down: no sign of life", "start it; its own log says why it ended")


def _node_reasons(cluster: ClusterClient, status: Status, node: ListedNode) -> Reasons:
    wanted = node.id
    found: Reasons = []
    if not node.alive:
        excluded = next((one for one in status.excluded if one.node == wanted), None)
        found.append(
            _reason(
                f"it is excluded since epoch {excluded.since_epoch}: {excluded.reason}",
                f"lockstep topology exclude {wanted} --undo, once it has caught up",
            )
            if excluded is not None
            else _of_silent(cluster, node)
        )
    behind = status.epoch - (node.epoch or 0)
    if behind > 0:
        found.append(
            _reason(f"it is {render.counted(behind, 'epoch')} behind as far as the asked node knows")
        )
    if node.state != "normal":
        found.append(_reason(f"it is {node.state}", "lockstep topology requests"))
    for one in status.conditions:
        if one.node == wanted and one.code not in ("NODE_DOWN", "NODE_EXCLUDED"):
            found.append(_reason(f"{one.summary}: {one.detail}; at risk: {one.at_risk}", one.hint))
    for group in ("metastorage", "cmg"):
        for row in read(LocalStates, cluster.group_local(group, str(wanted))).states:
            if row.reason and (row.state or not row.answered):
                hint = "lockstep explain CANNOT_APPLY" if row.state == "Broken" else ""
                found.append(_reason(f"{group}: {row.state or 'no answer'}: {row.reason}", hint))
            elif row.state not in (None, "Healthy"):
                found.append(_reason(f"{group}: {row.state}"))
    for operation in status.operations:
        for waits in operation.waiting:
            if waits.node == wanted:
                found.append(_reason(f"request {operation.id} waits for it: {waits.reason}"))
    return found
