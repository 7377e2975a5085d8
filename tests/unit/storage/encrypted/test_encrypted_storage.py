"""What the storage around another one refuses, and what it lets nobody read. S5."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dejaq.domain.bodies.packing import UNREADABLE, opened
from dejaq.domain.changes import Create, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.message import Message
from dejaq.domain.topic import Encryption, Topic, TopicKind
from dejaq.errors import Code, DejaqError
from dejaq.storage.base import apply_one
from dejaq.storage.encrypted.providers.base import WrappedKey
from dejaq.storage.encrypted.providers.listed import ListedKeys, new_key_line
from dejaq.storage.encrypted.store import EncryptedStorage
from dejaq.storage.encrypted.topic_keys import read_keys
from dejaq.storage.log.base import Append
from dejaq.storage.log.prepared import check_of
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.transactions import LogAppendStep, Transaction
from dejaq.testing.conformance.scene import OWNER, Scene

LINE = new_key_line("k1")
BODY = b"a secret of many words " * 40


def listed(*lines: str) -> ListedKeys:
    """A provider with these keys."""
    return ListedKeys(lambda: "\n".join(lines), source="the test")


async def begin(inner: MemoryStorage) -> tuple[Scene, Topic]:
    """A scene with an encrypted topic."""
    scene = await Scene.begin(lambda: EncryptedStorage(inner, listed(LINE)))
    return scene, await scene.new_topic("secret", encryption=Encryption.BODIES)


async def stored(inner: MemoryStorage, scene: Scene, topic: Topic, message_id: str) -> Message:
    """A message as the inner storage has it."""
    (found,) = await inner.get(topic, [message_id], scene.now)
    assert found is not None
    return found


async def test_equal_bodies_differ_in_the_store_and_no_text_of_them_is_there() -> None:
    inner = MemoryStorage(journal=True)
    scene, topic = await begin(inner)
    for message_id in ("a", "b"):
        await scene.put(message_id, body=BODY, topic=topic)
    first, second = [(await stored(inner, scene, topic, one)).body for one in ("a", "b")]
    assert first != second
    assert BODY[:8] not in first + second
    assert [(await scene.get(one, topic)).body for one in ("a", "b")] == [BODY, BODY]


async def test_a_body_that_was_given_to_another_message_is_refused_and_the_others_are_delivered() -> None:
    """S5: ciphertexts that are swapped between ids are refused."""
    inner = MemoryStorage()
    scene, topic = await begin(inner)
    for message_id in ("a", "b", "c"):
        await scene.put(message_id, body=message_id.encode() + BODY, topic=topic)
    other = (await stored(inner, scene, topic, "b")).body
    await apply_one(inner, Edit(topic, OWNER, Edits(["a"], bodies=[other])), scene.now, scene.context)
    lease = await scene.try_lease(topic=topic)
    assert lease is not None
    bodies = dict(zip(lease.ids(), lease.bodies, strict=True))
    assert bodies == {"a": UNREADABLE, "b": b"b" + BODY, "c": b"c" + BODY}
    with pytest.raises(DejaqError) as caught:
        opened(bodies["a"])
    assert caught.value.code is Code.BODY_UNREADABLE


@pytest.mark.parametrize(
    "damage", [lambda body: body[:-1], lambda body: body[:30] + b"\x00" + body[31:], lambda _: b""]
)
async def test_a_body_that_was_changed_in_the_store_is_refused(damage: object) -> None:
    inner = MemoryStorage()
    scene, topic = await begin(inner)
    await scene.put("a", body=BODY, topic=topic)
    assert callable(damage)
    changed = damage((await stored(inner, scene, topic, "a")).body)
    await apply_one(inner, Edit(topic, OWNER, Edits(["a"], bodies=[changed])), scene.now, scene.context)
    assert (await scene.get("a", topic)).body == UNREADABLE


async def test_a_plain_body_in_an_encrypted_topic_is_refused() -> None:
    """Somebody who can write the store cannot make consumers take a body of his own."""
    inner = MemoryStorage()
    scene, topic = await begin(inner)
    await apply_one(inner, Create(topic, scene.batch(["a"], delays=[0], bodies=[b"forged"])), scene.now, scene.context)
    assert (await scene.get("a", topic)).body == UNREADABLE


async def test_a_new_provider_key_opens_everything_after_a_rekey_without_the_old_one() -> None:
    inner = MemoryStorage()
    scene, topic = await begin(inner)
    await scene.put("a", body=BODY, topic=topic)
    await inner.close()
    both = EncryptedStorage(inner, listed(new := new_key_line("k2"), LINE))
    await both.open(scene.now)
    assert await both.rekey(topic, DIRECT_CALL, new_key=True) == "k2"
    scene.storage = both
    await scene.put("b", body=BODY, topic=topic)
    await inner.close()
    scene.storage = EncryptedStorage(inner, listed(new))
    await scene.storage.open(scene.now)
    assert [(await scene.get(one, topic)).body for one in ("a", "b")] == [BODY, BODY]


async def test_a_broker_learns_the_key_that_another_one_added() -> None:
    """Two storages around one store stand for two brokers of a cluster."""
    inner = MemoryStorage()
    scene, topic = await begin(inner)
    await scene.put("a", body=BODY, topic=topic)
    other = EncryptedStorage(inner, listed(LINE))
    await other.open(scene.now)
    await other.rekey(topic, DIRECT_CALL, new_key=True)
    await apply_one(other, Create(topic, scene.batch(["b"], delays=[0], bodies=[BODY])), scene.now, scene.context)
    assert (await scene.get("b", topic)).body == BODY


async def test_a_store_whose_key_is_missing_is_not_opened() -> None:
    inner = MemoryStorage()
    scene, _ = await begin(inner)
    await inner.close()
    for provider, said in ((listed(new_key_line("k9")), "no key 'k1'"), (listed(new_key_line("k1")), "not the one")):
        with pytest.raises(DejaqError, match=said) as caught:
            await EncryptedStorage(inner, provider).open(scene.now)
        assert caught.value.code is Code.KEY_UNAVAILABLE


async def test_the_keys_of_a_deleted_topic_are_gone_and_what_was_copied_before_cannot_be_read() -> None:
    """Crypto-shredding: the sealed body in an old copy is of no use without the topic's record."""
    inner = MemoryStorage()
    scene, topic = await begin(inner)
    await scene.put("a", body=BODY, topic=topic)
    copied = (await stored(inner, scene, topic, "a")).body
    await scene.storage.drop_topic(topic, scene.now, scene.context)
    assert not [one.keys for one in await inner.topics() if one.number == topic.number]
    again = await scene.new_topic("secret", encryption=Encryption.BODIES)
    await apply_one(inner, Create(again, scene.batch(["a"], delays=[0], bodies=[copied])), scene.now, scene.context)
    assert (await scene.get("a", again)).body == UNREADABLE


