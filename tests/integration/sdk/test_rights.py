"""The whole SDK with callers that have rights: their own topics by their short names, masked messages, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

import dejaq
from dejaq.broker import Broker
from dejaq.broker.context import begin_call
from dejaq.broker.inprocess import InProcessTransport
from dejaq.domain.context import CallContext, Principal, PrincipalKind
from dejaq.testing.waiting import patient


@dataclass
class Callers:
    """A broker with rights, to which each client connects as a user."""

    broker: Broker

    @asynccontextmanager
    async def client(self, user: str) -> AsyncIterator[dejaq.Client]:
        async with dejaq.connect(_As(self.broker, user), deadline=patient(5)) as client:
            yield client


@dataclass
class _As:
    broker: Broker
    user: str

    def transport(self) -> InProcessTransport:
        principal = Principal(f"user:corp/{self.user}", PrincipalKind.USER, user=self.user)

        def begin(peer: str, seconds: float | None) -> CallContext:
            begun = begin_call("ipv4:192.0.2.1:5000", seconds)
            return CallContext(begun.request_id, begun.peer, principal, begun.deadline, begun.endpoint)

        transport = InProcessTransport(self.broker.central.services, begin)
        self.broker.central._transports.append(transport)
        return transport


@pytest.fixture
async def callers() -> AsyncIterator[Callers]:
    async with Broker(admins="user:root", drain_ms=0) as broker:
        yield Callers(broker)


async def test_a_user_works_with_its_own_topic_by_the_short_name(callers: Callers) -> None:
    async with callers.client("alice") as alice, callers.client("bob") as bob:
        made = await alice.create_topic("~/mail", buckets=2, max_attempts=3)
        assert (made.name, made.creator) == ("~alice/mail", "user:alice")
        async with alice.producer("~/mail") as producer, alice.consumer("~/mail", name="c") as consumer:
            await producer.send(b"one", id="m1")
            async with asyncio.timeout(patient(10)):
                lease = await anext(consumer)
                await lease.reject("no use")
            letters = alice.dead_letters("~/mail")
            assert await letters.where() == "~/mail.dead"
            assert await letters.count() == 1
            assert (await letters.redrive()).done == 1
            async with asyncio.timeout(patient(10)):
                await (await anext(consumer)).delete()
        async with alice.transaction() as transaction:
            transaction.send("~/mail", b"two", id="m2")
        assert [topic.name for topic in await alice.topics()] == ["~alice/mail", "~alice/mail.dead"]
        assert await bob.topics() == []
        for refused in (bob.count("~alice/mail"), bob.get("~alice/mail", "m2"), bob.delete_topic("~alice/mail")):
            with pytest.raises(dejaq.PermissionDenied):
                await refused


async def test_a_consumer_of_another_user_answers_a_request(callers: Callers) -> None:
    """The request names the topic of replies in full, which is the same to both."""
    async with callers.client("alice") as alice, callers.client("bob") as bob:
        await alice.create_topic("~/ask", buckets=1)
        await alice.rights().allow("user:bob", ["consume"], "~/ask")
        await alice.rights().allow("user:bob", ["produce"], "~/ask.replies")
        async with alice.producer("~/ask") as producer, bob.consumer("~alice/ask") as consumer:
            asking = asyncio.create_task(producer.request(b"question", timeout=patient(10)))
            async with asyncio.timeout(patient(10)):
                lease = await anext(consumer)
                assert lease.headers["reply-to"] == "~alice/ask.replies"
                await lease.delete(reply=b"answer")
                assert (await asking).body == b"answer"


async def test_a_masked_message_says_so_and_its_body_cannot_be_read(callers: Callers) -> None:
    async with callers.client("alice") as alice, callers.client("bob") as bob:
        await alice.create_topic("~/mail", buckets=1)
        async with alice.producer("~/mail") as producer:
            await producer.send(b"a secret", id="m", delay=60, headers={"kind": "letter"})
        await alice.rights().allow("user:bob", ["inspect"], "~/mail")
        (seen,) = [message async for page in bob.browse("~alice/mail") for message in page]
        assert (seen.body, seen.masked, seen.headers) == (b"", True, {"kind": "letter"})
        with pytest.raises(dejaq.PermissionDenied):
            bob.body_parts(seen)
        (own,) = [message async for page in alice.browse("~/mail") for message in page]
        assert (own.body, own.masked) == (b"a secret", False)


async def test_a_producer_and_a_consumer_are_refused_and_end_when_their_rule_goes(callers: Callers) -> None:
    async with callers.client("root") as root, callers.client("alice") as alice:
        await root.create_topic("mail", buckets=1)
        with pytest.raises(dejaq.PermissionDenied):
            async with alice.producer("mail"):
                pass
        rule = await root.rights().allow("user:alice", ["produce", "consume"], "mail")
        async with alice.producer("mail") as producer, alice.consumer("mail") as consumer:
            await producer.send(b"x")
            async with asyncio.timeout(patient(10)):
                await (await anext(consumer)).delete()
            await root.rights().remove(rule.id)
            with pytest.raises(dejaq.PermissionDenied):
                async with asyncio.timeout(patient(10)):
                    await anext(consumer)
            with pytest.raises(dejaq.PermissionDenied):
                await producer.send(b"y")


async def test_a_caller_over_its_quota_is_refused(callers: Callers) -> None:
    async with callers.client("root") as root, callers.client("alice") as alice:
        made = await root.rights().set_quota("user:alice", topics=1)
        assert (made.principal, made.topics, made.topics_used) == ("user:alice", 1, 0)
        await alice.create_topic("~/one")
        with pytest.raises(dejaq.LimitExceeded) as refused:
            await alice.create_topic("~/two")
        assert refused.value.code is dejaq.Code.QUOTA_EXCEEDED
        (mine,) = await alice.rights().quotas()
        assert mine.topics_used == 1
