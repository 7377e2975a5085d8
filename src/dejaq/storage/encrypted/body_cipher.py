"""Seals the bodies of a topic, and opens the bodies of all topics.

A sealed body begins with its form, the number of the topic, and the number of the topic's key. What follows depends on
the form:

- *own*: a salt, a counter, and the body under AES-256-GCM. The key is derived from the topic's key and the salt, which
  this process chose at random; the counter is the nonce, so no nonce is used twice under one key. The id of the message
  is authenticated: a sealed body that was given to a message with another id is refused.
- *shared*: 16 bytes that are computed from the content with the topic's key, and the body under AES-256-GCM with a key
  derived from them. Equal bodies of a topic are equal when sealed, so that the store can keep them once. The id is not
  authenticated, because many messages have the same body.

A dead letter keeps the sealed body that it had in its topic.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dejaq.domain.bodies.large import content_of, is_reference
from dejaq.domain.bodies.packing import UNREADABLE
from dejaq.domain.dead_letter import id_before

_OWN, _SHARED = b"\x01", b"\x02"
_TOPIC_BYTES, _KEY_NUMBER_BYTES = 5, 1
_PREFIX_BYTES = 1 + _TOPIC_BYTES + _KEY_NUMBER_BYTES
SALT_BYTES, COUNTER_BYTES = 8, 5
_HEAD_BYTES = _PREFIX_BYTES + SALT_BYTES
_NAME_BYTES = 16
_NONCE_BYTES = 12
NONCE_PAD = bytes(_NONCE_BYTES - COUNTER_BYTES)
_COUNTER_MAX = 2 ** (8 * COUNTER_BYTES)
# The derived keys of so many salts are kept: a key has one salt for each time that a broker began to write with it.
_DERIVED_MAX = 4_096
# What a dead letter's id gets when it is taken (`domain.dead_letter.free_id`).
_RENAMED = re.compile(r"(.+)\.[0-9]+(?:-[0-9]+)?")
KEY_NUMBER_MAX = 2 ** (8 * _KEY_NUMBER_BYTES) - 1


class UnknownKeyError(Exception):
    """A body was sealed with a key that this process does not have yet; `topic` is the number of the key's topic."""

    def __init__(self, topic: int) -> None:
        super().__init__(topic)
        self.topic = topic


@dataclass(frozen=True, slots=True)
class TopicKey:
    """A key of a topic: the topic's number, the number of the key in it, and 32 bytes."""

    topic: int
    number: int
    secret: bytes

    @property
    def prefix(self) -> bytes:
        """What a sealed body says about its key."""
        return self.topic.to_bytes(_TOPIC_BYTES, "big") + self.number.to_bytes(_KEY_NUMBER_BYTES, "big")

    def derive(self, purpose: bytes, value: bytes) -> bytes:
        """A key of 32 bytes for one purpose."""
        return hmac.digest(self.secret, purpose + b"\x00" + value, "sha256")


class SaltedKey:
    """A key that is derived for this process alone, and the counters that are its nonces: none is used twice."""

    def __init__(self, key: TopicKey, purpose: bytes) -> None:
        self._key, self._purpose = key, purpose
        self._begin()

    def _begin(self) -> None:
        """Begin to seal under a new salt."""
        salt = secrets.token_bytes(SALT_BYTES)
        # What a sealed text says about its key.
        self.head = self._key.prefix + salt
        self.cipher = AESGCM(self._key.derive(self._purpose, salt))
        self._next = 0

    def counters(self, count: int) -> list[bytes]:
        """So many counters, to be used with the present `head` and `cipher`."""
        if self._next + count > _COUNTER_MAX:
            self._begin()
        first, self._next = self._next, self._next + count
        return [number.to_bytes(COUNTER_BYTES, "big") for number in range(first, first + count)]


class Sealer:
    """Seals the bodies of one topic with its newest key; `shares` says whether equal bodies must be equal."""

    def __init__(self, key: TopicKey, *, shares: bool) -> None:
        self._key = key
        self._shares = shares
        self._own = SaltedKey(key, b"body")

    def seal(self, ids: Sequence[str], bodies: Sequence[bytes], *, large: bool) -> list[bytes]:
        """The sealed form of each body. With `large`, references to large bodies are left as they are."""
        if large or self._shares:
            return [
                body if large and is_reference(body) else self._sealed(message_id, body)
                for message_id, body in zip(ids, bodies, strict=True)
            ]
        counters = self._own.counters(len(bodies))
        head, encrypt = _OWN + self._own.head, self._own.cipher.encrypt
        return [
            head + counter + encrypt(NONCE_PAD + counter, body, message_id.encode())
            for counter, body, message_id in zip(counters, bodies, ids, strict=True)
        ]

    def _sealed(self, message_id: str, body: bytes) -> bytes:
        if self._shares:
            name = self._key.derive(b"name", body)[:_NAME_BYTES]
            cipher = AESGCM(self._key.derive(b"shared", name))
            return _SHARED + self._key.prefix + name + cipher.encrypt(bytes(_NONCE_BYTES), body, None)
        (counter,) = self._own.counters(1)
        sealed = self._own.cipher.encrypt(NONCE_PAD + counter, body, message_id.encode())
        return _OWN + self._own.head + counter + sealed


