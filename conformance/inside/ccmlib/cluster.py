"""Clusters and nodes as the suite sees them; every change goes through the `lockstep cluster` command."""

import json
import os
import subprocess

from ccmlib import common

_COMMAND_TIMEOUT_S = 90


def _lockstep(*arguments):
    command = json.loads(os.environ["CONFORMANCE_LOCKSTEP"])
    done = subprocess.run(
        [*command, "cluster", *arguments],
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
        self.network_interfaces = {"binary": (address, 9042)}

    def start(self, **_options):
        _lockstep("start", self.cluster.name, self.own_name)

    def stop(self, gently=True, **_options):
        _lockstep("stop" if gently else "kill", self.cluster.name, self.own_name)

    def pause(self):
        _lockstep("pause", self.cluster.name, self.own_name)

    def resume(self):
        _lockstep("resume", self.cluster.name, self.own_name)

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
        _lockstep("start", self.name)

    def stop(self, gently=True, **_options):
        _lockstep("stop", self.name)

    def set_configuration_options(self, values=None, **_options):
        raise RuntimeError("the configuration of an external cluster is not changed")
