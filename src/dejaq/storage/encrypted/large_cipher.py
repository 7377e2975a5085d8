"""Seals the parts of large bodies, and the digests by which the store knows them.

The key of a body's parts is derived from the store's key and the body's digest, so equal bodies are equal when sealed
and can be shared. The digest of the content would confirm a guess of it, so the store gets the digest under
AES-256-XTS, which keeps its length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dejaq.domain.bodies.large import Declared, Reference, reference_of
from dejaq.errors import Code, error_of
from dejaq.storage.encrypted.body_cipher import TopicKey

TAG_BYTES = 16
_TWEAK = bytes(16)


@dataclass(frozen=True, slots=True)
class SealedDeclared(Declared):
    """The declaration of a sealed body: its digest identifies the content, and is not that of the sealed parts."""

    def accepts(self, count: int, stored: int, digest: bytes) -> bool:
        """Whether this is the number and size of its parts; the parts were verified before they were sealed."""
        return (count, stored) == (self.parts, self.stored)


class LargeCipher:
    """Seals large bodies with the store's key, which never changes: a body may move between topics by its reference."""

    def __init__(self, key: TopicKey) -> None:
        self._key = key
        digest_key = key.derive(b"digest-1", b"") + key.derive(b"digest-2", b"")
        self._digest = Cipher(algorithms.AES(digest_key), modes.XTS(_TWEAK))

    def declared(self, declared: Declared) -> SealedDeclared:
        """The declaration that the store gets."""
        return SealedDeclared(
            size=declared.size,
            stored=declared.stored + declared.parts * TAG_BYTES,
            digest=self._digest.encryptor().update(declared.digest),
        )

    def inner(self, reference: Reference) -> Reference:
        """The reference as the store knows it."""
        sealed = self.declared(reference)
        return replace(reference, stored=sealed.stored, digest=sealed.digest)

    def outer(self, reference: Reference) -> Reference:
        """The reference as clients know it."""
        return replace(
            reference,
            stored=reference.stored - reference.parts * TAG_BYTES,
            digest=self._digest.decryptor().update(reference.digest),
        )

    def inner_body(self, body: bytes) -> bytes:
        """A body, with a reference as the store knows it."""
        reference = reference_of(body)
        return body if reference is None else self.inner(reference).pack()

    def outer_body(self, body: bytes) -> bytes:
        """A body, with a reference as clients know it."""
        reference = reference_of(body)
        return body if reference is None else self.outer(reference).pack()

    def seal_part(self, declared: Declared, number: int, part: bytes) -> bytes:
        """The sealed form of one part."""
        return self._parts_of(declared).encrypt(number.to_bytes(12, "big"), part, None)

    def open_part(self, declared: Declared, number: int, part: bytes) -> bytes:
        """The part; raises BODY_UNREADABLE when it was changed or belongs to another body."""
        try:
            return self._parts_of(declared).decrypt(number.to_bytes(12, "big"), part, None)
        except (InvalidTag, ValueError):
            raise error_of(
                Code.BODY_UNREADABLE, "a part of the body cannot be decrypted: it was changed in the store"
            ) from None

    def check_value(self, check: int) -> int:
        """The check value of a batch as it is stored: it depends on a key, so it confirms no guess of the content."""
        return int.from_bytes(self._key.derive(b"check", check.to_bytes(8, "big"))[:8], "big") or 1 if check else 0

    def _parts_of(self, declared: Declared) -> AESGCM:
        return AESGCM(self._key.derive(b"part", declared.size.to_bytes(8, "big") + declared.digest))
