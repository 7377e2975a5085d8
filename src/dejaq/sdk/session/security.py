"""What a client was given to reach its brokers safely: arguments, or environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dejaq.errors import Code, error_of
from dejaq.sdk.session.address import Target
from dejaq.security.client import PLAIN, ClientSecurity
from dejaq.security.tls import ClientTls, TlsFiles

FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The files for TLS. What is None is taken from `DEJAQ_CA`, `DEJAQ_CERT` and `DEJAQ_KEY`."""

    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None

    def for_target(self, target: Target) -> ClientSecurity:
        """What connections to `target` use; raises INVALID_ARGUMENT for files that do not work."""
        if not target.tls:
            if self.ca is not None or self.cert is not None or self.key is not None:
                raise error_of(Code.INVALID_ARGUMENT, "ca, cert and key are for TLS: begin the address with dejaqs://")
            return PLAIN
        tls = ClientTls(
            TlsFiles(
                ca=_text(self.ca, "DEJAQ_CA"),
                cert=_text(self.cert, "DEJAQ_CERT"),
                key=_text(self.key, "DEJAQ_KEY"),
            )
        )
        # Files that cannot be used are found now, and not at every try to connect.
        tls.context()
        return ClientSecurity(tls=tls)


NO_OPTIONS = SecurityOptions()


def _text(value: FilePath | None, variable: str) -> str | None:
    return os.fspath(value) if value is not None else os.environ.get(variable) or None
