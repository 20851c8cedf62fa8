"""Mistakes of operators and hostile bytes: each is refused in one clear sentence, and the cluster goes on.

One cluster of four nodes serves a client all the time; every test ends by checking that this client saw
nothing.
"""

from __future__ import annotations

import random
import shutil
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra import AlreadyExists, InvalidRequest, OperationTimedOut, Unavailable
from cassandra.cluster import NoHostAvailable, Session
from cassandra.protocol import ConfigurationException, ErrorMessage, SyntaxException

from lockstep.local.clusters import LocalCluster
from lockstep.server.main import main
from tests.acceptance import parts
from tests.acceptance.parts import (
    ADMIN_PORT,
    CQL_PORT,
    END_S,
    INTERNODE_PORT,
    Load,
    lockstep,
    node_process,
    node_settings,
    run_node,
    until,
    write_settings,
)

FIRST = "127.0.0.31"
#: Addresses for nodes outside the cluster.
OTHER, ANOTHER, UNUSED = "127.0.0.41", "127.0.0.42", "127.0.0.49"
HOST = f"{FIRST}:{ADMIN_PORT}"


class Running:
    def __init__(self, cluster: LocalCluster, load: Load, left_data: Path) -> None:
        self.cluster, self.load, self.left_data = cluster, load, left_data


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    cluster = LocalCluster.create("good", 3, first_address=FIRST, ports=parts.PORTS, home=home)
    with cluster:
        cluster.start()
        cluster.add()
        load = Load(cluster.contact_points[:3])
        try:
            yield Running(cluster, load, cluster.paths.data("n4"))
        finally:
            load.close()


@pytest.fixture(autouse=True)
def client_sees_nothing(running: Running) -> Iterator[None]:
    yield
    running.load.goes_on()
    assert parts.settled_errors(running.cluster) == ""


def founder_of_one(directory: Path, address: str = OTHER, **sections: dict[str, object]) -> Path:
    cluster = {"name": "single", "founders": [address]}
    return write_settings(directory, node_settings(address, directory / "data", cluster, **sections))


def joiner(directory: Path, address: str = OTHER, **cluster: object) -> Path:
    given = {"name": "good", "seeds": [FIRST], **cluster}
    return write_settings(directory, node_settings(address, directory / "data", given))


