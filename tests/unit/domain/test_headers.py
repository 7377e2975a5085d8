import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.protocol.v1 import carrier_pb2

TEXT = st.text(st.characters(codec="utf-8"), max_size=200)
HEADERS = st.dictionaries(TEXT, TEXT, max_size=8)


def test_an_empty_map_takes_no_bytes() -> None:
    assert encode_headers({}) == b""
    assert decode_headers(b"") == {}


@given(HEADERS)
def test_encoded_headers_decode_to_the_same_map(headers: dict[str, str]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


@given(HEADERS)
def test_protobuf_decodes_our_encoding(headers: dict[str, str]) -> None:
    assert dict(carrier_pb2.Headers.FromString(encode_headers(headers)).entries) == headers


@given(HEADERS)
def test_we_decode_the_encoding_of_protobuf(headers: dict[str, str]) -> None:
    assert decode_headers(carrier_pb2.Headers(entries=headers).SerializeToString()) == headers


@given(HEADERS)
def test_equal_maps_have_equal_bytes(headers: dict[str, str]) -> None:
    backwards = dict(reversed(headers.items()))
    assert encode_headers(backwards) == encode_headers(headers)


@given(st.binary(max_size=64))
def test_any_bytes_decode_as_protobuf_does_or_are_refused(encoded: bytes) -> None:
    try:
        headers = decode_headers(encoded)
    except ValueError:
        return
    assert dict(carrier_pb2.Headers.FromString(encoded).entries) == headers


@given(HEADERS, st.data())
def test_truncated_headers_are_refused_or_end_between_entries(headers: dict[str, str], data: st.DataObject) -> None:
    encoded = encode_headers(headers)
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]
    try:
        kept = decode_headers(cut)
    except ValueError:
        return
    assert kept.items() <= headers.items()
    assert encode_headers(kept) == cut


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(b"\x0a", id="no length"),
        pytest.param(b"\x0a\x05\x0a\x01k", id="shorter than its length"),
        pytest.param(b"\x12\x00", id="another field"),
        pytest.param(b"\x08\x01", id="another wire type"),
        pytest.param(b"\x0a\x03\x1a\x01k", id="another field in an entry"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\x01", id="an endless length"),
        pytest.param(b"\x0a\x04\x0a\x02\xff\xfe", id="not UTF-8"),
    ],
)
def test_malformed_bytes_are_a_value_error(encoded: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder's whole contract is ValueError
        decode_headers(encoded)


def test_text_that_utf8_cannot_hold_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode_headers({"key": "\ud800"})
