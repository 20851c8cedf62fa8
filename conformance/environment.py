"""Owns what a run needs before it starts: the clients' environment, the copy of the suite, the walls.

Invariant: the suite is only read; everything made for a run lies below `build/conformance`. A fetched
program runs in a network and process namespace of its own where the system allows that, so that it can
neither reach nor end anything outside, and its fixed ports are free.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD: Final = ROOT / "build" / "conformance"
INSIDE: Final = Path(__file__).resolve().parent / "inside"
REQUIREMENTS: Final = Path(__file__).resolve().parent / "requirements.txt"
_WALLED: Final = "CONFORMANCE_WALLED"
_PROBE_TIMEOUT_S: Final = 10


def prepare_python() -> Path:
    """The interpreter of the clients' own environment, made anew when the pinned list changed."""
    home = BUILD / "venv"
    python = home / "bin" / "python"
    stamp = home / ".stamp"
    wanted = hashlib.blake2b(REQUIREMENTS.read_bytes(), digest_size=16).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"making {home.relative_to(ROOT)}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-r", str(REQUIREMENTS)], check=True)
    stamp.write_text(wanted)
    return python


def copy_tests(suite: Path) -> Path:
    """The suite's `tests`, copied away from the driver's sources, which would hide the installed wheel."""
    target = BUILD / "suite"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(suite / "tests", target / "tests", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return target


def walled() -> bool:
    """Whether this program runs inside namespaces of its own: there is no network beyond loopback."""
    return bool(os.environ.get(_WALLED))


def wall_in() -> bool:
    """Start this program again inside namespaces of its own; True once inside.

    Returns False when the system allows none: then the ports must be free, and nothing is confined.
    """
    if os.environ.get(_WALLED):
        _raise_loopback()
        return True
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    walls = [unshare, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        walls[1:1] = ["--user", "--map-root-user"]
    probe = subprocess.run([*walls, "true"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    if probe.returncode != 0:
        return False
    environment = {**os.environ, _WALLED: "1"}
    raise SystemExit(
        subprocess.run([*walls, sys.executable, *sys.argv], env=environment, check=False).returncode
    )


def _raise_loopback() -> None:
    """Bring the loopback interface of a new network namespace up (SIOCSIFFLAGS), without other programs."""
    set_flags, up_and_running = 0x8914, 0x1 | 0x40
    request = ctypes.create_string_buffer(b"lo".ljust(16, b"\0") + up_and_running.to_bytes(2, "little"), 40)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ioctl(any_socket.fileno(), set_flags, request) != 0:
            raise OSError(ctypes.get_errno(), "the loopback interface could not be brought up")
