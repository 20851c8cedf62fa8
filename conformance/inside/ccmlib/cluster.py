"""Clusters and nodes as the suite sees them; every change goes through the `lockstep cluster` command.

The cluster is made and ended by the runner: populating, clearing and removing it only bring back nodes that
a test left stopped or paused.
"""

import json
import os
import subprocess

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


def _lockstep(verb, *arguments, check=True):
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
    if check and done.returncode != 0:
        raise RuntimeError(f"lockstep cluster {' '.join(arguments)}: {done.stdout}{done.stderr}")


class Node:
    """One node. `name` is the suite's, `own_name` ours."""

    def __init__(self, cluster, name, own_name, address):
        self.cluster = cluster
        self.name = name
        self.own_name = own_name
        self.data_center = "dc1"
        self.workloads = []
        self.network_interfaces = {"binary": (address, 9042)}

    def start(self, **_options):
        _lockstep("start", self.own_name)

    def stop(self, gently=True, **_options):
        _lockstep("stop" if gently else "kill", self.own_name)

    def pause(self):
        _lockstep("pause", self.own_name)

    def resume(self, check=True):
        _lockstep("resume", self.own_name, check=check)

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
        self.nodes = {}
        for index, (own_name, address) in enumerate(json.loads(os.environ["CONFORMANCE_NODES"]), 1):
            self.nodes[f"node{index}"] = Node(self, f"node{index}", own_name, address)

    def nodelist(self):
        return list(self.nodes.values())

    def start(self, **_options):
        _lockstep("start")

    def stop(self, gently=True, **_options):
        _lockstep("stop")

    def clear(self):
        for node in self.nodelist():
            node.resume(check=False)
        self.start()

    remove = clear

    def populate(self, *_arguments, **_options):
        return self

    def set_install_dir(self, **_options):
        return self

    def set_configuration_options(self, values=None, **_options):
        wanted = sorted(set(values or {}) - _INDIFFERENT)
        if wanted:
            raise RuntimeError(f"the cluster is not configured anew: {', '.join(wanted)}")

    set_dse_configuration_options = set_configuration_options
