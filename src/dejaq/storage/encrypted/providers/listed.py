"""Keys in a list: lines of a name and 32 bytes in base64, from a file or an environment variable.

The first key protects new keys; the others are only used to read what they protected before. So a key is replaced
by writing a new line above it.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.encrypted.providers.base import KEY_BYTES, WrappedKey

_NAME = re.compile(r"[0-9A-Za-z._\-]{1,64}")
_NONCE_BYTES = 12
KEYS_MAX = 1_000


class ListedKeys:
    """Wraps keys with AES-256-GCM under keys of a list, which is read again when it has changed."""

    def __init__(self, read: Callable[[], str], *, source: str, version: Callable[[], object] = lambda: None) -> None:
        self._read = read
        self._source = source
        self._version = version
        self._seen: object = None
        self._keys: dict[str, bytes] = {}

    async def wrap(self, key: bytes, context: bytes) -> WrappedKey:
        """Protect a key with the first key of the list."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        name, own = next(iter(self._listed().items()))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + AESGCM(own).encrypt(nonce, key, context)
        return WrappedKey(name, base64.b64encode(sealed).decode())

    async def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """The key that was wrapped."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        own = self._listed().get(wrapped.provider_key)
        if own is None:
            raise error_of(
                Code.KEY_UNAVAILABLE,
                f"{self._source} has no key {wrapped.provider_key!r}, which protects the key of a topic",
                details="add that key to the list again",
            )
        sealed = base64.b64decode(wrapped.wrapped)
        try:
            return AESGCM(own).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
        except InvalidTag:
            raise error_of(
                Code.KEY_UNAVAILABLE,
                f"the key {wrapped.provider_key!r} in {self._source} is not the one that protects the key of the topic",
            ) from None

    async def current(self) -> str:
        """The name of the first key."""
        return next(iter(self._listed()))

    def _listed(self) -> dict[str, bytes]:
        try:
            version = self._version()
            if not self._keys or version != self._seen:
                self._keys, self._seen = parse_keys(self._read(), self._source), version
        except (OSError, DejaqError) as cause:
            if self._keys:
                # A list that is being replaced, or was damaged: the keys that are known go on working.
                return self._keys
            if isinstance(cause, DejaqError):
                raise
            raise error_of(Code.KEY_UNAVAILABLE, f"cannot read {self._source}", details=str(cause)) from None
        return self._keys


def parse_keys(text: str, source: str) -> dict[str, bytes]:
    """The keys of a list, by name, in order; raises KEY_UNAVAILABLE that names the line, never its content."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, encoded = line.strip().partition(" ")
        try:
            key = base64.b64decode(encoded.strip(), validate=True)
        except binascii.Error:
            key = b""
        if _NAME.fullmatch(name) is None or len(key) != KEY_BYTES or name in keys or len(keys) >= KEYS_MAX:
            raise error_of(
                Code.KEY_UNAVAILABLE,
                f"line {number} of {source} is not a new name, a space, and {KEY_BYTES} bytes in base64",
            )
        keys[name] = key
    if not keys:
        raise error_of(Code.KEY_UNAVAILABLE, f"{source} has no key")
    return keys


def file_keys(path: Path) -> ListedKeys:
    """The keys of a file; refuses one that other users of the machine may read."""

    def read() -> str:
        if path.stat().st_mode & 0o077:
            raise error_of(Code.KEY_UNAVAILABLE, f"other users may read {path}", details=f"run: chmod 600 {path}")
        return path.read_text(encoding="utf-8")

    def version() -> object:
        status = path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    return ListedKeys(read, source=f"the file {path}", version=version)


def environment_keys(variable: str) -> ListedKeys:
    """The keys of an environment variable, in lines or separated by commas."""

    def read() -> str:
        value = os.environ.get(variable)
        if value is None:
            raise error_of(Code.KEY_UNAVAILABLE, f"the environment variable {variable} is not set")
        return value.replace(",", "\n")

    return ListedKeys(read, source=f"the environment variable {variable}")


def new_key_line(name: str) -> str:
    """A line with a new random key."""
    if _NAME.fullmatch(name) is None:
        raise error_of(Code.INVALID_ARGUMENT, f"{name[:80]!r} is not a name of a key: 1 to 64 of 0-9 A-Z a-z . _ -")
    return f"{name} {base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}"
