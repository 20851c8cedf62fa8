"""The few functions that the suite takes from the cluster tool."""

import socket
import time


def check_socket_listening(interface, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            socket.create_connection(interface, timeout=0.2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


def switch_cluster(path, name):
    """There is one cluster only."""
