"""An authority of its own for one test run, and certificates that it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


class Authority:
    """Files below a directory: `ca.pem`, and `NAME.pem` with `NAME.key` for each certificate made."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self.certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        into = ("-keyout", str(self._key), "-out", str(self.certificate))
        _openssl("req", "-x509", *key, *into, "-days", "2", "-subj", f"/CN={name}")

    def issue(self, name: str, days: int = 2) -> tuple[Path, Path]:
        """(certificate, key); the certificate ends after so many days; below 0 it has ended."""
        request, key = self._directory / f"{name}.csr", self._directory / f"{name}.key"
        certificate = self._directory / f"{name}.pem"
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl("req", *new, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        signed = (
            "-CA",
            str(self.certificate),
            "-CAkey",
            str(self._key),
            "-CAcreateserial",
            "-days",
            str(days),
        )
        _openssl("x509", "-req", "-in", str(request), *signed, "-out", str(certificate))
        return certificate, key
