"""References and parts of large bodies: a wrong body is refused, and no part decompresses to more than its limit."""

from __future__ import annotations

import os
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dejaq import limits
from dejaq.domain.bodies.large import (
    PART_BYTES,
    REFERENCE_BYTES,
    Declared,
    Reference,
    Unsealing,
    any_reference,
    content_of,
    declare,
    is_reference,
    reference_of,
    sealed_parts,
    size_of,
)
from dejaq.domain.bodies.packing import MARK, Compression, opened, sealed
from dejaq.errors import Code, DejaqError

BODY = os.urandom(PART_BYTES) + b"text " * (PART_BYTES // 4)


def refused(work: object) -> Code:
    with pytest.raises(DejaqError) as caught:
        work()  # type: ignore[operator]
    return caught.value.code


@given(
    size=st.integers(1, 2**63),
    stored=st.integers(1, 2**63),
    digest=st.binary(min_size=32, max_size=32),
    n=st.integers(0, 2**63),
)
def test_a_reference_is_parsed_as_it_was_written(size: int, stored: int, digest: bytes, n: int) -> None:
    reference = Reference(size, stored, digest, n)
    packed = reference.pack()
    assert len(packed) == REFERENCE_BYTES
    assert reference_of(packed) == reference
    assert size_of(packed) == size
    assert content_of(packed) == content_of(Reference(size, stored, digest, n + 1).pack())
    assert any_reference([b"", packed])


@given(st.binary(max_size=100))
def test_no_body_of_a_user_looks_like_a_reference(body: bytes) -> None:
    reference = Reference(1, 1, bytes(32), 1).pack()
    for given_body in (body, reference, reference[:-1] + b"!", MARK + body):
        stored = sealed(given_body)
        assert not is_reference(stored)
        assert opened(stored) == given_body
        assert content_of(stored) == stored


@pytest.mark.parametrize("compression", list(Compression))
def test_joined_parts_are_the_body(compression: Compression) -> None:
    parts = list(sealed_parts(BODY, compression))
    assert len(parts) == 3
    opening = Unsealing(Reference(**_fields(declare(parts, len(BODY))), number=1))
    assert b"".join(map(opening.open, parts)) == BODY
    opening.finish()


def _fields(declared: Declared) -> dict[str, Any]:
    return {"size": declared.size, "stored": declared.stored, "digest": declared.digest}


def test_parts_of_another_body_are_refused() -> None:
    parts = list(sealed_parts(BODY))
    reference = Reference(**_fields(declare(parts, len(BODY))), number=1)

    def read(some: list[bytes]) -> None:
        opening = Unsealing(reference)
        for part in some:
            opening.open(part)
        opening.finish()

    read(parts)
    changed = bytes([parts[1][0] ^ 1]) + parts[1][1:]
    for wrong in (parts[:2], [*parts, b"more"], [parts[0], changed, parts[2]], [parts[1], parts[0], parts[2]]):
        assert refused(lambda: read(wrong)) is Code.BODY_UNREADABLE


def test_a_part_that_decompresses_to_more_than_a_part_is_refused() -> None:
    """S7: a decompression bomb in a part is found by its declared size, before it is decompressed."""
    bomb = MARK + b"\x01" + zstandard.ZstdCompressor().compress(bytes(PART_BYTES + 1))
    assert len(bomb) < 1_000
    opening = Unsealing(Reference(64 * PART_BYTES, 64 * len(bomb), bytes(32), 1))
    assert refused(lambda: opening.open(bomb)) is Code.BODY_UNREADABLE


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        (Declared(limits.LARGE_BODY_BYTES_MAX + 1, 1, bytes(32)), Code.BODY_TOO_LARGE),
        (Declared(0, 1, bytes(32)), Code.INVALID_ARGUMENT),
        (Declared(10, 0, bytes(32)), Code.INVALID_ARGUMENT),
        (Declared(10, 30, bytes(32)), Code.INVALID_ARGUMENT),
        (Declared(10, 10, bytes(31)), Code.INVALID_ARGUMENT),
    ],
)
def test_an_impossible_upload_is_refused(declared: Declared, code: Code) -> None:
    assert refused(lambda: declared.check(limits.LARGE_BODY_BYTES_MAX)) is code
