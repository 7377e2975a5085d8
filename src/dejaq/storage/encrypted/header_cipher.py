"""Seals the values of headers, and opens them.

A value is sealed by itself and stays a text, so stores, edits of single headers and dead letters need to know nothing
of it. It is sealed with AES-SIV: the same value of the same header of a topic is always sealed to the same text, so a
filter by a header's value works on what is stored. So equal values can be seen to be equal. The names of headers stay
readable, and so do the broker's own headers about dead letters, except a consumer's error and its traceback.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from dejaq.domain.dead_letter import ERROR, PREFIX, TRACEBACK, Cause
from dejaq.domain.headers import decode_header_change, decode_headers, encode_header_change, encode_headers
from dejaq.domain.message import SEALED
from dejaq.storage.encrypted.body_cipher import TopicKey

# The header that names the headers of a message whose values could not be opened.
UNREADABLE_NAMES = "dejaq-unreadable-headers"
# Values repeat: what was sealed or opened last is remembered, in the memory of the process only.
_REMEMBERED_MAX = 4_096
_PREFIX_BYTES = 6


def is_sealed(name: str) -> bool:
    """Whether the values of this header are sealed."""
    return not name.startswith(PREFIX) or name in (ERROR, TRACEBACK)


def _cipher(key: TopicKey) -> AESSIV:
    return AESSIV(key.derive(b"header-mac", b"") + key.derive(b"header", b""))


class HeaderSealer:
    """Seals the headers of one topic with its first key, which other keys do not replace: filters need one form."""

    def __init__(self, key: TopicKey) -> None:
        self._prefix = key.prefix
        self._cipher = _cipher(key)
        self.value = lru_cache(_REMEMBERED_MAX)(self._value)
        self._row = lru_cache(_REMEMBERED_MAX)(self._sealed_row)

    def row(self, encoded: bytes) -> bytes:
        """The headers of a message, with sealed values."""
        return self._row(encoded) if encoded else encoded

    def change(self, encoded: bytes | None) -> bytes | None:
        """A change of headers, with sealed values."""
        if not encoded:
            return encoded
        changed = decode_header_change(encoded)
        return encode_header_change(
            {name: text if text is None else self.value(name, text) for name, text in changed.items()}
        )

    def cause(self, cause: Cause) -> Cause:
        """Why a message is a dead letter: the consumer's error is sealed, the reason stays readable for filters."""
        return Cause(
            cause.reason,
            cause.error and self.value(ERROR, cause.error),
            cause.traceback and self.value(TRACEBACK, cause.traceback),
        )

    def _sealed_row(self, encoded: bytes) -> bytes:
        return encode_headers({name: self.value(name, text) for name, text in decode_headers(encoded).items()})

    def _value(self, name: str, text: str) -> str:
        if not is_sealed(name):
            return text
        # AES-SIV takes no empty text.
        sealed = self._cipher.encrypt(b"\x01" + text.encode(), [name.encode()])
        return SEALED + base64.b64encode(self._prefix + sealed).decode()


class HeaderOpener:
    """Opens headers with the key that each value names."""

    def __init__(self, find_key: Callable[[bytes], TopicKey]) -> None:
        """`find_key` finds a key by its prefix; raises UnknownKeyError."""
        self._find_key = find_key
        self.row = lru_cache(_REMEMBERED_MAX)(self._opened_row)
        self._ciphers = lru_cache(_REMEMBERED_MAX)(lambda prefix: _cipher(find_key(prefix)))

    def forget(self) -> None:
        """Forget what was opened, since a key was removed."""
        self.row.cache_clear()
        self._ciphers.cache_clear()

    def map(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a message; those that cannot be opened are left out, and named in a header of their own."""
        opened, unreadable = {}, []
        for name, text in headers.items():
            value = self._opened(name, text) if is_sealed(name) else text
            if value is None:
                unreadable.append(name)
            else:
                opened[name] = value
        if unreadable:
            opened[UNREADABLE_NAMES] = ",".join(unreadable)
        return opened

    def _opened_row(self, encoded: bytes) -> bytes:
        return encode_headers(self.map(decode_headers(encoded))) if encoded else encoded

    def _opened(self, name: str, text: str) -> str | None:
        if not text.startswith(SEALED):
            return None
        try:
            sealed = base64.b64decode(text.removeprefix(SEALED), validate=True)
            plain = self._ciphers(sealed[:_PREFIX_BYTES]).decrypt(sealed[_PREFIX_BYTES:], [name.encode()])
            return plain[1:].decode()
        except (InvalidTag, ValueError, binascii.Error):
            return None
