"""A broker's address as users write it: `dejaq://host:port`, several with commas between, or `dejaq+unix:///path`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dejaq.errors import Code, error_of
from dejaq.protocol.websocket.connecting import UNIX

PORT_DEFAULT = 7400
SCHEME = "dejaq://"


class Carriage(Enum):
    """The protocol below the frames."""

    GRPC = "gRPC"
    WEBSOCKET = "WebSocket"


_SCHEMES = {
    "dejaq": Carriage.WEBSOCKET,
    "dejaq+grpc": Carriage.GRPC,
    "dejaq+unix": Carriage.WEBSOCKET,
    "dejaqs": Carriage.WEBSOCKET,
    "dejaqs+grpc": Carriage.GRPC,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The brokers that a URL names, each as `host:port` or `unix:/path`."""

    carriage: Carriage
    addresses: tuple[str, ...]
    # Whether connections are encrypted: the scheme begins with `dejaqs`.
    tls: bool = False

    @property
    def urls(self) -> tuple[str, ...]:
        """A URL for each broker alone."""
        return tuple(self._url(address) for address in self.addresses)

    def _url(self, address: str) -> str:
        if address.startswith(UNIX):
            return f"dejaq+unix://{address.removeprefix(UNIX)}"
        scheme = ("dejaqs" if self.tls else "dejaq") + ("+grpc" if self.carriage is Carriage.GRPC else "")
        return f"{scheme}://{address}"


def parse_url(url: str) -> Target:
    """The brokers that `url` names; raises INVALID_ARGUMENT when it names none."""
    text = url.strip()
    scheme, mark, rest = text.partition("://")
    if mark and scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise error_of(Code.INVALID_ARGUMENT, f"{url!r} begins with none of {known}")
    carriage = _SCHEMES[scheme if mark else "dejaq"]
    if scheme == "dejaq+unix":
        if not rest.startswith("/") or "\0" in rest:
            raise error_of(Code.INVALID_ARGUMENT, f"{url!r} names no socket, such as dejaq+unix:///run/dejaq.sock")
        return Target(carriage, (f"{UNIX}{rest}",))
    addresses = [_address(part.strip(), url) for part in (rest if mark else text).rstrip("/").split(",")]
    return Target(carriage, tuple(dict.fromkeys(addresses)), tls=scheme.startswith("dejaqs") and bool(mark))


def _address(text: str, url: str) -> str:
    host, mark, port = text.rpartition(":")
    if not mark or text.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or any(character in host for character in "/?#@ ") or (":" in host and host[0] != "["):
        raise error_of(Code.INVALID_ARGUMENT, f"{url!r} is not an address such as {SCHEME}127.0.0.1:7400")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise error_of(Code.INVALID_ARGUMENT, f"{port!r} in {url!r} is not a port")
    return f"{host}:{int(port)}"
