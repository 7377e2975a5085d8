"""U24: values become bodies, and bodies become values of the annotated type."""

from __future__ import annotations

import datetime
import enum
import threading
from dataclasses import dataclass, field
from typing import Any, NewType, TypedDict

import pydantic
import pytest

import dejaq
from dejaq.sdk.working.codecs import DECODERS_MAX, MsgspecCodec, codec_of


class Kind(enum.Enum):
    FAST = "fast"


@dataclass
class Item:
    name: str
    count: int = 1


@dataclass
class Order:
    id: int
    due: datetime.datetime
    kind: Kind = Kind.FAST
    items: list[Item] = field(default_factory=list)


@dataclass
class Unreadable:
    parts: list[threading.Thread | None]
    itself: Unreadable | None = None


class Address(TypedDict):
    street: str


class Customer(pydantic.BaseModel):
    name: str
    born: datetime.date
    address: dict[str, str] | None = None


DUE = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
VALUES: list[tuple[Any, Any]] = [
    (Order, Order(7, DUE, items=[Item("a", 2), Item("b")])),
    (dict[str, list[int]], {"a": [1, 2]}),
    (Address, {"street": "Main"}),
    (int | None, None),
    (Customer, Customer(name="Ada", born=datetime.date(1815, 12, 10), address={"street": "Main"})),
    (list[Customer], [Customer(name="Ada", born=datetime.date(1815, 12, 10))]),
    (object, {"any": [1, "x", None]}),
]


@pytest.mark.parametrize("codec", [dejaq.JSON, dejaq.MSGPACK], ids=repr)
@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_value_is_decoded_as_it_was_encoded(codec: dejaq.Codec, kind: Any, value: Any) -> None:
    assert codec.decode(codec.encode(value), kind) == value


@pytest.mark.parametrize("codec", [dejaq.JSON, dejaq.MSGPACK], ids=repr)
@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, "seven"), (Order, {"id": 7}), (Customer, {"name": "Ada", "born": "soon"}), (Customer, 3)],
)
def test_a_body_of_another_type_is_a_value_error(codec: dejaq.Codec, kind: Any, value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        codec.decode(codec.encode(value), kind)


@pytest.mark.parametrize("codec", [dejaq.JSON, dejaq.MSGPACK], ids=repr)
@pytest.mark.parametrize("body", [b"", b"{", b"\xc1", b"\xff" * 10])
def test_a_body_of_another_format_is_a_value_error(codec: dejaq.Codec, body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        codec.decode(body, Order)


def test_a_value_that_cannot_be_encoded_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="cannot be encoded"):
        dejaq.JSON.encode(object())


def test_no_more_decoders_are_kept_than_the_limit() -> None:
    made = MsgspecCodec("test", dejaq.JSON.encode, lambda _kind: dejaq.JSON._make_decoder(int))  # type: ignore[attr-defined]
    new_type: Any = NewType
    for _ in range(DECODERS_MAX + 10):
        made.decode(b"1", new_type("Number", int))
    assert len(made._decoders) <= DECODERS_MAX


@pytest.mark.parametrize("kind", [threading.Thread, list[threading.Thread], Unreadable])
def test_a_type_that_no_body_can_have_is_a_type_error(kind: Any) -> None:
    """U24: otherwise every body would be refused and moved to the dead letters."""
    with pytest.raises(TypeError, match="Thread cannot be decoded"):
        dejaq.JSON.decode(b"null", kind)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(dejaq.InvalidArgument, match="json, msgpack"):
        codec_of("yaml")  # type: ignore[arg-type]
