from __future__ import annotations

import pytest

from dejaq.errors import InvalidArgument
from dejaq.sdk.address import parse_url


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("dejaq://127.0.0.1:7400", ["127.0.0.1:7400"]),
        ("dejaq://broker", ["broker:7400"]),
        ("broker:1234", ["broker:1234"]),
        ("dejaq://a:1,b:2/", ["a:1", "b:2"]),
        ("dejaq://a:1, b , a:1", ["a:1", "b:7400"]),
        ("dejaq://[::1]:7400,[::1]", ["[::1]:7400"]),
    ],
)
def test_an_address_names_one_broker_or_several(url: str, addresses: list[str]) -> None:
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    "url",
    ["", "dejaq://", "http://a:1", "dejaq://a:0", "dejaq://a:65536", "dejaq://a:x", "dejaq://a,,b", "::1"],
)
def test_what_is_no_address_is_refused_with_its_text(url: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_url(url)
