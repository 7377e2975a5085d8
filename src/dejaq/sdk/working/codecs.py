"""Codecs encode values as bodies, and decode bodies to values of a type.

The types are those of msgspec: plain values, dataclasses, `msgspec.Struct`, TypedDict, enums, dates, UUIDs, Decimals,
and lists, maps and unions of them; and Pydantic models, which validate themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec
from msgspec import inspect

from dejaq.errors import Code, error_of

Value = TypeVar("Value")
CodecName = Literal["json", "msgpack"]
# How many types have a cached decoder.
DECODERS_MAX = 1_000


class Codec(Protocol):
    """Encodes values as bodies and decodes bodies."""

    def encode(self, value: object) -> bytes:
        """Encode a value; raises TypeError or ValueError for a value that cannot be encoded."""

    def decode(self, body: bytes, kind: type[Value]) -> Value:
        """Decode a body to a value of this type.

        Raises ValueError when the body is no such value, and TypeError for an unknown type.
        """


class _Decoder(Protocol):
    def decode(self, body: bytes, /) -> Any:
        """Decode a body to a value of the decoder's type."""


class MsgspecCodec:
    """A codec of one of msgspec's formats."""

    def __init__(self, name: str, encode: Callable[[object], bytes], decoder: Callable[[Any], _Decoder]) -> None:
        self.name = name
        self._encode = encode
        self._make_decoder = decoder
        self._decoders: dict[Any, _Decoder] = {}

    def encode(self, value: object) -> bytes:
        """Encode a value; raises TypeError or ValueError for a value that cannot be encoded."""
        return self._encode(value)

    def decode(self, body: bytes, kind: type[Value]) -> Value:
        """Decode a body to a value of this type; raises ValueError when the body is no such value."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            if len(self._decoders) >= DECODERS_MAX:
                self._decoders.clear()
            decoder = self._decoders[kind] = self._make_decoder(_checked(Any if kind is object else kind))
        return cast(Value, decoder.decode(body))

    def __repr__(self) -> str:
        return f"<codec {self.name}>"


def codec_of(codec: Codec | CodecName) -> Codec:
    """The codec of this name, or the given codec object; raises INVALID_ARGUMENT for an unknown name."""
    if not isinstance(codec, str):
        return codec
    try:
        return CODECS[codec]
    except KeyError:
        raise error_of(Code.INVALID_ARGUMENT, f"a codec is one of {', '.join(CODECS)}, not {codec!r}") from None


def _checked(kind: Any) -> Any:
    """Return the type; raises TypeError when no body can be a value of it."""
    todo: list[object] = [inspect.type_info(kind)]
    seen: set[int] = set()
    while todo:
        info = todo.pop()
        if isinstance(info, tuple):
            todo.extend(info)
        elif isinstance(info, inspect.Type | inspect.Field) and id(info) not in seen:
            seen.add(id(info))
            if isinstance(info, inspect.CustomType) and not hasattr(info.cls, "model_validate"):
                raise TypeError(f"a {info.cls.__qualname__} cannot be decoded")
            todo.extend(msgspec.structs.asdict(info).values())
    return kind


def _to_plain(value: Any) -> Any:
    """The plain values of a Pydantic model."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__qualname__} cannot be encoded")
    return dump(mode="json")


def _from_plain(kind: Any, value: Any) -> Any:
    """A Pydantic model from plain values."""
    return kind.model_validate(value)


JSON: Codec = MsgspecCodec(
    "json",
    msgspec.json.Encoder(enc_hook=_to_plain).encode,
    lambda kind: msgspec.json.Decoder(kind, dec_hook=_from_plain),
)
MSGPACK: Codec = MsgspecCodec(
    "msgpack",
    msgspec.msgpack.Encoder(enc_hook=_to_plain).encode,
    lambda kind: msgspec.msgpack.Decoder(kind, dec_hook=_from_plain),
)
CODECS: dict[str, Codec] = {"json": JSON, "msgpack": MSGPACK}
