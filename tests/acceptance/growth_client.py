"""A client program for unmodified drivers: load at QUORUM all the time, and answers about what it sees.

Run as `PYTHON growth_client.py POINTS PORT PROTOCOL_VERSION KEY_BASE`. It needs only the standard library and
a package `cassandra`, which both the Cassandra and the ScyllaDB driver bring. It reads one command a line
and answers with one line of JSON; it ends with its standard input.
"""

import json
import logging
import sys
import threading
import time

from cassandra import ConsistencyLevel, __version__
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    HostStateListener,
    TokenAwarePolicy,
)

KEYSPACE, TABLE = "growth", "growth.load"
KEYS = 300


class Events(HostStateListener):
    def __init__(self):
        self.seen = []

    def on_up(self, host):
        self.seen.append(["up", host.address])

    def on_down(self, host):
        self.seen.append(["down", host.address])

    def on_add(self, host):
        self.seen.append(["add", host.address])

    def on_remove(self, host):
        self.seen.append(["remove", host.address])


class Client:
    def __init__(self, points, port, version, key_base):
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy("dc1"), shuffle_replicas=False),
            consistency_level=ConsistencyLevel.QUORUM,
            request_timeout=12,
        )
        self.cluster = Cluster(
            points,
            port=port,
            protocol_version=version,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(0.2, max_attempts=None),
        )
        self.events = Events()
        self.cluster.register_listener(self.events)
        self.session = self.cluster.connect()
        self.key_base = key_base
        self.insert = self.session.prepare(f"INSERT INTO {TABLE} (k, v) VALUES (?, ?)")
        self.select = self.session.prepare(f"SELECT v FROM {TABLE} WHERE k = ?")
        # Writing the same value again changes nothing, so the driver may try another node.
        self.insert.is_idempotent = self.select.is_idempotent = True
        self.acknowledged = {}
        self.count, self.errors = 0, []
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ending.wait(0.02):
            key, value = self.key_base + self.count % KEYS, self.count
            try:
                self.session.execute(self.insert, (key, value))
                self.acknowledged[key] = value
                found = self.session.execute(self.select, (key,)).one().v
                if found != value:
                    self.errors.append(f"key {key}: read {found} after {value} was acknowledged")
            except Exception as error:
                self.errors.append(f"after {self.count}: {type(error).__name__}: {error}")
            self.count += 1

    def about(self):
        return {"driver": __version__, "protocol": self.cluster.protocol_version}

    def hosts(self):
        known = sorted((host.address, bool(host.is_up)) for host in self.cluster.metadata.all_hosts())
        ring = self.cluster.metadata.token_map.token_to_host_owner
        owned = {}
        for host in ring.values():
            owned[host.address] = owned.get(host.address, 0) + 1
        return {"hosts": [list(one) for one in known], "tokens": owned}

    def plans(self):
        """First host of the plan for each key."""
        policy = self.cluster.profile_manager.default.load_balancing_policy
        found = {}
        for key in range(self.key_base, self.key_base + KEYS):
            plan = policy.make_query_plan(KEYSPACE, self.insert.bind((key, 0)))
            found[key] = next(iter(plan)).address
        return found

    def load(self):
        """Counts after some more requests."""
        begin, deadline = self.count, time.monotonic() + 15
        while self.count < begin + 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        return {"count": self.count, "went_on": self.count >= begin + 5, "errors": self.errors[:5]}

    def check(self):
        """Keys whose acknowledged value is gone."""
        self.ending.set()
        self.thread.join()
        wrong = []
        for key, value in self.acknowledged.items():
            row = self.session.execute(self.select, (key,)).one()
            if row is None or row.v != value:
                wrong.append([key, value, row and row.v])
        return {"checked": len(self.acknowledged), "wrong": wrong}

    def end(self):
        self.ending.set()
        self.thread.join()
        self.cluster.shutdown()


def main():
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    points, port, version, key_base = sys.argv[1:]
    client = Client(points.split(","), int(port), int(version), int(key_base))
    try:
        for line in sys.stdin:
            command = line.strip()
            answer = client.events.seen if command == "events" else getattr(client, command)()
            print(json.dumps(answer), flush=True)
    finally:
        client.end()


if __name__ == "__main__":
    main()
