"""Certificates for tests: two authorities, a broker's certificate and clients' certificates, as files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dejaq.security.certificates import Authority

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate and its key."""

    cert: Path
    key: Path


class Certificates:
    """Makes certificates in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._brokers, self._clients = Authority("brokers"), Authority("clients")
        self.ca = self._write("ca.pem", self._brokers.pem())
        self.client_ca = self._write("client-ca.pem", self._clients.pem())
        self.other_ca = self._write("other-ca.pem", Authority("others").pem())
        self.server = self.make_server()

    def make_server(self, *, names: tuple[str, ...] = HOSTS, expired: bool = False, name: str = "server") -> Files:
        """A broker's certificate; it replaces an earlier one of the same `name`."""
        start = datetime.now(UTC) - timedelta(days=10) if expired else None
        pair = self._brokers.sign("broker", names, server=True, start=start, days=5 if expired else None)
        return self._pair(name, pair)

    def make_client(self, *names: str, expired: bool = False, of_brokers: bool = False) -> Files:
        """A client's certificate with these names."""
        authority = self._brokers if of_brokers else self._clients
        start = datetime.now(UTC) - timedelta(days=10) if expired else None
        pair = authority.sign("client", names, server=False, start=start, days=5 if expired else None)
        return self._pair("-".join(("client", *(name.rpartition(":")[2].replace("/", "_") for name in names))), pair)

    def _pair(self, name: str, pair: tuple[bytes, bytes]) -> Files:
        return Files(self._write(f"{name}.pem", pair[0]), self._write(f"{name}-key.pem", pair[1]))

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        path.write_bytes(content)
        return path
