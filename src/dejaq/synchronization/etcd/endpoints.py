"""Where etcd is, as people write it: `etcd://[user:password@]host:port,...[?ca=FILE&cert=FILE&key=FILE]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from dejaq.errors import Code, error_of

SCHEME = "etcd://"
PORT_DEFAULT = 2379
_FILES = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The servers of one etcd cluster, and how to be let in; with `ca` the way there is encrypted."""

    addresses: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def shown(self) -> str:
        """The addresses, for people."""
        return ", ".join(self.addresses)

    def certificates(self) -> tuple[bytes, bytes | None, bytes | None]:
        """What is in the files: the authority, the client's key and its certificate."""
        try:
            return (
                Path(self.ca).read_bytes(),
                Path(self.key).read_bytes() if self.key else None,
                Path(self.cert).read_bytes() if self.cert else None,
            )
        except OSError as error:
            raise error_of(
                Code.INVALID_ARGUMENT, f"the certificate {error.filename} cannot be read: {error.strerror}"
            ) from None


def parse_endpoints(url: str) -> Endpoints:
    """The endpoints that `url` names; raises INVALID_ARGUMENT without repeating the password."""
    if not url.startswith(SCHEME):
        raise error_of(Code.INVALID_ARGUMENT, f"synchronization by etcd is {SCHEME}host:port,host:port")
    place, _, query = url.removeprefix(SCHEME).partition("?")
    login, at, hosts = place.rpartition("@")
    user, _, password = login.partition(":")
    if at and not user:
        raise error_of(Code.INVALID_ARGUMENT, f"a user's name is missing before the @ in {SCHEME}...@{hosts}")
    files = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(set(files) - set(_FILES)):
        raise error_of(Code.INVALID_ARGUMENT, f"{unknown[0]!r} is unknown in {SCHEME}...?; known: {', '.join(_FILES)}")
    if not files.get("ca") and files:
        raise error_of(Code.INVALID_ARGUMENT, "cert and key need ca, the authority that signed etcd's certificate")
    return Endpoints(
        addresses=tuple(dict.fromkeys(_address(part.strip()) for part in hosts.rstrip("/").split(","))),
        user=unquote(user),
        password=unquote(password),
        **files,
    )


def _address(text: str) -> str:
    host, mark, port = text.rpartition(":")
    if not mark or text.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise error_of(Code.INVALID_ARGUMENT, f"{text!r} is not an address of etcd such as {SCHEME}127.0.0.1:2379")
    return f"{host}:{int(port)}"
