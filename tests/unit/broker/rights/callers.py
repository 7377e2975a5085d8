"""Callers with rights, and calls to a broker as they arrive from another machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import Message

from dejaq.broker import Broker
from dejaq.broker.services import Services
from dejaq.domain.context import CallContext, Principal, PrincipalKind
from dejaq.errors import Code, DejaqError
from dejaq.protocol.spliced import whole
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import rights_pb2 as rights


def user(name: str, *groups: str) -> Principal:
    return Principal(f"user:corp/{name}", PrincipalKind.USER, user=name, groups=frozenset(groups))


ROOT = user("root")


def called_by(principal: Principal) -> CallContext:
    return CallContext("test", "ipv4:192.0.2.1:5000", principal)


def services_of(broker: Broker) -> Services:
    services: Services = broker._central.services
    return services


async def call(broker: Broker, who: Principal, method: str, request: Message) -> Any:
    """Call a method of any form; the last answer of a stream."""
    services, context = services_of(broker), called_by(who)
    if method in services.streams:
        answers = [answer async for answer in services.stream(context, method, request)]
        return answers[-1] if answers else None
    if method in services.uploads:

        async def frames() -> AsyncIterator[Message]:
            yield request

        return await services.upload(context, method, frames())
    return await services.call(context, method, request)


async def code_of(broker: Broker, who: Principal, method: str, request: Message) -> Code:
    """OK, or the code of the refusal."""
    try:
        await call(broker, who, method, request)
    except DejaqError as error:
        return error.code
    return Code.OK


async def session(broker: Broker, who: Principal, *frames: carrier.ClientFrame) -> list[carrier.BrokerFrame]:
    """The answers to the frames of one session, which ends after them."""
    answers: list[carrier.BrokerFrame] = []

    async def sent() -> AsyncIterator[carrier.ClientFrame]:
        for frame in frames:
            yield frame

    async def take(frame: Any) -> None:
        answers.append(whole(frame))

    await services_of(broker).session(called_by(who), sent(), take)
    return answers


class OfferedFrames:
    """Frames as a WebSocket has them: bytes, each sent when the frame before is answered, and offered at once."""

    def __init__(self, *frames: bytes) -> None:
        self._frames = frames
        self._answered = asyncio.Event()
        self.answers: list[carrier.BrokerFrame] = []
        # How many frames were begun without a task.
        self.taken = 0

    def offer_to(self, take: Callable[[bytes], bool]) -> None:
        """Offer frames from now on."""
        self._take = take

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for frame in self._frames:
            self._answered.clear()
            if self._take(frame):
                self.taken += 1
            else:
                yield frame
            await asyncio.wait_for(self._answered.wait(), 10)

    async def answer(self, frame: Any) -> None:
        """Take an answer."""
        self.answers.append(whole(frame))
        self._answered.set()


async def make_topic(broker: Broker, who: Principal, name: str, **settings: Any) -> None:
    request = overseer.CreateTopicRequest(name=name, settings=overseer.TopicSettings(buckets=1, **settings))
    await call(broker, who, "Overseer.CreateTopic", request)


async def allow(
    broker: Broker, principal: str, operations: str, topic: str, *, group: str = "", effect: str = "allow"
) -> rights.RightsRule:
    """Have the administrator add a rule."""
    rule = rights.RightsRule(
        effect=effect, principal=principal, operations=operations.split(","), topic=topic, group=group
    )
    answer = await call(broker, ROOT, "Rights.Put", rights.PutRuleRequest(rule=rule))
    kept: rights.RightsRule = answer.rule
    return kept