async def test_the_check_value_of_a_transaction_on_an_encrypted_log_confirms_no_guess_of_it() -> None:
    """It is stored to recognise a repeat; without a key, a guess of the text could be compared with it."""
    inner = MemoryStorage()
    scene = await Scene.begin(lambda: EncryptedStorage(inner, listed(LINE)))
    topic = await scene.new_topic("log", encryption=Encryption.BODIES, kind=TopicKind.LOG)
    storage = scene.storage
    assert isinstance(storage, EncryptedStorage)
    steps = [LogAppendStep(topic, Append(0, BODY, 1))]
    check, session = check_of(steps), scene.session()
    transaction = Transaction(session, 0, (), log_steps=steps, check=check)
    codes = [(await storage.transact(transaction, scene.now, DIRECT_CALL)).code for _ in range(2)]
    codes += [
        (await storage.logs.prepare(topic, "t", steps, scene.now + 9, scene.now, DIRECT_CALL)).code for _ in range(2)
    ]
    assert codes == [Code.OK, Code.ALREADY_EXISTS] * 2
    with pytest.raises(DejaqError) as taken:
        await inner.transact(transaction, scene.now, DIRECT_CALL)
    assert taken.value.code is Code.BATCH_NAME_TAKEN
    (prepared,) = await inner.logs.in_doubt(topic)
    assert prepared.check not in (0, check)


async def test_an_edit_of_settings_keeps_the_keys() -> None:
    inner = MemoryStorage()
    scene, topic = await begin(inner)
    await scene.put("a", body=BODY, topic=topic)
    await scene.storage.put_topic(replace(topic, settings=replace(topic.settings, client_rate=9)), scene.context)
    assert (await scene.get("a", topic)).body == BODY
    assert [one.keys for one in await scene.storage.topics()] == ["", ""]


class SlowKeys(ListedKeys):
    """A provider in another process: every answer lets other calls go first."""

    async def wrap(self, secret: bytes, context: bytes) -> WrappedKey:
        """The wrapped key, later."""
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().wrap(secret, context)


async def test_keys_that_are_replaced_at_the_same_time_are_all_kept() -> None:
    """No rekey and no change of settings overwrites a key that another call has just added."""
    inner = MemoryStorage()
    scene = await Scene.begin(lambda: EncryptedStorage(inner, SlowKeys(lambda: LINE, source="the test")))
    topic = await scene.new_topic("secret", encryption=Encryption.BODIES)
    storage = scene.storage
    assert isinstance(storage, EncryptedStorage)
    await scene.put("before", body=BODY, topic=topic)
    changed = replace(topic, settings=replace(topic.settings, max_attempts=7))
    await asyncio.gather(
        *(storage.rekey(topic, DIRECT_CALL, new_key=True) for _ in range(3)),
        storage.put_topic(changed, DIRECT_CALL),
        *(scene.put(f"m{number}", body=BODY, topic=topic) for number in range(5)),
        storage.rekey(topic, DIRECT_CALL, new_key=False),
    )
    (record,) = [one for one in await inner.topics() if one.number == topic.number]
    assert [key.number for key in read_keys(record.keys)] == [0, 1, 2, 3]
    assert record.settings.max_attempts == 7
    fresh = EncryptedStorage(inner, listed(LINE))
    await fresh.open(scene.now)
    scene.storage = fresh
    assert {(await scene.get(one, topic)).body for one in ("before", *(f"m{n}" for n in range(5)))} == {BODY}


async def test_a_key_that_is_added_while_the_topic_is_deleted_is_gone_with_it() -> None:
    inner = MemoryStorage()
    scene = await Scene.begin(lambda: EncryptedStorage(inner, SlowKeys(lambda: LINE, source="the test")))
    topic = await scene.new_topic("secret", encryption=Encryption.BODIES)
    storage = scene.storage
    assert isinstance(storage, EncryptedStorage)
    await asyncio.gather(
        storage.rekey(topic, DIRECT_CALL, new_key=True),
        storage.drop_topic(topic, scene.now, scene.context),
        return_exceptions=True,
    )
    assert [one for one in await inner.topics() if one.number == topic.number and one.keys] == []
