"""The contract of a key provider: it protects (wraps) the keys of topics with keys of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A key of a topic as it is stored: protected by the provider's key of this name."""

    provider_key: str
    wrapped: str


class KeyProvider(Protocol):
    """Protects keys. `context` names the use of a key; a key is only returned for the use that it was wrapped for.

    Both calls raise KEY_UNAVAILABLE when the provider does not answer, or does not have or accept the key.
    """

    async def wrap(self, key: bytes, context: bytes) -> WrappedKey:
        """Protect a key with the provider's current key."""

    async def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """The key that was wrapped, also with an earlier key of the provider."""

    async def current(self) -> str:
        """The name of the provider's key that `wrap` uses now."""
