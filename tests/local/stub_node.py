"""A stand-in for a node process: opens the CQL and admin ports of its configuration and records calls.

python stub_node.py MODE --config FILE, where MODE is one of
--serve, --refuse, --silent, --silent-but-n2-refuses, --silent-as-broken, --stubborn.
"""

from __future__ import annotations

import http.server
import signal
import socket
import sys
import tomllib
from pathlib import Path


def main() -> None:
    mode = sys.argv[1]
    settings = tomllib.loads(Path(sys.argv[-1]).read_text())
    if mode == "--refuse" or (mode == "--silent-but-n2-refuses" and settings["node"]["name"] == "n2"):
        print("starting")
        print("error[HANDSHAKE_REFUSED]: the data directory belongs to cluster other")
        print("hint: choose another directory")
        sys.exit(1)
    if mode == "--silent-as-broken":
        print("error[CANNOT_APPLY]: entry kind 99 is not known to this version", flush=True)
        print("hint: upgrade this node", flush=True)
    if mode == "--stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    data = Path(settings["node"]["data_directory"])
    data.mkdir(exist_ok=True)
    address = settings["network"]["address"]

    class Admin(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with (data / "calls").open("ab") as file:
                file.write(self.path.encode() + b" " + body + b"\n")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with (data / "starts").open("a") as starts:
        starts.write("start\n")
    admin = http.server.ThreadingHTTPServer((address, settings["network"]["admin_port"]), Admin)
    if not mode.startswith("--silent"):
        cql = socket.create_server((address, settings["network"]["cql_port"]))
        cql.listen(64)
    admin.serve_forever()


main()
