from __future__ import annotations

import pytest

from dejaq.errors import InvalidArgument
from dejaq.sdk.session.address import Carriage, Target, parse_url


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
    assert parse_url(url) == Target(Carriage.WEBSOCKET, tuple(addresses))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("dejaq://a:1,b", Target(Carriage.WEBSOCKET, ("a:1", "b:7400"))),
        ("dejaq+grpc://a:1", Target(Carriage.GRPC, ("a:1",))),
        ("dejaq+unix:///run/dejaq.sock", Target(Carriage.WEBSOCKET, ("unix:/run/dejaq.sock",))),
    ],
)
def test_the_scheme_names_the_protocol_below(url: str, target: Target) -> None:
    assert parse_url(url) == target
    assert [parse_url(one).addresses for one in target.urls] == [(address,) for address in target.addresses]
    assert {parse_url(one).carriage for one in target.urls} == {target.carriage}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "dejaq://",
        "http://a:1",
        "dejaq+ws://a:1",
        "dejaq://a:0",
        "dejaq://a:65536",
        "dejaq://a:x",
        "dejaq://a,,b",
        "::1",
        "dejaq+unix://run/x",
        "dejaq+unix://",
    ],
)
def test_an_invalid_address_is_refused_with_its_text(url: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_url(url)
