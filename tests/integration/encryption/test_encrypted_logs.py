"""Encrypted logs: nothing of a batch is readable in the files, and batches that were changed are known. S5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import dejaq
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Encryption, Topic, TopicKind, TopicSettings
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.encrypted.providers.listed import ListedKeys, new_key_line
from dejaq.storage.encrypted.store import EncryptedStorage
from dejaq.storage.log.base import Append, StoredBatch
from dejaq.storage.memory.store import MemoryStorage
from tests.integration.encryption.test_encrypted_broker import CANARY, files_with, keys

NOW = 1_700_000_000_000
RECORDS = log_pb2.LogRecords(bodies=[CANARY, b"second"], keys=[b"k1", b"k2"]).SerializeToString()


@pytest.mark.parametrize("encryption", ["bodies", "bodies+headers"])
async def test_no_batch_of_an_encrypted_log_is_readable_in_the_files(tmp_path: Path, encryption: str) -> None:
    data, file = tmp_path / "data", keys(tmp_path, "k1")
    secret = CANARY.decode()
    for _ in range(2):
        # The second time, the broker reads what the first one wrote.
        async with dejaq.Broker(data, encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
            await client.create_topic("secret", kind="log", encryption=encryption, buckets=1)
            async with client.log("secret") as log:
                await log.append(CANARY, key=CANARY, headers={"customer": secret})
                async with log.reader(start="beginning") as reader:
                    message = await anext(aiter(reader))
                (last,) = await log.tail(1)
            assert (last.body, last.headers) == (message.body, message.headers)
            assert (message.body, message.key, message.headers) == (CANARY, CANARY, {"customer": secret})
            copy = await client.checkpoint()
        assert not list(files_with(CANARY, data))
        assert not list(files_with(CANARY, Path(copy)))


class Tampering(MemoryStorage):
    """A store in which somebody changes batches."""

    def batch(self, topic: Topic, bucket: int, place: int) -> tuple[list[StoredBatch], StoredBatch]:
        """The stored batches of a bucket, and one of them."""
        batches = self.logs._log(topic).buckets[bucket].batches
        return batches, batches[place]


async def bodies(store: EncryptedStorage, topic: Topic, bucket: int) -> list[list[bytes]]:
    """The bodies of each batch of a bucket as readers get them; None for those that cannot be read."""
    found = await store.logs.read(topic, bucket, 0, end=None, bytes_max=2**20, committed=True, now=NOW)
    return [list(log_pb2.LogRecords.FromString(one.records).bodies) for one in found.batches]


async def test_a_batch_that_was_changed_or_moved_is_read_as_empty_messages_and_the_others_follow() -> None:
    line, inner = new_key_line("k1"), Tampering()
    store = EncryptedStorage(inner, ListedKeys(lambda: line, source="the test"))
    await store.open(NOW)
    settings = TopicSettings(kind=TopicKind.LOG, buckets=2, encryption=Encryption.BODIES)
    topics = [Topic(name, number, settings) for number, name in enumerate(("one", "two"), 1)]
    for topic in topics:
        await store.put_topic(topic, DIRECT_CALL)
        for bucket in (0, 0, 1):
            await store.logs.append(topic, [Append(bucket, RECORDS, 2)], NOW, DIRECT_CALL)
    first, second = topics
    _, of_other_topic = inner.batch(second, 0, 0)
    batches, one = inner.batch(first, 0, 0)
    good = [CANARY, b"second"]
    assert await bodies(store, first, 0) == [good, good]
    for changed in (
        one.records[:-1] + bytes([one.records[-1] ^ 1]),
        of_other_topic.records,
        inner.batch(first, 1, 0)[1].records,
        RECORDS,
        b"",
    ):
        batches[0] = replace(one, records=changed)
        assert await bodies(store, first, 0) == [[b"", b""], good]
    await store.close()
