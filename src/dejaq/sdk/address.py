"""A broker's address as people write it: `dejaq://host:port`, several with commas between."""

from __future__ import annotations

from dejaq.errors import Code, error_of

PORT_DEFAULT = 7400
SCHEME = "dejaq://"


def parse_url(url: str) -> list[str]:
    """The `host:port` of each broker that `url` names; raises INVALID_ARGUMENT when it names none."""
    text = url.strip()
    scheme, mark, rest = text.partition("://")
    if mark and scheme != "dejaq":
        raise error_of(Code.INVALID_ARGUMENT, f"{url!r} does not begin with {SCHEME}")
    addresses = [_address(part.strip(), url) for part in (rest if mark else text).rstrip("/").split(",")]
    return list(dict.fromkeys(addresses))


def _address(text: str, url: str) -> str:
    host, mark, port = text.rpartition(":")
    if not mark or text.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or any(character in host for character in "/?#@ ") or (":" in host and host[0] != "["):
        raise error_of(Code.INVALID_ARGUMENT, f"{url!r} is not an address such as {SCHEME}127.0.0.1:7400")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise error_of(Code.INVALID_ARGUMENT, f"{port!r} in {url!r} is not a port")
    return f"{host}:{int(port)}"
