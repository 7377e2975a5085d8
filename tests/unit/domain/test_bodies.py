"""Bodies are returned as they were stored, and a body that would decompress to too much is refused before that."""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dejaq import limits
from dejaq.domain.bodies.packing import MARK, Compression, opened, opened_column, sealed, sealed_column, shown
from dejaq.errors import Code, LimitExceeded

bodies = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=20).map(MARK.__add__),
    st.binary(min_size=1, max_size=10).map(lambda part: part * 100),
)
compressions = st.sampled_from(Compression)


@given(body=bodies, compression=compressions)
def test_a_stored_body_is_returned_unchanged(body: bytes, compression: Compression) -> None:
    stored = sealed(body, compression)
    assert opened(stored) == body
    # A forwarder compresses the stored bytes again; then two decompressions return the body.
    assert opened(opened(sealed(stored, compression))) == body


@given(column=st.lists(bodies, max_size=10), compression=compressions)
def test_a_column_of_bodies_equals_single_bodies(column: list[bytes], compression: Compression) -> None:
    stored = sealed_column(column, compression)
    assert list(stored) == [sealed(body, compression) for body in column]
    assert list(opened_column(stored)) == column


def test_a_body_that_does_not_get_smaller_is_stored_uncompressed() -> None:
    for body in (b"", b"short", bytes(range(256))):
        assert sealed(body, Compression.ZSTD) == body
    assert len(sealed(b"x" * 10_000, Compression.ZSTD)) < 100


def framed(body: bytes) -> bytes:
    return MARK + b"\x01" + zstandard.ZstdCompressor().compress(body)


@pytest.mark.parametrize(
    "stored",
    [
        # A frame that declares a size above the limit, and one that declares no size.
        pytest.param(framed(bytes(limits.DECOMPRESSED_BYTES_MAX + 1)), id="large"),
        pytest.param(
            MARK + b"\x01" + zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10**8)), id="silent"
        ),
        # A frame that declares 1000 bytes and contains a hundred megabytes.
        pytest.param(
            MARK
            + b"\x01"
            + zstandard.ZstdCompressor().compress(bytes(1_000))[:7]
            + zstandard.ZstdCompressor().compress(bytes(10**8))[9:],
            id="wrong size",
        ),
        pytest.param(framed(b"x" * 1_000)[:-3], id="cut"),
        pytest.param(framed(b"x" * 1_000) + b"more", id="with more behind it"),
        pytest.param(framed(b"one") + framed(b"two")[8:], id="two frames"),
        pytest.param(MARK + b"\x01", id="empty"),
        pytest.param(MARK + b"\x01" + b"garbage", id="garbage"),
        pytest.param(MARK, id="mark alone"),
        pytest.param(MARK + b"\x02x", id="of a later release"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_refused_with_little_memory(stored: bytes) -> None:
    """S7: a decompression bomb causes a clear error and uses little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded) as refused:
            opened(stored)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.code is Code.BODY_UNREADABLE
    assert peak < 2 * 1024 * 1024
    assert shown(stored) == stored


@given(stored=st.binary(max_size=200).map((MARK + b"\x01").__add__))
def test_a_damaged_body_is_always_an_error(stored: bytes) -> None:
    try:
        opened(stored)
    except LimitExceeded as refused:
        assert refused.code is Code.BODY_UNREADABLE
