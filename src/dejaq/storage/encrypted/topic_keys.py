"""The keys of topics: made with a topic, stored with its record in wrapped form, and removed with it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.encrypted.body_cipher import KEY_NUMBER_MAX, TopicKey
from dejaq.storage.encrypted.providers.base import KEY_BYTES, KeyProvider, WrappedKey


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key of a topic as its record has it."""

    number: int
    wrapped: WrappedKey


def read_keys(text: str) -> list[StoredKey]:
    """The keys in a topic's record, oldest first."""
    listed = json.loads(text) if text else []
    return [StoredKey(one["number"], WrappedKey(one["by"], one["wrapped"])) for one in listed]


def write_keys(keys: Iterable[StoredKey]) -> str:
    """The text that a topic's record has."""
    return json.dumps(
        [{"number": key.number, "by": key.wrapped.provider_key, "wrapped": key.wrapped.wrapped} for key in keys]
    )


class TopicKeys:
    """Makes, wraps and unwraps the keys of topics with a provider, and keeps those that were unwrapped."""

    def __init__(self, provider: KeyProvider) -> None:
        self._provider = provider
        # By topic number, then by key number.
        self._secrets: dict[int, dict[int, bytes]] = {}

    async def unwrapped(self, topic: Topic) -> list[TopicKey]:
        """The keys in the record of a topic; raises KEY_UNAVAILABLE."""
        stored = read_keys(topic.keys)
        if not stored:
            raise error_of(Code.KEY_UNAVAILABLE, f"the encrypted topic {topic.name!r} has no key")
        known = self._secrets.setdefault(topic.number, {})
        missing = [key for key in stored if key.number not in known]
        found = await asyncio.gather(
            *(self._provider.unwrap(key.wrapped, _context(topic, key.number)) for key in missing)
        )
        for key, secret in zip(missing, found, strict=True):
            if len(secret) != KEY_BYTES:
                raise error_of(Code.KEY_UNAVAILABLE, f"the key of topic {topic.name!r} does not have {KEY_BYTES} bytes")
            known[key.number] = secret
        return [TopicKey(topic.number, key.number, known[key.number]) for key in stored]

    async def with_new_key(self, topic: Topic) -> str:
        """The keys of a topic and a new one, with which everything is sealed from now on."""
        stored = read_keys(topic.keys)
        number = stored[-1].number + 1 if stored else 0
        if number > KEY_NUMBER_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"the topic {topic.name!r} has had {KEY_NUMBER_MAX + 1} keys")
        secret = secrets.token_bytes(KEY_BYTES)
        wrapped = await self._provider.wrap(secret, _context(topic, number))
        return write_keys([*stored, StoredKey(number, wrapped)])

    async def rewrapped(self, topic: Topic) -> str:
        """The same keys, protected by the provider's current key."""
        keys: Sequence[TopicKey] = await self.unwrapped(topic)
        return write_keys(
            [StoredKey(key.number, await self._provider.wrap(key.secret, _context(topic, key.number))) for key in keys]
        )

    def forget(self, topic: int) -> None:
        """Drop the keys of a topic from memory."""
        self._secrets.pop(topic, None)


def _context(topic: Topic, number: int) -> bytes:
    # The number of a topic is never used again in its store.
    return f"dejaq topic {topic.number} {topic.name} key {number}".encode()
