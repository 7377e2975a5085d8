"""S9, S11: other sites and other hosts are refused, a read-only gateway changes nothing, and clients have a rate."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

import dejaq
from dejaq.errors import Code, DejaqError
from dejaq.web.api.operation import ApiRight
from dejaq.web.api.table import operations
from dejaq.web.rates import ADDRESSES_MAX, RateLimiter
from dejaq.web.serve import bind
from tests.integration.web.serving import serving

TOPICS = "/api/v1/topics"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7480", "127.0.0.1.evil.example", ""])
async def test_a_request_for_another_host_is_refused(web: httpx.AsyncClient, host: str) -> None:
    """A name that another site lets point to this machine gives its pages no access."""
    answer = await web.get(TOPICS, headers={"host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:7480"])
async def test_every_name_of_this_machine_is_served(web: httpx.AsyncClient, host: str) -> None:
    assert (await web.get(TOPICS, headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(web: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await web.post(TOPICS, json={"name": "mail"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION_DENIED")
    assert (await web.get(TOPICS)).json() == {"topics": []}


async def test_the_gateways_own_pages_and_programs_may(web: httpx.AsyncClient) -> None:
    own = {"origin": str(web.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert (await web.post(TOPICS, json={"name": "a"}, headers=own)).status_code == 201
    assert (await web.post(TOPICS, json={"name": "b"})).status_code == 201


async def test_every_answer_has_the_security_headers(web: httpx.AsyncClient) -> None:
    for path in (TOPICS, "/nothing", f"{TOPICS}/nothing"):
        headers = (await web.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "trusted-types 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


async def test_a_read_only_gateway_refuses_every_operation_that_changes(broker: dejaq.Broker) -> None:
    """The whole table: no operation is forgotten."""
    async with (
        serving(dejaq.connect(broker), read_only=True) as address,
        httpx.AsyncClient(base_url=address, verify=False, trust_env=False) as web,
    ):
        changing = [one for one in operations() if one.right is not ApiRight.READ]
        assert len(changing) > 15
        for one in changing:
            places = dict.fromkeys(re.findall(r"\{(\w+)\}", one.path), "one")
            path = one.path.format(**{**places, "topic": "mail"})
            answer = await web.request(one.method, path, json={})
            assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION_DENIED"), one.name
        assert (await web.get(TOPICS)).status_code == 200


async def test_a_client_beyond_its_rate_gets_the_time_to_wait(broker: dejaq.Broker) -> None:
    async with (
        serving(dejaq.connect(broker), rate=2) as address,
        httpx.AsyncClient(base_url=address, verify=False, trust_env=False) as web,
    ):
        answers = [await web.get(f"{TOPICS}/x") for _ in range(8)]
        limited = [one for one in answers if one.status_code == 429]
        assert limited
        assert int(limited[0].headers["retry-after"]) >= 1
        assert limited[0].json()["retryable"] is True


def test_tokens_come_back_with_time_and_addresses_are_bounded() -> None:
    limiter = RateLimiter(10, 20)
    assert all(limiter.wait_seconds("a", 0.0) == 0 for _ in range(20))
    assert limiter.wait_seconds("a", 0.0) == pytest.approx(0.1)
    assert limiter.wait_seconds("b", 0.0) == 0
    assert limiter.wait_seconds("a", 0.1) == 0
    for number in range(ADDRESSES_MAX):
        limiter.wait_seconds(str(number), 1.0)
    assert len(limiter._buckets) == ADDRESSES_MAX


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7480"])
def test_the_gateway_listens_on_loopback_only(listen: str) -> None:
    with pytest.raises(DejaqError, match="give the gateway TLS and users"):
        bind(listen)


def test_an_address_that_is_taken_is_named() -> None:
    with bind("127.0.0.1:0") as taken, pytest.raises(DejaqError) as refused:
        bind(f"127.0.0.1:{taken.getsockname()[1]}")
    assert refused.value.code is Code.PORT_TAKEN


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("PUT", "/api/v1/topics", 405),
        ("POST", "/api/v1/topics", 415),
        ("GET", "/api/v1/topics/mail", 404),
        ("GET", "/api/v1/topics/no%20topic", 400),
        ("GET", "/api/v1/topics/mail/messages/no%20id", 400),
        ("GET", "/api/v1/topics/mail/messages?limit=0", 400),
        ("GET", "/api/v1/topics/mail/messages?limits=1", 400),
        ("GET", "/api/v1/topics/mail/messages?limit=1&limit=2", 400),
        ("GET", "/api/v1/topics/mail/messages?cursor=!", 400),
        ("GET", "/api/v1/topics/mail/count?start=soon", 400),
        ("GET", "/api/v1/topics/mail/count?header=x", 400),
        ("GET", "/api/v1/topics/mail/histogram?start=1", 400),
    ],
)
async def test_wrong_requests_are_problems(web: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    content: dict[str, Any] = {"content": b"x", "headers": {"content-type": "text/html"}} if method == "POST" else {}
    answer = await web.request(method, path, **content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["type"] == f"urn:dejaq:error:{problem['code']}"
    assert problem["detail"]


@pytest.mark.usefixtures("no_wait_for_brokers")
async def test_without_a_broker_the_answer_says_so_and_the_gateway_lives() -> None:
    async with (
        serving(dejaq.connect("dejaq://127.0.0.1:1", deadline=0.2, timeout=0.2)) as address,
        httpx.AsyncClient(base_url=address, timeout=60, verify=False, trust_env=False) as web,
    ):
        for path in (TOPICS, "/api/v1/info", f"{TOPICS}/mail/messages"):
            answer = await web.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "NO_BROKER")
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["retryable"] is True
