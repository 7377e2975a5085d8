"""What a client needs to reach a broker safely: TLS, its credentials, and the name of its device."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from dejaq.errors import Code, error_of
from dejaq.security.base import DEVICE_HEADER
from dejaq.security.credentials import BearerSource
from dejaq.security.tls import ClientTls

_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """TLS, if the broker's address asks for it, and credentials, if the client has any."""

    tls: ClientTls | None = None
    credentials: BearerSource | None = None
    # How people recognise this device in the list of sessions.
    device: str = ""

    async def bearer(self, address: str) -> str:
        """The credentials for the broker at `address`; empty for none.

        Raises INVALID_ARGUMENT rather than send them over a network without TLS.
        """
        if self.credentials is None:
            return ""
        if self.tls is None and not _stays_here(address):
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"a token or key is not sent to {address} without TLS; begin the address with dejaqs://",
            )
        return await self.credentials.current()

    def headers(self, bearer: str) -> dict[str, str]:
        """The headers of a request, or the metadata of gRPC, with these credentials."""
        found = {DEVICE_HEADER: self.device} if self.device else {}
        if bearer:
            found["authorization"] = f"Bearer {bearer}"
        return found


PLAIN = ClientSecurity()


def _stays_here(address: str) -> bool:
    """Whether what is sent to `address` stays on this machine."""
    if address.startswith(_UNIX):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