class Opener:
    """Opens sealed bodies with every key that it knows."""

    def __init__(self) -> None:
        self._keys: dict[bytes, TopicKey] = {}
        self._derived = lru_cache(maxsize=_DERIVED_MAX)(self._derive)

    def learn(self, keys: Iterable[TopicKey]) -> None:
        """Open bodies with these keys too."""
        self._keys.update((key.prefix, key) for key in keys)

    def forget(self, topic: int) -> None:
        """Forget the keys of a topic."""
        self._keys = {prefix: key for prefix, key in self._keys.items() if key.topic != topic}
        self._derived.cache_clear()

    def key_of(self, prefix: bytes) -> TopicKey:
        """The key that a sealed text names by its prefix; raises `UnknownKeyError`."""
        key = self._keys.get(prefix)
        if key is None:
            raise UnknownKeyError(int.from_bytes(prefix[:_TOPIC_BYTES], "big"))
        return key

    def open(
        self, ids: Iterable[str], sealed: Sequence[bytes], headers: Sequence[bytes] | None, *, all_known: bool = False
    ) -> list[bytes]:
        """The bodies. A body that cannot be opened is replaced by one that clients report as BODY_UNREADABLE.

        Raises `UnknownKeyError` when a key is not known, unless the keys that are known are all that there are.
        """
        ids = list(ids)
        column = self._opened_column(ids, sealed)
        if column is not None:
            return column
        opened = []
        for row, (message_id, body) in enumerate(zip(ids, sealed, strict=True)):
            try:
                plain = self._opened(message_id, body)
                if plain is None and headers is not None and headers[row]:
                    others = (self._opened(earlier, body) for earlier in _earlier_ids(message_id, headers[row]))
                    plain = next((one for one in others if one is not None), None)
            except UnknownKeyError:
                if not all_known:
                    raise
                plain = None
            opened.append(UNREADABLE if plain is None else plain)
        return opened

    def _opened_column(self, ids: Sequence[str], sealed: Sequence[bytes]) -> list[bytes] | None:
        """The bodies of rows that one process has sealed, which is the usual case; None when a row is anything else."""
        head = sealed[0][:_HEAD_BYTES] if sealed else b""
        if head[:1] != _OWN:
            return None
        start = _HEAD_BYTES + COUNTER_BYTES
        try:
            decrypt = self._derived(head).decrypt
            opened = [
                decrypt(NONCE_PAD + body[_HEAD_BYTES:start], body[start:], message_id.encode())
                for message_id, body in zip(ids, sealed, strict=True)
                if body.startswith(head)
            ]
        except (InvalidTag, ValueError, UnknownKeyError):
            return None
        return opened if len(opened) == len(ids) else None

    def same(self, message_id: str, sealed: bytes, body: bytes) -> bool:
        """Whether a stored body has this content."""
        if is_reference(sealed) or is_reference(body):
            return content_of(sealed) == content_of(body)
        opened = self._opened(message_id, sealed)
        return opened is not None and hmac.compare_digest(opened, body)

    def _opened(self, message_id: str, body: bytes) -> bytes | None:
        try:
            if body[:1] == _OWN:
                start = _HEAD_BYTES + COUNTER_BYTES
                nonce = NONCE_PAD + body[_HEAD_BYTES:start]
                return self._derived(body[:_HEAD_BYTES]).decrypt(nonce, body[start:], message_id.encode())
            if body[:1] == _SHARED:
                start = _PREFIX_BYTES + _NAME_BYTES
                return self._derived(body[:start]).decrypt(bytes(_NONCE_BYTES), body[start:], None)
        except (InvalidTag, ValueError):
            return None
        return body if is_reference(body) else None

    def _derive(self, head: bytes) -> AESGCM:
        key = self.key_of(head[1:_PREFIX_BYTES])
        purpose = b"body" if head[:1] == _OWN else b"shared"
        return AESGCM(key.derive(purpose, head[_PREFIX_BYTES:]))


def _earlier_ids(message_id: str, headers: bytes) -> Iterator[str]:
    """The ids that a dead letter may have had before it got this one."""
    yield id_before(message_id, headers)
    while match := _RENAMED.fullmatch(message_id):
        message_id = match[1]
        yield message_id
