"""The configuration file: defaults, refusals, environment, and writing it back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.node.configuration import Configuration, parse, render, split_address
from lockstep.node.settings import Table, emit
from lockstep.values.errors import ConfigurationError

ALONE = '[cluster]\nfounders = ["127.0.0.1"]\n'


def test_a_minimal_file_gets_every_default_filled_in() -> None:
    configuration = parse(ALONE)
    assert configuration.node.name == "127.0.0.1"
    assert configuration.node.data_directory == "./lockstep-data/127.0.0.1"
    assert configuration.cluster.founders == ("127.0.0.1:7000",)
    assert configuration.internode_address == "127.0.0.1:7000"
    assert configuration.is_founder
    assert configuration.network.cql_port == 9042
    assert not configuration.testing.faults


def test_a_joining_node_is_not_a_founder_and_keeps_its_seeds() -> None:
    text = (
        '[node]\nname = "n4"\n[cluster]\nseeds = ["127.0.0.1", "h:7001"]\n[network]\naddress = "127.0.0.4"\n'
    )
    configuration = parse(text)
    assert not configuration.is_founder
    assert configuration.cluster.seeds == ("127.0.0.1:7000", "h:7001")
    assert configuration.node.data_directory == "./lockstep-data/n4"


def test_two_nodes_on_one_address_get_different_directories() -> None:
    one = parse('[cluster]\nfounders = ["127.0.0.1:7000"]\n')
    other = parse('[cluster]\nseeds = ["127.0.0.1:7000"]\n[network]\ninternode_port = 7001\n')
    assert one.node.data_directory != other.node.data_directory


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("[netwrok]\n", "unknown section [netwrok]", "did you mean network?"),
        ("[zzz]\n", "unknown section [zzz]", "known here: node, cluster"),
        ("[network]\ncql_prot = 1\n", "unknown key network.cql_prot", "did you mean network.cql_port?"),
        ("network = 3\n", "network is a section", "[network]"),
        ("[network]\ncql_port = 65536\n", "network.cql_port: expected `int` <= 65535", ""),
        ('[network]\ncql_port = "9042"\n', "network.cql_port: expected `int`, got `str`", ""),
        ("[network]\naddress = ''\n", "network.address: expected `str` matching", ""),
        ("[log]\nlevel = 'loud'\n", "log.level: invalid enum value 'loud'", ""),
        ("[cluster]\nfounders = [1]\n", "cluster.founders[0]: expected `str`", ""),
        (f"[cluster]\nfounders = {[f'n{n}' for n in range(17)]}\n", "names 17 nodes", "cluster.seeds"),
        ("[cluster]\nfounders = ['a', 'a:7000']\n", "names a node twice", ""),
        ("[cluster]\nfounders = ['a:x']\n", "`a:x` is not an address", "host:port"),
        ("", "how this node finds its cluster", 'cluster.founders = ["127.0.0.1:7000"]'),
        ("[cluster]\nfounders = ['10.0.0.1']\n", "not among cluster.founders", "network.address"),
        (ALONE + "[network]\ncql_port = 7000\n", "two of the three ports", ""),
        (ALONE + "[raft]\nheartbeat_ticks = 10\n", "not below raft.election_ticks", ""),
        (ALONE + "[auth]\nauthorizer = 'role-based'\n", "lets everybody in", 'authenticator = "password"'),
        (
            ALONE + "[auth]\nauthenticator = 'password'\n",
            "whoever reaches the internode port could join and read all tables",
            "cluster.join_secret_file",
        ),
        (
            ALONE + '[node]\ndata_directory = "/tmp/a\\u0000b"\n',
            "node.data_directory holds a NUL",
            "remove it",
        ),
        (ALONE + 'seeds = ["a\\u0000b"]\n', "cluster.seeds holds a NUL", "remove it"),
        (
            ALONE + "join_secret = 'short'\n",
            "cluster.join_secret: the join secret has fewer than 16",
            "openssl",
        ),
        (ALONE + "join_secret = 'a'\njoin_secret_file = 'b'\n", "are both set", "keep the file"),
        (ALONE + "[auth]\nauthenticator = 'ldap'\n", "auth.authenticator: invalid enum value", ""),
        (ALONE + "[tls]\ncertificate = 'c.pem'\n", "tls.certificate and tls.key go together", ""),
        (ALONE + "[tls]\nclient_ca = 'c.pem'\n", "tls has no certificate", ""),
        (
            ALONE + "[tls]\ncertificate = 'c'\nkey = 'k'\nrequire_client_auth = true\n",
            "nothing says whose",
            "tls.client_ca",
        ),
        (ALONE + "[tls]\ninternode_ca = 'c.pem'\n", "internode_ca go together", ""),
        ("[cluster\n", "lockstep.toml is not TOML", ""),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_a_hint(text: str, sentence: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    assert sentence in caught.value.message
    assert hint in caught.value.hint


def test_the_environment_wins_over_the_file() -> None:
    environment = {
        "LOCKSTEP_NETWORK_CQL_PORT": "9999",
        "LOCKSTEP_TESTING_FAULTS": "true",
        "LOCKSTEP_CLUSTER_SEEDS": "127.0.0.2, 127.0.0.3:7001",
        "LOCKSTEP_RAFT_TICK_MS": "20",
        "LOCKSTEP_HOME": "/somewhere",
        "PATH": "/bin",
    }
    configuration = parse(ALONE + "[network]\ncql_port = 1\n", environment)
    assert configuration.network.cql_port == 9999
    assert configuration.testing.faults
    assert configuration.cluster.seeds == ("127.0.0.2:7000", "127.0.0.3:7001")
    assert configuration.raft.tick_ms == 20


@pytest.mark.parametrize(
    ("variable", "value", "sentence", "hint"),
    [
        ("LOCKSTEP_NETWORK_CQL_PROT", "1", "unknown key network.cql_prot", "did you mean cql_port?"),
        ("LOCKSTEP_NETWROK_CQL_PORT", "1", "unknown section", "LOCKSTEP_NETWORK_CQL_PORT"),
        ("LOCKSTEP_NETWORK_CQL_PORT", "many", "LOCKSTEP_NETWORK_CQL_PORT", ""),
        ("LOCKSTEP_NETWORK_CQL_PORT", "0", "`int` >= 1", ""),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(variable: str, value: str, sentence: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(ALONE, {variable: value})
    assert sentence in caught.value.message
    assert hint in caught.value.hint


def test_a_written_configuration_reads_back_equal() -> None:
    text = (
        ALONE
        + '[node]\nname = "n1"\ndata_directory = "/tmp/with \\"quote\\" and ü"\n[testing]\nfaults = true\n'
    )
    configuration = parse(text)
    assert parse(render(configuration)) == configuration


def test_every_section_and_key_has_a_default() -> None:
    assert set(tomllib.loads(render(Configuration()))) == {
        "node",
        "cluster",
        "network",
        "auth",
        "admin",
        "tls",
        "placement",
        "timeouts",
        "purge",
        "tracking",
        "hints",
        "storage",
        "read_sessions",
        "reads",
        "writes",
        "raft",
        "metadata",
        "cms",
        "gossip",
        "clock",
        "streaming",
        "topology",
        "tablets",
        "functions",
        "testing",
        "log",
        "audit",
    }


@pytest.mark.parametrize("text", ["", ":7000", "h:", "h:0", "h:65536", "h:7000:1", " h"])
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        split_address(text, 7000)


scalars = st.one_of(
    st.booleans(),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3),
)
keys = st.from_regex(r"\A[a-z_]{1,8}\Z")
tables = st.dictionaries(keys, scalars, max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(keys, st.one_of(tables, st.lists(tables, min_size=1, max_size=3)), max_size=4))
def test_emitted_toml_reads_back_equal(document: dict[str, Table | list[Table]]) -> None:
    assert tomllib.loads(emit(document)) == document


def test_the_reference_page_has_every_key_with_its_default() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
    rows = [line.split("|")[1:3] for line in page.read_text().splitlines() if line.startswith("| `")]
    documented = {key.strip(" `"): default.strip().strip("`") for key, default in rows}
    sections = tomllib.loads(render(Configuration()))
    actual = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    assert list(documented) == list(actual)
    for key, value in actual.items():
        if not key.startswith("node."):
            assert tomllib.loads(f"value = {documented[key]}")["value"] == value, key


def test_settings_for_tests_need_the_word_that_opens_them() -> None:
    with pytest.raises(ConfigurationError, match=r"settings without testing\.faults"):
        parse(f'{ALONE}[testing]\nhide_kinds = ["set_service"]\n')
    kept = parse(f'{ALONE}[testing]\nfaults = true\nhide_kinds = ["set_service"]\n')
    assert kept.testing.hide_kinds == ("set_service",)
