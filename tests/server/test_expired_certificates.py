"""Certificates that have ended, on real connections: their node does not start, others say why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.internode import verbs
from lockstep.internode.internode import Internode
from lockstep.local.admin_client import AdminClient, of_node
from lockstep.runtime.ports import Tls
from lockstep.server.main import main
from lockstep.values.errors import PeerError
from tests.replication.support import TestNode, run, running, until
from tests.replication.test_internode import Ping, Pong, echo
from tests.server import test_process
from tests.server.certificates import Authority
from tests.server.parts import ADMIN_PORT, addresses


class TlsNode(TestNode):
    def __init__(self, index: int, tls: Tls) -> None:
        self._tls = tls
        super().__init__(index)
        self.internode.register(verbs.PING, Ping, Pong, echo)

    def build(self, **security: Any) -> Internode:
        return super().build(**security, tls=self._tls)

    def reasons(self) -> list[str]:
        events = ("internode.connect_failed", "internode.tls_refused")
        return [str(facts["reason"]) for event, facts in self.events if event in events]


def test_who_refuses_an_expired_certificate_says_why_whoever_dials(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def tls(name: str, days: int) -> Tls:
        certificate, key = authority.issue(name, days)
        return Tls(str(certificate), str(key), str(authority.certificate), mutual=True)

    async def test() -> None:
        good, ended = TlsNode(1, tls("good", 2)), TlsNode(2, tls("ended", -1))
        async with running(good, ended):
            with pytest.raises(PeerError):
                await good.internode.request(ended.address, verbs.PING, Ping("a"), 2000)
            assert "certificate has expired" in good.reasons()[0]
            with pytest.raises(PeerError):
                await ended.internode.request(good.address, verbs.PING, Ping("b"), 2000)
            await until(
                lambda: any(reason.startswith("its certificate is refused") for reason in good.reasons())
            )
            assert "certificate has expired" in good.reasons()[-1]

    run(test)


@pytest.mark.parametrize("section", ["", "internode_"])
def test_a_node_with_an_expired_certificate_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", -1)
    text = f'[tls]\n{section}certificate = "{certificate}"\n{section}key = "{key}"\n'
    if section:
        text += f'internode_ca = "{authority.certificate}"\n'
    file = test_process.configured(tmp_path, next(addresses()), text)
    assert main(["--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"error[CONFIGURATION]: the certificate {certificate} expired on 20" in said
    assert "openssl x509 -enddate" in said and not (tmp_path / "data").exists()


def test_a_node_tells_of_its_certificate_before_it_ends(tmp_path: Path) -> None:
    authority, address = Authority(tmp_path), next(addresses())
    certificate, key = authority.issue("node", 20)
    file = test_process.configured(
        tmp_path, address, f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    )
    with test_process.running(file):
        shown = of_node(tmp_path / "data", str(authority.certificate))
        (told,) = AdminClient(address, ADMIN_PORT, credential=shown).get("/v1/status")["conditions"]
    assert (told["code"], told["subject"]) == ("CERTIFICATE_EXPIRES", str(certificate)[:128])
    assert "expires on 20" in told["detail"]
