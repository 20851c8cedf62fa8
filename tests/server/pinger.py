"""Asks a node for its OPTIONS again and again, and tells on each line of standard input how long the longest
answer took since the one before, in milliseconds. Usage: python pinger.py HOST PORT
"""

from __future__ import annotations

import select
import socket
import sys
import time

OPTIONS = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))
PAUSE_S = 0.001


def exchange(connection: socket.socket) -> None:
    connection.sendall(OPTIONS)
    have = b""
    while len(have) < 9 or len(have) < 9 + int.from_bytes(have[5:9]):
        data = connection.recv(4096)
        if not data:
            raise ConnectionError("closed")
        have += data


def main() -> None:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as connection:
        longest_s = 0.0
        while True:
            began_s = time.perf_counter()
            exchange(connection)
            longest_s = max(longest_s, time.perf_counter() - began_s)
            if select.select([sys.stdin], [], [], PAUSE_S)[0]:
                if not sys.stdin.readline():
                    return
                print(f"{longest_s * 1e3:.3f}", flush=True)
                longest_s = 0.0


if __name__ == "__main__":
    main()
