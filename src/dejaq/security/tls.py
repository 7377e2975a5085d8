"""TLS: contexts for servers and clients, and a server's certificate that is read again when its files change."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dejaq.errors import Code, DejaqError, error_of
from dejaq.security.certificates import expiry_of

log = logging.getLogger(__name__)

# For TLS 1.2: forward secrecy and authenticated encryption. OpenSSL's own suites of TLS 1.3 are all of that kind.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one side: its certificate chain, its key, and the authorities it accepts of the other side."""

    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    def signature(self) -> _Signature:
        """A value that changes when one of the files does."""
        found = []
        for path in self.paths():
            state = os.stat(path)
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
        return tuple(found)

    def paths(self) -> list[str]:
        """The files that are given."""
        return [path for path in (self.cert, self.key, self.ca) if path is not None]

    def check(self) -> None:
        """Raise INVALID_ARGUMENT when a certificate comes without its key, or the other way round."""
        if (self.cert is None) != (self.key is None):
            raise error_of(Code.INVALID_ARGUMENT, "a TLS certificate and its key are given together, or neither")


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What the files of a server held when they were read, for gRPC and for Python's own TLS."""

    context: ssl.SSLContext
    cert_pem: bytes
    key_pem: bytes
    ca_pem: bytes | None
    # When the certificate expires, in seconds since 1970.
    expires_s: float


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A context that verifies the server's certificate and name; raises INVALID_ARGUMENT for files that do not work.

    Without a `ca` the authorities of the operating system are used.
    """
    files.check()
    try:
        context = ssl.create_default_context(cafile=files.ca)
        _harden(context)
        if files.cert is not None:
            context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise _unusable(files, error) from None
    return context


def load_server(files: TlsFiles, now_s: float) -> TlsMaterial:
    """Read and check the files of a server; raises INVALID_ARGUMENT.

    With a `ca`, every client must have a certificate of it.
    """
    files.check()
    if files.cert is None or files.key is None:
        raise error_of(Code.INVALID_ARGUMENT, "TLS needs a certificate and a key")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _harden(context)
        context.load_cert_chain(files.cert, files.key, password=_no_password)
        if files.ca is not None:
            context.load_verify_locations(cafile=files.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        cert_pem, key_pem = Path(files.cert).read_bytes(), Path(files.key).read_bytes()
        ca_pem = Path(files.ca).read_bytes() if files.ca is not None else None
        expires_s = expiry_of(cert_pem)
    except (OSError, ValueError) as error:
        raise _unusable(files, error) from None
    if expires_s <= now_s:
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires_s))
        raise error_of(Code.INVALID_ARGUMENT, f"the certificate {files.cert} expired at {ended}; renew it")
    return TlsMaterial(context, cert_pem, key_pem, ca_pem, expires_s)


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    # Compression would let an attacker who can choose part of a message guess the rest.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _no_password() -> str:
    """Called for an encrypted key: OpenSSL would otherwise ask on the terminal."""
    raise ValueError("the key is encrypted; DejaQ reads keys without a password")


def _unusable(files: TlsFiles, error: OSError | ValueError) -> DejaqError:
    names = ", ".join(files.paths())
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    place = getattr(error, "filename", None) or names
    return error_of(Code.INVALID_ARGUMENT, f"TLS cannot use {place}: {str(reason).replace('_', ' ').lower()}")


class ServerTls:
    """The certificate of a server, read again after its files changed. Files that do not work are not used."""

    def __init__(self, files: TlsFiles, *, now_s: Callable[[], float]) -> None:
        self.files = files
        self._now_s = now_s
        self.material = load_server(files, now_s())
        self._seen = files.signature()
        # Increased with every new certificate.
        self.version = 1
        # Why the files as they are now cannot be used; None while they are in use.
        self.failure: str | None = None
        self.failures = 0

    def refresh(self) -> bool:
        """Read the files again if they have changed; whether there is a new certificate."""
        try:
            seen = self.files.signature()
        except OSError as error:
            # Files that come back are read, whatever their times.
            self._seen = ()
            self._fail(f"{error.filename}: {error.strerror}")
            return False
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self.material = load_server(self.files, self._now_s())
        except DejaqError as error:
            self._fail(error.message)
            return False
        self.failure = None
        self.version += 1
        log.info("the TLS certificate %s was read again", self.files.cert)
        return True

    def _fail(self, reason: str) -> None:
        if reason != self.failure:
            self.failures += 1
            log.error("the new TLS files cannot be used, the earlier ones stay in use: %s", reason)
        self.failure = reason


class ClientTls:
    """The client's side of TLS; its files are read again when they change."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._seen: _Signature | None = None
        self._context: ssl.SSLContext | None = None

    def signature(self) -> _Signature:
        """A value that changes when one of the files does."""
        try:
            return self.files.signature()
        except OSError as error:
            raise _unusable(self.files, error) from None

    def context(self) -> ssl.SSLContext:
        """The context for a connection that begins now; raises INVALID_ARGUMENT for files that do not work."""
        seen = self.signature()
        if self._context is None or seen != self._seen:
            self._context, self._seen = client_context(self.files), seen
        return self._context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The authorities, the key and the certificate, as gRPC takes them; None for what is not given."""
        # Checks that the files fit each other, which gRPC does not say.
        self.context()
        files = self.files
        read = [Path(path).read_bytes() if path is not None else None for path in (files.ca, files.key, files.cert)]
        return read[0], read[1], read[2]
