"""The key that a journal is signed with: Ed25519, created at the first start and stored with the data."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from dejaq.errors import Code, error_of
from dejaq.journal.aside import write_whole


class SigningKey:
    """Signs the statements of a journal."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def of(cls, path: Path) -> SigningKey:
        """The key in the file, which is made, readable by its owner alone, when it is not there."""
        if not path.exists():
            key = Ed25519PrivateKey.generate()
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_whole(path, pem, what="key", mode=0o600)
            return cls(key)
        try:
            loaded = load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, UnsupportedAlgorithm) as cause:
            raise error_of(Code.STORE_CORRUPT, f"{path} is not a key", details=str(cause)) from None
        if not isinstance(loaded, Ed25519PrivateKey):
            raise error_of(Code.STORE_CORRUPT, f"{path} is not an Ed25519 key")
        return cls(loaded)

    @property
    def public(self) -> VerifyingKey:
        """The public half."""
        return VerifyingKey(self._key.public_key())

    def sign(self, content: bytes) -> str:
        """The signature, in hex."""
        return self._key.sign(content).hex()


class VerifyingKey:
    """Checks whether a signature was made with the private half of the key."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> VerifyingKey:
        """The key in a file; raises ValueError when that holds anything else."""
        content = Path(path).read_bytes()
        try:
            loaded = load_pem_public_key(content)
        except UnsupportedAlgorithm as cause:
            raise ValueError(str(cause)) from None
        if not isinstance(loaded, Ed25519PublicKey) or cls(loaded).pem() != content:
            raise ValueError("not an Ed25519 key as it is written")
        return cls(loaded)

    def pem(self) -> bytes:
        """The content of its file."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def signed(self, content: bytes, signature: str) -> bool:
        """Whether the signature is genuine."""
        try:
            packed = bytes.fromhex(signature)
            self._key.verify(packed, content)
        except (InvalidSignature, ValueError):
            return False
        # A signature has exactly one valid spelling.
        return packed.hex() == signature
