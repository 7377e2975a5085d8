"""Single calls to the brokers that the options name."""

from __future__ import annotations

import time
from typing import TypeVar

from google.protobuf.message import Message

from dejaq.errors import Indefinite, NoBroker, Unavailable
from dejaq.protocol.v1 import overseer_pb2 as overseer
from pyspark_dejaq.options import Options
from pyspark_dejaq.worker import connect

_RETRY_S = 0.2

Answer = TypeVar("Answer", bound=Message)


def ask(options: Options, method: str, request: Message, response: type[Answer]) -> Answer:
    """The answer of the first broker that gives one; raises NoBroker when the time of the options is over."""
    deadline = time.monotonic() + options.timeout
    while True:
        for url in options.urls:
            transport = connect(url)
            try:
                return transport.call(method, request, response, options.timeout / len(options.urls))
            except (Unavailable, Indefinite):
                continue
            finally:
                transport.close()
        if time.monotonic() > deadline:
            where = ", ".join(options.urls)
            raise NoBroker(
                f"no broker at {where} answered within {options.timeout:g} s; check dejaq.url and that it runs"
            )
        time.sleep(_RETRY_S)


def topic_of(options: Options, name: str) -> overseer.TopicInfo:
    """A topic with its settings."""
    request = overseer.TopicRequest(name=name, settings_only=True)
    return ask(options, "Overseer.DescribeTopic", request, overseer.TopicResponse).topic
