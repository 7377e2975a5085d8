"""What a store needs in order to encrypt what it writes of a topic by itself, a whole run of messages at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from dejaq.domain.topic import Topic


class ValueCipher(Protocol):
    """Seals the values that a store keeps of one topic."""

    def seal(self, name: bytes, value: bytes, before: bytes = b"") -> bytes:
        """The sealed form of a value, behind `before`; it can be opened under this name only."""

    def open(self, name: bytes, sealed: bytes) -> bytes | None:
        """The value; None where it was changed, has another name, or was sealed with a key of another topic."""

    def digest(self, value: bytes) -> bytes:
        """A digest of 32 bytes that only the topic's key can compute."""

    def checks(self, sequence: int, first: int, values: Iterable[int]) -> bytes:
        """The check values of bodies in a record of the journal, from row `first` on, in a form that confirms no guess
        of a body: equal values differ in each row. 32 bits each, little-endian.
        """


class ValueCiphers(Protocol):
    """The ciphers of the topics of a store."""

    async def learn(self, topics: Sequence[Topic]) -> None:
        """Unwrap the keys in the records of these topics; raises KEY_UNAVAILABLE."""

    def of(self, topic: int) -> ValueCipher | None:
        """The cipher of a topic by its number; None where the topic has no key."""


@runtime_checkable
class SealsValues(Protocol):
    """A store that encrypts by itself what it writes of topics that have a cipher."""

    # Set before the store is opened.
    value_ciphers: ValueCiphers | None
