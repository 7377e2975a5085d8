"""Certificates: their names and ends, and a set for trials. Needs the extra `security`."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dejaq.errors import Code, DejaqError, error_of

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

# The kinds of names that identify a caller, with the mark under which they are in the caller's name.
_MARKS = {"URI": "URI", "DNS": "DNS", "email": "email"}
TRIAL_DAYS = 397
_OWNER_ONLY = 0o600


def needs_extra(what: str) -> DejaqError:
    """The error for a feature whose packages are not installed."""
    return error_of(Code.INVALID_ARGUMENT, f"{what} needs more packages: pip install 'dejaq-mq[security]'")


def expiry_of(pem: bytes) -> float:
    """When the first certificate of a chain expires, in seconds since 1970; raises ValueError."""
    return _first(pem).not_valid_after_utc.timestamp()


def _first(pem: bytes) -> x509.Certificate:
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        raise needs_extra("TLS") from None
    return x509.load_pem_x509_certificates(pem)[0]


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The alternative names of a peer's certificate, from what `getpeercert` gives: `URI:...`, `DNS:...`, `email:...`.

    The common name is not one of them: it is text without a meaning that is checked.
    """
    return tuple(f"{_MARKS[kind]}:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind in _MARKS)


def end_of(certificate: Mapping[str, Any]) -> int:
    """When a peer's certificate expires, from what `getpeercert` gives, in microseconds; 0 for no certificate."""
    end = certificate.get("notAfter")
    return int(ssl.cert_time_to_seconds(end)) * 1_000_000 if isinstance(end, str) else 0


def names_in(pem: bytes) -> tuple[tuple[str, ...], int]:
    """The same as `names_of` and `end_of`, from a certificate as PEM."""
    from cryptography import x509

    certificate = _first(pem)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), 0
    names: list[str] = []
    for name in found:
        if isinstance(name, x509.UniformResourceIdentifier):
            names.append(f"URI:{name.value}")
        elif isinstance(name, x509.DNSName):
            names.append(f"DNS:{name.value}")
        elif isinstance(name, x509.RFC822Name):
            names.append(f"email:{name.value}")
    return tuple(names), int(certificate.not_valid_after_utc.timestamp()) * 1_000_000


@lru_cache(maxsize=1_024)
def _names_of_peer(pem: bytes) -> tuple[tuple[str, ...], int]:
    return names_in(pem)


def certified(chain: Iterable[bytes]) -> tuple[tuple[str, ...], int]:
    """The same for a peer of gRPC, which gives the certificate as PEM; nothing for a peer without one."""
    first = next(iter(chain), None)
    return _names_of_peer(first) if first is not None else ((), 0)


class Authority:
    """A certificate authority that signs certificates for trials and tests."""

    def __init__(self, name: str, *, days: float = TRIAL_DAYS) -> None:
        from cryptography import x509

        self.key = _new_key()
        self._days = days
        builder = _builder(name, self.key, issuer=name, start=_start(), end=_start() + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        self.certificate = builder.add_extension(identifier, critical=False).sign(self.key, _sha256())
        self._name = name

    def pem(self) -> bytes:
        """The authority's own certificate."""
        return _pem(self.certificate)

    def sign(
        self, name: str, names: Sequence[str], *, server: bool, start: datetime | None = None, days: float | None = None
    ) -> tuple[bytes, bytes]:
        """A certificate with these alternative names, and its key, as PEM; a server's certificate is a client's too."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        begin = start if start is not None else _start()
        end = begin + timedelta(days=self._days if days is None else days)
        builder = _builder(name, key, issuer=self._name, start=begin, end=end)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
        made = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_general(one) for one in names]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, _sha256())
        )
        return _pem(made), _key_pem(key)


def make_trial_set(directory: Path, hosts: Sequence[str], user: str) -> dict[str, Path]:
    """Make authorities, a broker's certificate and a client's, and write them; existing files are not replaced.

    Brokers and clients have authorities of their own, so that a client's certificate is none of a broker.
    """
    brokers, clients = Authority("DejaQ trial brokers"), Authority("DejaQ trial clients")
    server_cert, server_key = brokers.sign("dejaq broker", hosts, server=True)
    client_cert, client_key = clients.sign(user, [f"URI:dejaq:user:{user}"], server=False)
    files = {
        "ca.pem": brokers.pem(),
        "client-ca.pem": clients.pem(),
        "server.pem": server_cert,
        "server-key.pem": server_key,
        "client.pem": client_cert,
        "client-key.pem": client_key,
    }
    directory.mkdir(parents=True, exist_ok=True)
    taken = [name for name in files if (directory / name).exists()]
    if taken:
        raise error_of(
            Code.INVALID_ARGUMENT, f"{directory} contains {', '.join(taken)} already; choose another directory"
        )
    for name, content in files.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return {name: directory / name for name in files}


def _start() -> datetime:
    # A minute in the past, for machines whose clocks differ.
    return datetime.now(UTC) - timedelta(minutes=1)


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _sha256() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _builder(
    name: str, key: EllipticCurvePrivateKey, *, issuer: str, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    kind, _, rest = name.partition(":")
    if kind == "URI":
        return x509.UniformResourceIdentifier(rest)
    if kind == "email":
        return x509.RFC822Name(rest)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.removeprefix("DNS:"))


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
