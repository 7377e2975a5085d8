"""Seals values that are written as a whole, such as the bodies of a run of messages.

One call of AES-256-GCM seals a value. The sealed form begins with the number of the topic and of the topic's key, a
salt and a counter, as that of a single body does (`body_cipher`). The name of the value is authenticated.
"""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dejaq.storage.encrypted.body_cipher import COUNTER_BYTES, NONCE_PAD, SALT_BYTES, SaltedKey, TopicKey

_PREFIX_BYTES = 6
_HEAD_BYTES = _PREFIX_BYTES + SALT_BYTES
_START = _HEAD_BYTES + COUNTER_BYTES
_TAG_BYTES = _BLOCK_BYTES = 16
_PURPOSE = b"value"
# A key has one salt for each time that a broker began to write with it.
_DERIVED_MAX = 1_024
# A buffer of this size is kept for the next value; new memory for each one takes longer than to encrypt it.
_BUFFER_BYTES_MAX = 4 * 1024 * 1024


class TopicValueCipher:
    """Implements `storage.value_ciphers.ValueCipher` with the keys of a topic: the newest seals, all of them open."""

    def __init__(self, keys: Sequence[TopicKey]) -> None:
        self._opening = lru_cache(_DERIVED_MAX)(self._derived)
        self._buffer = bytearray()
        # The first key stays when others are added, so digests and check values stay the same.
        self._digest_key = keys[0].derive(b"value-digest", b"")
        # One block per check value, and no two blocks are equal: AES itself is the function that is needed.
        check = algorithms.AES(keys[0].derive(b"journal-check", b""))
        self._check = Cipher(check, modes.ECB()).encryptor()  # noqa: S305
        self.use(keys)

    def use(self, keys: Sequence[TopicKey]) -> None:
        """Seal with the last of these keys from now on, and open with all of them."""
        self.keys = tuple(keys)
        self._by_prefix = {key.prefix: key for key in keys}
        self._opening.cache_clear()
        self._sealing = SaltedKey(keys[-1], _PURPOSE)

    def seal(self, name: bytes, value: bytes, before: bytes = b"") -> bytes:
        """The value under AES-256-GCM, with the name as associated data."""
        (counter,) = self._sealing.counters(1)
        size = len(value) + _TAG_BYTES
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        sealed = memoryview(self._buffer)[:size]
        self._sealing.cipher.encrypt_into(NONCE_PAD + counter, value, name, sealed)
        whole = b"".join((before, self._sealing.head, counter, sealed))
        sealed.release()
        if size > _BUFFER_BYTES_MAX:
            self._buffer = bytearray()
        return whole

    def open(self, name: bytes, sealed: bytes) -> bytes | None:
        """The value, if its tag fits."""
        try:
            cipher = self._opening(sealed[:_HEAD_BYTES])
            return cipher.decrypt(NONCE_PAD + sealed[_HEAD_BYTES:_START], memoryview(sealed)[_START:], name)
        except (InvalidTag, ValueError, KeyError):
            return None

    def digest(self, value: bytes) -> bytes:
        """HMAC-SHA-256."""
        return hmac.digest(self._digest_key, value, "sha256")

    def checks(self, sequence: int, first: int, values: Iterable[int]) -> bytes:
        """32 bits of AES of the check value, its row and the record: a pseudo-random function of the three."""
        column = array("I", values)
        blocks = array("I", bytes(_BLOCK_BYTES * len(column)))
        blocks[0::4] = column
        blocks[1::4] = array("I", range(first, first + len(column)))
        blocks[2::4] = array("I", [sequence & 0xFFFFFFFF]) * len(column)
        blocks[3::4] = array("I", [sequence >> 32]) * len(column)
        return array("I", self._check.update(blocks.tobytes()))[::4].tobytes()

    def _derived(self, head: bytes) -> AESGCM:
        return AESGCM(self._by_prefix[head[:_PREFIX_BYTES]].derive(_PURPOSE, head[_PREFIX_BYTES:]))
