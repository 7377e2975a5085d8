"""The keys of a store's encrypted topics: which topics have which, and what seals and opens their bodies.

Besides the topics there is one record of the store itself, under a name that no topic can have: its key seals large
bodies, which messages of several topics may refer to.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from dejaq.domain.bodies.large import any_reference
from dejaq.domain.context import CallContext
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.domain.topic import Encryption, Topic, TopicKind, TopicSettings
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.base import Storage
from dejaq.storage.encrypted.body_cipher import Opener, Sealer, TopicKey, UnknownKeyError
from dejaq.storage.encrypted.header_cipher import UNREADABLE_NAMES, HeaderOpener, HeaderSealer, is_sealed
from dejaq.storage.encrypted.large_cipher import LargeCipher
from dejaq.storage.encrypted.providers.base import KEY_BYTES, KeyProvider
from dejaq.storage.encrypted.sealing import Ciphers, UnsealedBodies
from dejaq.storage.encrypted.topic_keys import TopicKeys
from dejaq.storage.encrypted.value_cipher import TopicValueCipher
from dejaq.storage.value_ciphers import SealsValues

T = TypeVar("T")
STORE_RECORD = "store/keys"
# The records of topics are read again for an unknown key at most this often.
RELOAD_SECONDS = 1.0


class Keyring:
    """Reads and writes the records with keys, in the storage that has them."""

    def __init__(self, inner: Storage, provider: KeyProvider) -> None:
        self._inner = inner
        self._provider = provider
        self._keys = TopicKeys(provider)
        # The records of encrypted topics, with their keys, by number; and that of the store.
        self._records: dict[int, Topic] = {}
        self._store: Topic | None = None
        self._ciphers: dict[int, Ciphers] = {}
        self._seals_itself = isinstance(inner, SealsValues)
        # Of topics in a storage that seals what it writes.
        self._values: dict[int, TopicValueCipher] = {}
        self._opener = Opener()
        self._headers = HeaderOpener(self._opener.key_of)
        self._reloaded = -RELOAD_SECONDS
        # A record is read, changed and written by one call at a time; other brokers keep out by the topic's claim.
        self._changing = asyncio.Lock()

    async def check(self) -> None:
        """Raise KEY_UNAVAILABLE when the provider does not work."""
        await self._provider.current()

    async def open(self) -> None:
        """Unwrap the keys of all topics; raises KEY_UNAVAILABLE."""
        await self.load()
        for record in self._all_records():
            await self._keys.unwrapped(record)

    async def learn(self, topics: Sequence[Topic]) -> None:
        """Unwrap the keys in the records of topics, for a storage that reads their messages while it is opened."""
        for topic in topics:
            if topic.keys:
                await self._know_values(topic)

    async def _know_values(self, record: Topic) -> None:
        keys = await self._keys.unwrapped(record)
        known = self._values.get(record.number)
        if known is None:
            self._values[record.number] = TopicValueCipher(keys)
        elif known.keys != tuple(keys):
            known.use(keys)

    def of(self, topic: int) -> TopicValueCipher | None:
        """What seals the values of a topic, in a storage that does so by itself."""
        return self._values.get(topic)

    async def load(self) -> list[Topic]:
        """Read the records of all topics; without that of the store."""
        topics = await self._inner.topics()
        self._records = {topic.number: topic for topic in topics if topic.keys and topic.name != STORE_RECORD}
        self._store = next((topic for topic in topics if topic.name == STORE_RECORD), None)
        return [topic for topic in topics if topic.name != STORE_RECORD]

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        """Write the record of an encrypted topic: with a new key when it is new, else with its keys."""
        async with self._changing:
            await self._put_topic(topic, context)

    async def _put_topic(self, topic: Topic, context: CallContext) -> None:
        if self._inner.capabilities.shared:
            # Another broker may have given it a key.
            await self.load()
        await self._make_store_record(context)
        known = self._records.get(topic.number)
        keys = known.keys if known is not None else await self._keys.with_new_key(topic)
        await self._write(replace(topic, keys=keys), context)

    async def remove(self, topic: Topic, context: CallContext) -> None:
        """Remove the keys of a topic from its record and from memory: its bodies can be read by nobody from now on."""
        async with self._changing:
            await self._remove(topic, context)

    async def _remove(self, topic: Topic, context: CallContext) -> None:
        if self._inner.capabilities.shared:
            await self.load()
        if topic.number in self._records:
            await self._inner.put_topic(replace(topic, keys=""), context)
        self._records.pop(topic.number, None)
        self._ciphers.pop(topic.number, None)
        if topic.number in self._values:
            # What the storage still writes of the topic is sealed with a key that nobody has.
            self._values[topic.number] = TopicValueCipher([TopicKey(topic.number, 0, secrets.token_bytes(KEY_BYTES))])
        self._keys.forget(topic.number)
        self._opener.forget(topic.number)
        self._headers.forget()

    def dropped(self, topic: Topic) -> None:
        """Forget a topic of which nothing is left."""
        self._values.pop(topic.number, None)

    async def rekey(self, topic: Topic, context: CallContext, *, new_key: bool) -> str:
        """Protect the keys of a topic and of the store with the provider's current key, which is named in the answer.

        With `new_key` the topic first gets another key, for all bodies that are sealed from now on.
        """
        async with self._changing:
            return await self._rekeyed(topic, context, new_key=new_key)

    async def _rekeyed(self, topic: Topic, context: CallContext, *, new_key: bool) -> str:
        await self.load()
        record = self._records.get(topic.number)
        if record is None:
            raise error_of(Code.KEY_UNAVAILABLE, f"the topic {topic.name!r} has no key in the store")
        if new_key:
            record = replace(record, keys=await self._keys.with_new_key(record))
        await self._write(replace(record, keys=await self._keys.rewrapped(record)), context)
        if self._store is not None:
            store = replace(self._store, keys=await self._keys.rewrapped(self._store))
            await self._inner.put_topic(store, context)
            self._store = store
        return await self._provider.current()

    async def ciphers_of(self, topic: Topic) -> Ciphers:
        """What seals the bodies of an encrypted topic."""
        known = self._ciphers.get(topic.number)
        if known is not None:
            return known
        if topic.number not in self._records or self._store is None:
            await self.load()
        record = self._records.get(topic.number)
        if record is None or self._store is None:
            raise error_of(Code.KEY_UNAVAILABLE, f"the encrypted topic {topic.name!r} has no key in the store")
        keys = await self._keys.unwrapped(record)
        (store_key, *_) = await self._keys.unwrapped(self._store)
        self._opener.learn(keys)
        # A batch of a log is sealed as a whole for every storage.
        unsealed = self._seals_itself and topic.settings.kind is not TopicKind.LOG
        sealer = UnsealedBodies() if unsealed else Sealer(keys[-1], shares=topic.settings.share_bodies)
        headers = HeaderSealer(keys[0]) if self.seals_headers(topic) else None
        made = self._ciphers[topic.number] = Ciphers(sealer, LargeCipher(store_key), headers)
        return made

    async def opened(
        self, topic: Topic, ids: Sequence[str], sealed: Sequence[bytes], headers: Sequence[bytes] | None
    ) -> list[bytes]:
        """The bodies, with references as clients know them."""
        large = (await self.ciphers_of(topic)).large
        bodies = list(sealed) if self._seals_itself else await self._opened(ids, sealed, headers)
        return list(map(large.outer_body, bodies)) if any_reference(bodies) else bodies

    async def opened_blocks(self, topic: Topic, names: Sequence[str], sealed: Sequence[bytes]) -> list[bytes]:
        """Batches of a log, which are never references."""
        await self.ciphers_of(topic)
        return await self._opened(names, sealed, None)

    async def _opened(
        self, ids: Sequence[str], sealed: Sequence[bytes], headers: Sequence[bytes] | None
    ) -> list[bytes]:
        bodies = await self._with_keys(lambda: self._opener.open(ids, sealed, headers))
        return bodies if bodies is not None else self._opener.open(ids, sealed, headers, all_known=True)

    def seals_headers(self, topic: Topic) -> bool:
        """Whether the storage gets sealed values of the headers of a topic."""
        return not self._seals_itself and topic.settings.encryption is Encryption.BODIES_AND_HEADERS

    def takes_dead_letters(self, topic: Topic) -> bool:
        """Whether another encrypted topic sends its dead letters to this one, with headers of its own key."""
        return any(one.dead_letter_name == topic.name for one in self._records.values() if one.number != topic.number)

    async def opened_rows(self, topic: Topic, rows: Sequence[bytes] | None) -> list[bytes] | None:
        """The headers of messages, with opened values."""
        if rows is None or not self.seals_headers(topic):
            return rows if rows is None else list(rows)
        await self.ciphers_of(topic)
        opened = await self._with_keys(lambda: list(map(self._headers.row, rows)))
        return opened if opened is not None else [self._left_headers(row) for row in rows]

    async def opened_headers(self, topic: Topic, headers: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
        """The same for maps."""
        rows = await self.opened_rows(topic, list(map(encode_headers, headers)))
        assert rows is not None
        return list(map(decode_headers, rows))

    def _left_headers(self, row: bytes) -> bytes:
        """The headers of a message, when some message has headers of a key that no topic has."""
        try:
            return self._headers.row(row)
        except UnknownKeyError:
            known = {name: text for name, text in decode_headers(row).items() if not is_sealed(name)}
            return encode_headers({**known, UNREADABLE_NAMES: "*"})

    async def same(self, message_id: str, sealed: bytes, body: bytes) -> bool:
        """Whether a stored body has this content; references are as the store knows them."""
        return bool(await self._with_keys(lambda: self._opener.same(message_id, sealed, body)))

    async def _with_keys(self, use: Callable[[], T]) -> T | None:
        """The result of `use`; None when it needs a key that no topic has."""
        tried: set[int] = set()
        while True:
            try:
                return use()
            except UnknownKeyError as unknown:
                # A dead letter of another topic, or a key that another broker added.
                if unknown.topic in tried or not await self._learn(unknown.topic):
                    return None
                tried.add(unknown.topic)

    async def _learn(self, topic: int) -> bool:
        """Get the keys of a topic; False when the store has none."""
        now = time.monotonic()
        if now - self._reloaded >= RELOAD_SECONDS:
            self._reloaded = now
            await self.load()
        record = self._records.get(topic)
        if record is None:
            return False
        keys = await self._keys.unwrapped(record)
        self._opener.learn(keys)
        # The next body is sealed with the newest key.
        self._ciphers.pop(topic, None)
        return True

    async def _write(self, record: Topic, context: CallContext) -> None:
        if self._seals_itself:
            await self._know_values(record)
        await self._inner.put_topic(record, context)
        self._records[record.number] = record
        self._ciphers.pop(record.number, None)

    async def _make_store_record(self, context: CallContext) -> None:
        if self._store is not None:
            return
        number = await self._inner.next_topic_number()
        record = Topic(STORE_RECORD, number, TopicSettings(buckets=1, encryption=Encryption.BODIES))
        record = replace(record, keys=await self._keys.with_new_key(record))
        try:
            await self._inner.put_topic(record, context)
            self._store = record
        except DejaqError as error:
            if error.code is not Code.TOPIC_EXISTS:
                raise
            # Another broker has just made it.
            await self.load()

    def _all_records(self) -> list[Topic]:
        return [*self._records.values(), *([self._store] if self._store is not None else [])]
