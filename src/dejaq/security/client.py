"""What a client needs to reach a broker safely."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq.security.tls import ClientTls


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """TLS, if the broker's address asks for it."""

    tls: ClientTls | None = None


PLAIN = ClientSecurity()
