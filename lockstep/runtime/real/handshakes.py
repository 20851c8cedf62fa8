"""Why a TLS handshake failed: event loops end such connections without a word to who listens.

Invariant: what is told changes nothing of how the handshake goes on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable


def tell_refusals(context: ssl.SSLContext, refused: Callable[[str], None]) -> None:
    """Have `refused` called with the reason of each handshake under this context that fails on this side."""

    class Handshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLCertVerificationError as error:
                refused(f"its certificate is refused: {error.verify_message}")
                raise
            except ssl.SSLError as error:
                refused(f"it does not speak TLS as this node does: {error.reason or error}")
                raise

    context.sslobject_class = Handshake
