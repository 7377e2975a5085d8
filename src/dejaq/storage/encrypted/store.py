"""A storage that encrypts bodies, and on request headers, of topics with the setting `encryption`, around another one.

Most storages see only sealed bodies, so they are sealed wherever they are kept or copied: in logs, in large and shared
bodies, in dead-letter topics, in snapshots and in backups. The journal's check values of bodies are those of sealed
bodies. A storage that seals what it writes by itself (`storage.value_ciphers`) gets the keys and plain bodies instead;
only large bodies and batches of logs are sealed for it. Topics without encryption are passed through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.bodies.body_block import BodySlices
from dejaq.domain.changes import Change, Create, Edit, Reject
from dejaq.domain.context import CallContext
from dejaq.domain.headers import encode_headers
from dejaq.domain.message import Message
from dejaq.domain.topic import Encryption, Topic, TopicStage
from dejaq.errors import Code, DejaqError, Refused, error_of
from dejaq.storage.base import Bodies, Capabilities, Filter, Holder, Page, Snapshot, Storage
from dejaq.storage.encrypted.header_cipher import is_sealed
from dejaq.storage.encrypted.keyring import Keyring
from dejaq.storage.encrypted.large_bodies import EncryptedBodies
from dejaq.storage.encrypted.logs import EncryptedLogs, encrypted_logs
from dejaq.storage.encrypted.providers.base import KeyProvider
from dejaq.storage.encrypted.sealing import with_bodies
from dejaq.storage.encrypted.snapshot import OpeningSnapshot
from dejaq.storage.log.base import KeepsLogs
from dejaq.storage.transactions import Step, Transaction, Verdict
from dejaq.storage.value_ciphers import SealsValues

# How often the rows of a batch are decided again whose ids are taken: their messages may come and go meanwhile.
TRIES = 3
AnyChange = TypeVar("AnyChange", bound=Change)


class EncryptedStorage:
    """Implements `storage.base.Storage` on another storage."""

    def __init__(self, inner: Storage, provider: KeyProvider) -> None:
        self._inner = inner
        self._keyring = Keyring(inner, provider)
        # Whether the inner storage seals what it writes; large bodies and batches of logs are sealed here all the same.
        self._seals_itself = isinstance(inner, SealsValues)
        if isinstance(inner, SealsValues):
            inner.value_ciphers = self._keyring
        self.bodies: Bodies = EncryptedBodies(inner, self._keyring, self._encrypts)

    @property
    def inner(self) -> Storage:
        """The storage that has the messages."""
        return self._inner

    @property
    def logs(self) -> EncryptedLogs:
        """Those of the inner storage, with sealed batches. AttributeError where it has none."""
        if not isinstance(self._inner, KeepsLogs):
            raise AttributeError("the inner storage keeps no logs")
        return encrypted_logs(self._inner.logs, self._keyring, self._encrypts)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the inner storage, and encryption."""
        return replace(self._inner.capabilities, encrypts=True)

    @property
    def identity(self) -> str:
        """The identity of the inner storage."""
        return self._inner.identity

    def stats(self) -> Mapping[str, float]:
        """The figures of the inner storage."""
        return self._inner.stats()

    def journal_stats(self) -> Mapping[str, float]:
        """The figures of the inner storage's journal."""
        return self._inner.journal_stats()

    async def open(self, now: int) -> None:
        """Open the inner storage, and unwrap the keys of all encrypted topics; raises KEY_UNAVAILABLE."""
        await self._keyring.check()
        await self._inner.open(now)
        try:
            await self._keyring.open()
        except DejaqError:
            await self._inner.close()
            raise

    async def close(self) -> None:
        """Close the inner storage."""
        await self._inner.close()

    @property
    def failure(self) -> str | None:
        """The failure of the inner storage."""
        return self._inner.failure

    @property
    def corrupt(self) -> bool:
        """Whether the inner storage is damaged."""
        return self._inner.corrupt

    async def recover(self, now: int) -> None:
        """Open the inner storage again."""
        await self._inner.recover(now)

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, without its keys."""
        return [replace(topic, keys="") if topic.keys else topic for topic in await self._keyring.load()]

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        """Write the record of a topic, with its keys."""
        await (self._keyring if self._encrypts(topic) else self._inner).put_topic(topic, context)

    async def next_topic_number(self) -> int:
        """A number of the inner storage."""
        return await self._inner.next_topic_number()

    async def drop_topic(self, topic: Topic, now: int, context: CallContext) -> None:
        """Remove the keys of a topic permanently, and then its messages."""
        if self._encrypts(topic):
            await self._keyring.remove(topic.in_state(TopicStage.DELETING), context)
        await self._inner.drop_topic(topic, now, context)
        self._keyring.dropped(topic)

    async def rekey(self, topic: Topic, context: CallContext, *, new_key: bool) -> str:
        """Protect the keys of an encrypted topic with the provider's current key, which is named in the answer.

        With `new_key` the topic first gets another key, for all bodies that are sealed from now on.
        """
        return await self._keyring.rekey(topic, context, new_key=new_key)

    # Changes

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        """Apply each change with sealed bodies."""
        if not any(self._encrypts(change.topic) for change in changes):
            return await self._inner.apply(changes, now, context)
        answers = await self._inner.apply([await self._sealed(change) for change in changes], now, context)
        for change, answer in zip(changes, answers, strict=True):
            if isinstance(change, Create) and self._seals_bodies(change.topic) and isinstance(answer, Outcomes):
                await self._compare(change, answer, now, context)
        return answers

    async def _sealed(self, change: AnyChange) -> AnyChange:
        """The change that the inner storage gets."""
        if not self._encrypts(change.topic):
            return change
        if isinstance(change, Create):
            return replace(change, batch=(await self._keyring.ciphers_of(change.topic)).batch(change.batch))
        if isinstance(change, Edit):
            return replace(change, edits=(await self._keyring.ciphers_of(change.topic)).edits(change.edits))
        if isinstance(change, Reject):
            headers = (await self._keyring.ciphers_of(change.topic)).headers
            return change if headers is None else replace(change, cause=headers.cause(change.cause))
        return change

    async def _compare(self, change: Create, outcomes: Outcomes, now: int, context: CallContext) -> None:
        """Decide rows again whose id is taken: equal bodies differ when they are sealed."""
        for _ in range(TRIES):
            taken = [row for row, code in outcomes.codes.items() if code is Code.ID_TAKEN]
            again = await self._stored_again(change, taken, now)
            if not again:
                return
            ciphers = await self._keyring.ciphers_of(change.topic)
            creates = [Create(change.topic, ciphers.row(change.batch, row, stored)) for row, stored in again.items()]
            for row, answer in zip(again, await self._inner.apply(creates, now, context), strict=True):
                if isinstance(answer, Refused):
                    return
                del outcomes.codes[row]
                if answer[0] is not Code.OK:
                    outcomes.codes[row] = answer[0]

    async def _stored_again(self, change: Create, rows: Iterable[int], now: int) -> dict[int, bytes]:
        """The sealed bodies for rows to decide again: that of the message with the id, if its body is the same.

        When the message with the id is gone meanwhile, the row has a sealed body of its own.
        """
        batch = change.batch
        listed = [row for row in rows if batch.ids is not None and row not in batch.refused]
        if not listed:
            return {}
        ciphers = await self._keyring.ciphers_of(change.topic)
        found = await self._inner.get(change.topic, [batch.id_of(row) for row in listed], now)
        again = {}
        for row, message in zip(listed, found, strict=True):
            body = ciphers.large.inner_body(batch.bodies[row]) if batch.large else batch.bodies[row]
            if message is None:
                again[row] = ciphers.bodies.seal([batch.id_of(row)], [body], large=batch.large)[0]
            elif await self._keyring.same(message.id, message.body, body):
                again[row] = message.body
        return again

    # Consumer

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        """Lease, and open the bodies."""
        lease = await self._inner.lease(topic, request, now, context)
        return lease if lease is None or not self._encrypts(topic) else await self._opened_lease(topic, lease)

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """The answer of the inner storage."""
        return await self._inner.next_ts(topic, buckets, now)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Load in the inner storage."""
        await self._inner.load(topic, buckets, until)

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """The live leases, with opened bodies."""
        leases = await self._inner.leases_of(topic, consumer, now)
        return [await self._opened_lease(topic, lease) for lease in leases] if self._encrypts(topic) else leases

    # Transactions

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        """Apply the steps with sealed bodies."""
        topics = [step.topic for step in (*transaction.steps, *transaction.log_steps)]
        sealing = next(filter(self._encrypts, topics), None)
        if sealing is None:
            return await self._inner.transact(transaction, now, context)
        steps: list[Step] = [await self._sealed(step) for step in transaction.steps]
        log_steps = await self.logs.sealed_steps(transaction.log_steps) if transaction.log_steps else ()
        check = (await self._keyring.ciphers_of(sealing)).large.check_value(transaction.check)
        sealed = replace(transaction, steps=steps, log_steps=log_steps, check=check)
        verdict = await self._inner.transact(sealed, now, context)
        if verdict.code is not Code.ID_TAKEN or self._seals_itself:
            return verdict
        again = list(steps)
        for place, (step, sent) in enumerate(zip(transaction.steps, steps, strict=True)):
            if isinstance(step, Create) and isinstance(sent, Create) and self._encrypts(step.topic):
                repeats = await self._stored_again(step, range(len(step.batch)), now)
                if repeats:
                    again[place] = replace(sent, batch=with_bodies(sent.batch, repeats))
        return verdict if again == steps else await self._inner.transact(replace(sealed, steps=again), now, context)

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The journal of the inner storage."""
        return await self._inner.journal(after, bytes_max)

    async def trim_journal(self, up_to: int) -> None:
        """Trim the journal of the inner storage."""
        await self._inner.trim_journal(up_to)

    # Queries

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages, with opened bodies."""
        found = await self._inner.get(topic, ids, now)
        if not self._encrypts(topic):
            return found
        opened = iter(await self._opened_messages(topic, [one for one in found if one is not None]))
        return [None if one is None else next(opened) for one in found]

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """A body by its digest; None where bodies are sealed here, so the store does not know their content."""
        return None if self._seals_bodies(topic) else await self._inner.find_body(topic, digest)

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """The answer of the inner storage."""
        return await self._inner.holders(topic, ids, now)

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """The answer of the inner storage."""
        return await self._inner.count(topic, await self._stored_filter(topic, where), now)

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """The answer of the inner storage."""
        return await self._inner.histogram(topic, await self._stored_filter(topic, where), step, now)

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """A page, with opened bodies."""
        page = await self._inner.browse(topic, await self._stored_filter(topic, where), cursor, limit, now)
        if not self._encrypts(topic):
            return page
        return replace(page, messages=await self._opened_messages(topic, page.messages))

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The answer of the inner storage."""
        return await self._inner.oldest(topic, now, count)

    async def snapshot(self, topic: Topic, now: int) -> Snapshot:
        """A view of the topic, with opened bodies."""
        snapshot = await self._inner.snapshot(topic, now)
        if not self._encrypts(topic):
            return snapshot
        return OpeningSnapshot(snapshot, topic, self._keyring, self._stored_filter)

    def _encrypts(self, topic: Topic) -> bool:
        return topic.settings.encryption is not Encryption.NONE

    def _seals_bodies(self, topic: Topic) -> bool:
        """Whether the inner storage gets sealed bodies of a topic."""
        return not self._seals_itself and self._encrypts(topic)

    async def _stored_filter(self, topic: Topic, where: Filter) -> Filter:
        """The filter for what is stored: with sealed values of headers.

        Raises INVALID_ARGUMENT in a topic with dead letters of others, which are sealed with other keys.
        """
        if not where.headers or not self._encrypts(topic):
            return where
        headers = (await self._keyring.ciphers_of(topic)).headers
        if headers is None:
            return where
        if self._keyring.takes_dead_letters(topic) and any(is_sealed(name) for name, _ in where.headers):
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"{topic.name!r} has dead letters whose headers are encrypted with the keys of other topics: only "
                "headers that begin with dejaq-dead- can be in a filter",
            )
        return replace(where, headers=tuple((name, headers.value(name, text)) for name, text in where.headers))

    async def _opened_lease(self, topic: Topic, lease: LeaseSet) -> LeaseSet:
        if self._seals_itself and isinstance(lease.bodies, BodySlices):
            # Blocks are copied to the consumer without being decoded, and have no references to large bodies.
            return lease
        bodies = await self._keyring.opened(topic, lease.ids(), lease.bodies, lease.headers)
        return replace(lease, bodies=bodies, headers=await self._keyring.opened_rows(topic, lease.headers))

    async def _opened_messages(self, topic: Topic, messages: Sequence[Message]) -> list[Message]:
        if not messages:
            return []
        ids, headers = [one.id for one in messages], [encode_headers(one.headers) for one in messages]
        opened = await self._keyring.opened(topic, ids, [one.body for one in messages], headers)
        shown = await self._keyring.opened_headers(topic, [one.headers for one in messages])
        return [
            replace(one, body=body, headers=texts) for one, body, texts in zip(messages, opened, shown, strict=True)
        ]
