"""The contract of authentication: credentials in, an identity or UNAUTHENTICATED out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from dejaq.domain.context import Principal


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller showed: a bearer token or an API key as text, and the names in its verified client certificate."""

    # The text behind `Bearer `; an API key begins with `dq_`. Empty for none.
    bearer: str = field(default="", repr=False)
    # The names of the certificate that the TLS library has verified: `URI:...`, `DNS:...`, `email:...`.
    certificate: tuple[str, ...] = ()
    # When the certificate expires, in microseconds; 0 for none.
    certificate_expires_us: int = 0
    # The client's own name of its device, as people read it in the list of sessions.
    device: str = ""


NO_CREDENTIALS = Credentials()
# The header, or the metadata of gRPC, with the client's name of its device.
DEVICE_HEADER = "dejaq-device"
_BEARER = "bearer "


def bearer_of(header: str) -> str:
    """The credentials in an `Authorization` header; empty for another scheme than `Bearer`."""
    return header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller that was authenticated, and until when that holds."""

    principal: Principal
    # The time in microseconds from which the credentials are no longer valid; None for credentials without an end.
    expires_us: int | None = None
    # When the credentials were issued, as their issuer says; None where nothing says so.
    issued_us: int | None = None
    # What the issuer or the broker calls the login behind a token: the client cannot choose it. Empty for keys and
    # certificates, which have names of their own.
    login: str = ""


class Authenticator(Protocol):
    """Finds the identity of a caller."""

    async def authenticate(self, credentials: Credentials, peer: str, now_us: int) -> Identity:
        """The caller's identity; raises UNAUTHENTICATED, or UNAVAILABLE while an issuer's keys cannot be fetched."""
