"""What files hold that others wrote, read from their own bytes: when certificates end, and whether one table
file of RocksDB is whole, data, index and properties, by its checksums.

The standard library checks certificates of others and tells nothing of one's own. Of X.509 only the way to
the validity is read here: version, serial number, algorithm and issuer are stepped over.

The file is linked into a directory of its own, which the library is told to repair: it reads all of the file,
and puts it aside when something is wrong with it. A filter is not checked: one that cannot be read saves no
reads, and nothing else.

Invariant: a file that TLS can be opened with is read, or refused by name. The store's own files are only
read, and what a check makes is gone when it ends.
"""

from __future__ import annotations

import binascii
import datetime
import os
import re
from typing import Final

import msgspec

from lockstep.runtime.ports import Tls
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import ConfigurationError

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
#: Tags of ASN.1: a sequence, the optional version before the serial number, and the two forms of a time.
_SEQUENCE, _VERSION, _SHORT_TIME, _LONG_TIME = 0x30, 0xA0, 0x17, 0x18
#: Members between the version and the validity: serial number, algorithm, issuer.
_STEPPED_OVER: Final = 3


class Certificate(msgspec.Struct, frozen=True):
    """The certificate of a file that ends first, its own or one of its chain. `ends`: ISO 8601."""

    file: str
    ends_us: int
    ends: str


def own_certificate(tls: Tls) -> Certificate:
    """Of the side that has these files. ConfigurationError when the file holds none that can be read."""
    try:
        with open(tls.certificate, encoding="ascii", errors="replace") as file:
            found = [ends_of(binascii.a2b_base64(block)) for block in _PEM.findall(file.read())]
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ConfigurationError(f"the certificate {tls.certificate} cannot be read: {error}") from error
    if not found:
        raise ConfigurationError(f"the certificate {tls.certificate} holds none", hint="it is a PEM file")
    first = min(found)
    return Certificate(
        tls.certificate, int(first.timestamp() * 1_000_000), first.strftime("%Y-%m-%dT%H:%M:%SZ")
    )


def refuse_ended(certificate: Certificate, now_us: int) -> None:
    """ConfigurationError for a certificate that nobody takes any more."""
    if certificate.ends_us <= now_us:
        raise ConfigurationError(
            f"the certificate {certificate.file} expired on {certificate.ends}",
            hint="renew it, then start the node; `openssl x509 -enddate -in FILE` shows its date",
        )


def ends_of(der: bytes) -> datetime.datetime:
    """The end of a certificate's validity. ValueError, IndexError or KeyError when it is none."""
    certificate = _inside(der, _SEQUENCE)
    members = _members(_inside(certificate, _SEQUENCE))
    if members[0][0] == _VERSION:
        members = members[1:]
    tag, validity = members[_STEPPED_OVER]
    if tag != _SEQUENCE:
        raise ValueError("it is no X.509 certificate")
    kind, text = _members(validity)[1]
    form = {_SHORT_TIME: "%y%m%d%H%M%SZ", _LONG_TIME: "%Y%m%d%H%M%SZ"}[kind]
    return datetime.datetime.strptime(text.decode("ascii"), form).replace(tzinfo=datetime.UTC)


def _inside(data: bytes, tag: int) -> bytes:
    """What the first value holds."""
    found, content, _ = _value(data)
    if found != tag:
        raise ValueError("it is no X.509 certificate")
    return content


def _members(data: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each value."""
    found: list[tuple[int, bytes]] = []
    while data:
        tag, content, data = _value(data)
        found.append((tag, content))
    return found


def _value(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first value, and what is behind it."""
    tag, size, begin = data[0], data[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin], "big")
    if len(data) < begin + size:
        raise ValueError("it is cut short")
    return tag, data[begin : begin + size], data[begin + size :]


#: What a helper process is started with.
CHECK_HANDLER: Final = "lockstep.runtime.real.certificates:check"
CHECK_PACKAGES: Final = ("rocksdict",)
#: Where the library puts a file that it cannot read.
_PUT_ASIDE: Final = "lost"
_QUESTION = decoder(tuple[str, str])


def check(question: bytes) -> bytes:
    """(directory, name) of a file -> why it is not whole; empty when it is, or is not there any more."""
    return encode(damage_in(*_QUESTION.decode(question)))


def damage_in(directory: str, name: str) -> str:
    """Why a table file is not whole, as the library says; empty when it is, or when there is no such file."""
    # Imported here: a process that checks pays for it, not each node.
    import shutil

    import rocksdict

    scratch = os.path.join(directory, f"check-{name}")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    try:
        try:
            os.link(os.path.join(directory, name), os.path.join(scratch, name))
        except FileNotFoundError:
            # It was merged into others meanwhile, and all of it was read for that.
            return ""
        try:
            rocksdict.Rdict.repair(scratch, rocksdict.Options(raw_mode=True))
        except Exception as error:
            return str(error)
        if os.path.exists(os.path.join(scratch, _PUT_ASIDE, name)):
            return _said_of_damage(os.path.join(scratch, "LOG"))
        return ""
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _said_of_damage(log: str) -> str:
    """The first line of the library's log that speaks of it."""
    with open(log, errors="replace") as lines:
        for line in lines:
            at = line.find("Corruption: ")
            if at >= 0:
                return line[at:].strip()
    return "Corruption: the file cannot be read as a table"
