"""The calls of the protocol by name, with the types of their requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dejaq.broker.services import Services
from dejaq.protocol.v1 import access_pb2, carrier_pb2, cron_pb2, log_pb2, overseer_pb2, rights_pb2

_SERVICES = (
    carrier_pb2.DESCRIPTOR.services_by_name["Carrier"],
    overseer_pb2.DESCRIPTOR.services_by_name["Overseer"],
    cron_pb2.DESCRIPTOR.services_by_name["Cron"],
    rights_pb2.DESCRIPTOR.services_by_name["Rights"],
    log_pb2.DESCRIPTOR.services_by_name["Log"],
    access_pb2.DESCRIPTOR.services_by_name["Access"],
)


class Form(Enum):
    """How a call is answered."""

    UNARY = "one request, one response"
    STREAM = "one request, many responses"
    UPLOAD = "many requests, one response"


@dataclass(frozen=True, slots=True)
class Method:
    """One call."""

    name: str
    form: Form
    request: type[Message]


def methods_of(services: Services) -> dict[str, Method]:
    """Every call that `services` answers; sessions are not calls."""
    return {method.name: method for method in _declared() if method.name in _served(services)}


def _declared() -> Iterator[Method]:
    for service in _SERVICES:
        for method in service.methods:
            form = Form.UPLOAD if method.client_streaming else Form.STREAM if method.server_streaming else Form.UNARY
            yield Method(f"{service.name}.{method.name}", form, GetMessageClass(method.input_type))


def _served(services: Services) -> set[str]:
    return {*services.unary, *services.streams, *services.uploads}