# -- configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("[netwrok]\naddress = '127.0.0.1'", "unknown section [netwrok]", "did you mean network?"),
        ("[network]\ncqlport = 1", "unknown key network.cqlport", "did you mean network.cql_port?"),
        ("[network]\ncql_port = 'many'", "network.cql_port: expected `int`, got `str`", ""),
        ("[network]\ncql_port = 70000", "network.cql_port: expected `int` <= 65535", ""),
        ("[cluster]\nfounders = 'me'", "cluster.founders: expected `array`, got `str`", ""),
        ("[cluster]\nname = 'x'", "nothing says how this node finds its cluster", "set cluster.founders"),
        ("[log]\nlevel = 'loud'", "log.level: invalid enum value 'loud'", ""),
        ("network = ", "is not TOML", ""),
    ],
)
def test_a_wrong_configuration_names_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str, hint: str
) -> None:
    file = tmp_path / "lockstep.toml"
    file.write_text(text)
    code = main(["--config", str(file)])
    said = capsys.readouterr()
    parts.Ended(code, said.out, said.err).refused(
        "CONFIGURATION", 2, str(file), sentence, hint, hint=bool(hint)
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    run_node(tmp_path / "absent.toml").refused("CONFIGURATION", 2, "absent.toml cannot be read", hint=False)


# -- addresses and directories ------------------------------------------------------------------------


@pytest.mark.parametrize("port", [CQL_PORT, INTERNODE_PORT, ADMIN_PORT])
def test_a_port_in_use_is_named_before_the_node_joins(tmp_path: Path, running: Running, port: int) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((OTHER, port))
        taken.listen()
        ended = run_node(joiner(tmp_path))
    ended.refused("CONFIGURATION", 2, f"address {OTHER}:{port} is in use")
    known = running.cluster.admin("n1").get("/v1/nodes")["nodes"]
    assert OTHER not in [node["address"] for node in known]


def test_an_unwritable_data_directory_is_named(tmp_path: Path) -> None:
    # Not even root can make a directory below a file.
    (tmp_path / "data").write_text("")
    run_node(founder_of_one(tmp_path)).refused("CONFIGURATION", 2, str(tmp_path / "data"))


def test_a_data_directory_is_used_by_one_process_only(tmp_path: Path, running: Running) -> None:
    data = running.cluster.paths.data("n2")
    cluster = {"name": "good", "seeds": [FIRST]}
    file = write_settings(tmp_path, node_settings(OTHER, data, cluster))
    run_node(file).refused("PRECONDITION", 3, str(data), "in use by another process")


@pytest.fixture(scope="module")
def foreign_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped node of another cluster."""
    directory = tmp_path_factory.mktemp("foreign")
    with node_process(founder_of_one(directory)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        assert parts.stop_node(process).code == 0
    return directory / "data"


def test_data_of_another_cluster_cannot_join(tmp_path: Path, foreign_data: Path) -> None:
    shutil.copytree(foreign_data, tmp_path / "data")
    ended = run_node(joiner(tmp_path))
    ended.refused("CONFIGURATION", 2, "belongs to cluster single", "not to good")


def test_data_of_another_cluster_cannot_found(tmp_path: Path, foreign_data: Path) -> None:
    shutil.copytree(foreign_data, tmp_path / "data")
    cluster = {"name": "other", "founders": [OTHER]}
    ended = run_node(write_settings(tmp_path, node_settings(OTHER, tmp_path / "data", cluster)))
    ended.refused("CONFIGURATION", 2, "belongs to cluster single", "not to other")


def test_a_second_node_with_the_same_address_is_refused(tmp_path: Path, running: Running) -> None:
    # The address is free for a moment, so the newcomer can listen there; the cluster knows its owner.
    running.cluster.kill("n4")
    try:
        ended = run_node(joiner(tmp_path, address=running.cluster.contact_points[3]))
    finally:
        running.cluster.start(["n4"])
    ended.refused("CONFIGURATION", 2, "belongs to node 4")


def test_a_wiped_founder_is_refused(tmp_path: Path, running: Running) -> None:
    founders = [f"127.0.0.{31 + index}" for index in range(3)]
    running.cluster.kill("n3")
    try:
        cluster = {"name": "good", "founders": founders}
        ended = run_node(write_settings(tmp_path, node_settings(founders[2], tmp_path / "data", cluster)))
    finally:
        running.cluster.start(["n3"])
    ended.refused("CONFIGURATION", 2, "belongs to node 3")


def test_founders_that_disagree_say_so_and_wait(tmp_path: Path) -> None:
    founders = [OTHER, ANOTHER]

    def founder(directory: Path, address: str, named: list[str]) -> Path:
        cluster = {"name": "split", "founders": named}
        log = {"file": str(directory / "log")}
        return write_settings(directory, node_settings(address, directory / "data", cluster, log=log))

    def said() -> str:
        return "".join(file.read_text() for file in tmp_path.glob("?/log"))

    first = founder(tmp_path / "1", OTHER, founders)
    second = founder(tmp_path / "2", ANOTHER, [*founders, "127.0.0.43"])
    with node_process(first) as one, node_process(second) as two:
        until(lambda: "this node's founders are" in said(), timeout_s=END_S)
        assert one.poll() is None and two.poll() is None, "they wait"
        told = [parts.stop_node(process) for process in (one, two)]
    assert "ready" not in told[0].out + told[1].out, "a split list founds no cluster"


# -- joining ------------------------------------------------------------------------------------------


def test_a_wrong_cluster_name_cannot_join(tmp_path: Path) -> None:
    run_node(joiner(tmp_path, name="goood")).refused(
        "CONFIGURATION", 2, "'goood'", "'good'", "[cluster] name"
    )


def test_an_unreachable_seed_is_told_and_asked_again(tmp_path: Path) -> None:
    ended = run_node(joiner(tmp_path, seeds=[UNUSED]), timeout_s=6)
    assert ended.code is None, "the seed may come up: the node waits"
    assert "join.waits" in ended.err, ended.err
    assert UNUSED in ended.err, ended.err


# -- leaving ------------------------------------------------------------------------------------------


def test_leaving_is_refused_where_it_would_harm(running: Running) -> None:
    lockstep("topology", "decommission", "127.9.9.9", "--host", HOST).refused(
        "CONFIGURATION", 2, "no node is called 127.9.9.9"
    )
    session = running.load.session
    session.execute(
        "CREATE KEYSPACE four WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 4}"
    )
    try:
        lockstep("topology", "decommission", "4", "--host", HOST).refused(
            "REJECTED", 3, "3 normal nodes would be left, but four has replication factor 4"
        )
    finally:
        session.execute("DROP KEYSPACE four")


def test_an_unknown_request_cannot_be_cancelled() -> None:
    for identity in ("99", "none"):
        ended = lockstep("topology", "cancel", identity, "--host", HOST)
        assert ended.code in (2, 3), ended.err
        ended.refused("REJECTED" if ended.code == 3 else "CONFIGURATION", ended.code, identity)
    lockstep("topology", "watch", "99", "--host", HOST).refused("CONFIGURATION", 2, "there is no request 99")


def test_a_node_that_left_cannot_come_back(running: Running) -> None:
    cluster = running.cluster
    lockstep("topology", "decommission", "4", "--host", HOST)
    cluster.stop(["n4"])
    ended = run_node(cluster.paths.configuration("n4"))
    ended.refused("PRECONDITION", 3, "this node has left the cluster", "empty data directory")


# -- bytes --------------------------------------------------------------------------------------------


def hostile_bytes(port: int) -> list[bytes]:
    chance = random.Random(7)
    noise = [chance.randbytes(size) for size in (1, 8, 9, 100, 5000)]
    if port == CQL_PORT:
        return [
            *noise,
            struct.pack(">BBhBI", 4, 0, 0, 1, 0xFFFFFFFF) + b"x",
            struct.pack(">BBhBI", 4, 0, 0, 1, 0x7FFFFFFF) + b"x",
            struct.pack(">BBhBI", 9, 0, 0, 5, 0),
            struct.pack(">BBhBI", 0x84, 0, 0, 5, 0),
            struct.pack(">BBhBI", 5, 0, 0, 1, 22) + b"\x00\x01\x00\x0bCQL_VERSION",
            struct.pack(">BBhBI", 4, 0, 0, 0x77, 0),
            struct.pack(">BBhBI", 4, 0, 0, 7, 8) + b"\x00\x00\x00\x00\x00\x01\x00\x00",
            struct.pack(">BBhBI", 4, 0, 0, 7, 4) + b"\x7f\xff\xff\xff",
        ]
    if port == INTERNODE_PORT:
        return [
            *noise,
            b"\xff" * 64,
            struct.pack("<I", 0xFFFFFFFF) * 8,
            struct.pack("<I", 4),
            b"GET / HTTP/1.1\r\n",
        ]
    return [
        *noise,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/requests HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
        b"POST /v1/requests HTTP/1.1\r\ncontent-length: 4\r\n\r\n{{{{",
        b"POST /v1/requests HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\n" + b"x: y\r\n" * 5000,
    ]


@pytest.mark.parametrize("port", [CQL_PORT, INTERNODE_PORT, ADMIN_PORT])
def test_hostile_bytes_harm_only_their_own_connection(running: Running, port: int) -> None:
    for content in hostile_bytes(port):
        for whole in (True, False):
            with socket.create_connection((FIRST, port), timeout=5) as connection:
                connection.settimeout(0.05)
                try:
                    connection.sendall(content if whole else content[: len(content) // 2])
                    while connection.recv(65536):
                        pass
                except (TimeoutError, ConnectionError):
                    # Closed by the node, or waiting for the rest: both are right.
                    pass
    running.load.goes_on(20)
    for name, state in running.cluster.states().items():
        if name != "n4":
            assert state.value == "running", name
    assert running.cluster.admin("n1").get("/v1/status")["verdict"].startswith("healthy")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"kind": "explode", "node": 1}', 400),
        (b'{"kind": "decommission", "node": "one"}', 400),
        (b'{"kind": "decommission", "node": 77}', 409),
    ],
)
def test_wrong_calls_of_the_admin_api_get_an_error_document(running: Running, body: bytes, code: int) -> None:
    import http.client
    import json

    connection = http.client.HTTPConnection(FIRST, ADMIN_PORT, timeout=5)
    shown = running.cluster.credential("n1").authorization
    headers = {"Content-Type": "application/json", "Authorization": shown}
    connection.request("POST", "/v1/requests", body, headers)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert answer.status == code, document
    assert document["code"] in ("CONFIGURATION", "REJECTED"), document
    assert document["message"], document


# -- CQL ----------------------------------------------------------------------------------------------

WRONG: list[tuple[str, type[Exception], str]] = [
    ("SELEC * FROM acceptance.load", SyntaxException, "SELEC"),
    ("SELECT * FROM", SyntaxException, ""),
    ("SELECT * FROM acceptance.load WHERE k = 'open", SyntaxException, ""),
    ("SELECT * FROM nowhere.load", InvalidRequest, "keyspace nowhere does not exist"),
    ("SELECT * FROM acceptance.absent", InvalidRequest, "table absent does not exist"),
    ("SELECT * FROM load", InvalidRequest, "No keyspace has been specified"),
    ("SELECT absent FROM acceptance.load", InvalidRequest, "Undefined column name absent"),
    ("SELECT * FROM acceptance.load WHERE v = 1", InvalidRequest, "ALLOW FILTERING"),
    ("SELECT * FROM acceptance.load WHERE k = 'x'", InvalidRequest, "Invalid STRING constant (x)"),
    ("SELECT * FROM acceptance.load LIMIT 0", InvalidRequest, "LIMIT must be strictly positive"),
    ("SELECT nope(v) FROM acceptance.load", InvalidRequest, "Unknown function 'nope'"),
    ("INSERT INTO acceptance.load (v) VALUES (1)", InvalidRequest, "Some partition key parts are missing: k"),
    ("INSERT INTO acceptance.load (k, v) VALUES (1)", InvalidRequest, "Unmatched column names/values"),
    ("INSERT INTO acceptance.load (k) VALUES (99999999999)", InvalidRequest, "Unable to make int"),
    ("CREATE TRIGGER r ON acceptance.load USING 'x'", InvalidRequest, "not supported"),
    ("INSERT INTO acceptance.load (k) VALUES (1) USING TTL -1", InvalidRequest, "TTL must be greater"),
    ("UPDATE acceptance.load SET k = 1 WHERE k = 1", InvalidRequest, "PRIMARY KEY part k found in SET part"),
    ("DELETE FROM acceptance.load", SyntaxException, ""),
    ("INSERT INTO system.local (key) VALUES ('x')", Exception, ""),
    ("CREATE TABLE acceptance.load (k int PRIMARY KEY)", AlreadyExists, "acceptance.load"),
    (
        "CREATE KEYSPACE acceptance WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        AlreadyExists,
        "acceptance",
    ),
    ("CREATE KEYSPACE x WITH replication = {'class': 'NoStrategy'}", ConfigurationException, "NoStrategy"),
    (
        "CREATE KEYSPACE x WITH replication = {'class': 'SimpleStrategy', 'replication_factor': -1}",
        ConfigurationException,
        "",
    ),
    (
        "CREATE KEYSPACE x WITH replication = {'class': 'NetworkTopologyStrategy', 'dc9': 1}",
        ConfigurationException,
        "dc9",
    ),
    ("CREATE TABLE acceptance.x (a int, b int)", InvalidRequest, "PRIMARY KEY"),
    ("CREATE TABLE acceptance.x (a strange PRIMARY KEY)", InvalidRequest, "strange"),
    ("ALTER TABLE acceptance.load ADD v int", InvalidRequest, "v"),
    ("DROP TABLE acceptance.absent", InvalidRequest, "absent"),
    ("DROP KEYSPACE system", Exception, "system"),
    ("TRUNCATE acceptance.absent", InvalidRequest, "absent"),
    ("USE nowhere", InvalidRequest, "nowhere"),
]


@pytest.fixture(scope="module")
def session(running: Running) -> Iterator[Session]:
    cluster = parts.connect(running.cluster.contact_points[:3])
    yield cluster.connect()
    cluster.shutdown()


@pytest.mark.parametrize(("text", "kind", "sentence"), WRONG, ids=[text[:40] for text, _, _ in WRONG])
def test_wrong_cql_gets_its_code_and_a_sentence(
    session: Session, text: str, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        session.execute(text)
    error = caught.value
    assert not isinstance(error, NoHostAvailable | OperationTimedOut | Unavailable), error
    assert sentence in str(error), str(error)
    assert "Unexpected error" not in str(error), str(error)
    assert "Traceback" not in str(error), str(error)
    assert isinstance(error, ErrorMessage | InvalidRequest | AlreadyExists), type(error)


def test_a_level_that_cannot_be_met_says_how_many_are_missing(session: Session, running: Running) -> None:
    from cassandra import ConsistencyLevel
    from cassandra.query import SimpleStatement

    session.execute(
        "CREATE KEYSPACE wide WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 9}"
    )
    session.execute("CREATE TABLE wide.t (k int PRIMARY KEY)")
    try:
        statement = SimpleStatement(
            "INSERT INTO wide.t (k) VALUES (1)", consistency_level=ConsistencyLevel.ALL
        )
        with pytest.raises(Unavailable) as caught:
            session.execute(statement)
        told = caught.value
        assert (told.consistency, told.required_replicas) == (ConsistencyLevel.ALL, 9)
        assert 0 < told.alive_replicas <= 4
    finally:
        session.execute("DROP KEYSPACE wide")


# -- the command line ---------------------------------------------------------------------------------


def test_commands_say_when_nobody_answers(tmp_path: Path) -> None:
    nobody = f"{UNUSED}:{ADMIN_PORT}"
    for command in (
        ["status"],
        ["ring"],
        ["cms", "log"],
        ["metadata", "verify"],
        ["topology", "requests"],
        ["topology", "decommission", "1"],
        ["describe", "x"],
        ["node", "info"],
    ):
        lockstep(*command, "--host", nobody).refused("PEER_UNREACHABLE", 4, nobody)


@pytest.mark.parametrize(
    "command",
    [
        ["statsu"],
        ["status", "--wrong"],
        ["status", "-o", "xml"],
        ["topology", "decommission"],
        ["metadata", "diff", "one", "two"],
        ["cluster", "create", "x", "-n", "many"],
        ["status", "--host", "here:port"],
        ["explain", "NOPE"],
        ["cluster", "create", "bad/name"],
        ["cluster", "create", "x", "-n", "0"],
        ["cluster", "create", "x", "--set", "log.level=loud"],
        ["cluster", "create", "x", "--dc", "east"],
        ["cluster", "create", "x", "--first-address", "10.0.0.1"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_refused_as_such(tmp_path: Path, command: list[str]) -> None:
    ended = lockstep(*command, home=tmp_path)
    assert ended.code == 2, ended.err
    assert ended.err.startswith("error["), ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "clusters" / "x").exists()


def test_an_unknown_local_cluster_is_refused(tmp_path: Path) -> None:
    lockstep("cluster", "start", "absent", home=tmp_path).refused("PRECONDITION", 3, "absent")


# -- damaged files ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["metadata/log-000000000001", "raft/group-1", "identity"])
def journal(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def killed_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that was killed while it served."""
    directory = tmp_path_factory.mktemp("killed")
    with node_process(founder_of_one(directory)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        process.kill()
    return directory / "data"


def single(directory: Path, data: Path) -> Path:
    """A copy of a node's data with the configuration it had."""
    shutil.copytree(data, directory / "data")
    return founder_of_one(directory)


def tear(file: Path) -> None:
    """Half of a record at a file's end."""
    with file.open("ab") as torn:
        torn.write(struct.pack("<II", 500, 1) + b"half a rec")


def damage(file: Path) -> None:
    """One bit of the first record; a record after it shows that this is no torn tail."""
    whole = file.read_bytes()
    content = bytearray(whole)
    content[12] ^= 0x10
    file.write_bytes(bytes(content) + whole)


def test_a_torn_tail_that_a_crash_left_is_cut_off(tmp_path: Path, killed_data: Path, journal: str) -> None:
    file = single(tmp_path, killed_data)
    tear(tmp_path / "data" / journal)
    with node_process(file) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        assert parts.stop_node(process).code == 0
    assert b"half a rec" not in (tmp_path / "data" / journal).read_bytes()


def test_a_torn_tail_after_a_stop_in_good_order_is_damage(
    tmp_path: Path, foreign_data: Path, journal: str
) -> None:
    file = single(tmp_path, foreign_data)
    size_bytes = (tmp_path / "data" / journal).stat().st_size
    tear(tmp_path / "data" / journal)
    run_node(file).refused("CORRUPT_FILE", 1, f"{journal} is corrupt at byte {size_bytes}: ", "stopped")


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_damage_in_the_middle_names_file_and_offset(
    tmp_path: Path, foreign_data: Path, killed_data: Path, journal: str, stopped: bool
) -> None:
    file = single(tmp_path, foreign_data if stopped else killed_data)
    damage(tmp_path / "data" / journal)
    run_node(file).refused("CORRUPT_FILE", 1, f"{journal} is corrupt at byte 0: ")
