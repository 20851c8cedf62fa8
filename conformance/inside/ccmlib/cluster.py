"""Clusters and nodes as the suite sees them; every change goes through the `lockstep cluster` command.

The cluster is made and ended by the runner: populating, clearing and removing it only bring back nodes that
a test left stopped or paused. Options that ours has too go into its files, which the runner restores.
"""

import json
import os
import re
import subprocess
from pathlib import Path

from ccmlib import common

_COMMAND_TIMEOUT_S = 90
#: Options that the suite sets for every cluster: they allow what ours allows, or what no test then uses.
_INDIFFERENT = {
    "start_native_transport",
    "user_defined_functions_enabled",
    "materialized_views_enabled",
    "sasi_indexes_enabled",
    "transient_replication_enabled",
}
#: Option -> key of `lockstep.toml`, unique in it.
_KEYS = {
    "native_transport_port": "cql_port",
    "write_request_timeout_in_ms": "write_ms",
    "authenticator": "authenticator",
    "authorizer": "authorizer",
}
#: Those that the file of the whole cluster has too.
_SHARED = ("native_transport_port",)


def _written(values):
    """The options among `values` that are written into files. RuntimeError for those that ours lacks."""
    unknown = sorted(set(values) - _INDIFFERENT - set(_KEYS))
    if unknown:
        raise RuntimeError(f"the cluster is not configured anew: {', '.join(unknown)}")
    return {option: value for option, value in values.items() if option in _KEYS}


def _write(path, option, value):
    text = value if str(value).isdigit() else json.dumps(value)
    before = path.read_text()
    after, number = re.subn(rf"(?m)^{_KEYS[option]} = .*$", f"{_KEYS[option]} = {text}", before)
    if number != 1:
        raise RuntimeError(f"{path} has no {_KEYS[option]}")
    path.write_text(after)


def _lockstep(verb, *arguments):
    """Run a command on the running cluster, whatever the suite calls it."""
    arguments = (verb, os.environ["CONFORMANCE_CLUSTER"], *arguments)
    command = json.loads(os.environ["CONFORMANCE_LOCKSTEP"])
    done = subprocess.run(
        [*command, "cluster", *arguments],
        cwd=os.environ["CONFORMANCE_ROOT"],
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"lockstep cluster {' '.join(arguments)}: {done.stdout}{done.stderr}")


class Node:
    """One node. `name` is the suite's, `own_name` ours."""

    def __init__(self, cluster, name, own_name, address):
        self.cluster = cluster
        self.name = name
        self.own_name = own_name
        self.data_center = "dc1"
        self.workloads = []
        self.paused = False
        self.network_interfaces = {"binary": (address, 9042)}

    def start(self, **_options):
        _lockstep("start", self.own_name)

    def stop(self, gently=True, **_options):
        _lockstep("stop" if gently else "kill", self.own_name)

    def pause(self):
        self.paused = True
        _lockstep("pause", self.own_name)

    def resume(self):
        self.paused = False
        _lockstep("resume", self.own_name)

    def set_configuration_options(self, values=None, **_options):
        for option, value in _written(values or {}).items():
            _write(self.cluster.directory / self.own_name / "lockstep.toml", option, value)
            self.cluster.changed[self.own_name] = True

    def is_running(self):
        return common.check_socket_listening(self.network_interfaces["binary"], timeout=0.5)

    def set_workloads(self, workloads):
        self.workloads = workloads

    def grep_log_for_errors(self):
        return []


class Cluster:
    """The running cluster. Making another one is not offered."""

    def __init__(self, path, name, **_options):
        self.name = name
        self.directory = Path(os.environ["CONFORMANCE_DIRECTORY"])
        #: Nodes to start again before the next start is done.
        self.changed = {}
        self.nodes = {}
        for index, (own_name, address) in enumerate(json.loads(os.environ["CONFORMANCE_NODES"]), 1):
            self.nodes[f"node{index}"] = Node(self, f"node{index}", own_name, address)

    def nodelist(self):
        return list(self.nodes.values())

    def start(self, **_options):
        if self.changed:
            _lockstep("stop", *self.changed)
            self.changed.clear()
        elif all(node.is_running() for node in self.nodelist()):
            return
        _lockstep("start")

    def stop(self, gently=True, **_options):
        running = [node.own_name for node in self.nodelist() if node.is_running()]
        if running:
            _lockstep("stop" if gently else "kill", *running)

    def clear(self):
        for node in self.nodelist():
            if node.paused:
                node.resume()
        self.start()

    remove = clear

    def populate(self, *_arguments, **_options):
        return self

    def set_install_dir(self, **_options):
        return self

    def set_configuration_options(self, values=None, **_options):
        for node in self.nodelist():
            node.set_configuration_options(values)
        for option, value in _written(values or {}).items():
            if option in _SHARED:
                _write(self.directory / "cluster.toml", option, value)

    set_dse_configuration_options = set_configuration_options
