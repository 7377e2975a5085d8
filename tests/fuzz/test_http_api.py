"""R15, S2: invented requests to the HTTP API, valid and wrong ones, get an answer below 500."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from queue import Queue
from threading import Thread
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dejaq
from dejaq.web.api.openapi import openapi
from dejaq.web.api.table import operations
from tests.integration.web.serving import serving

# Requests for each operation that have to do with an existing topic.
EXAMPLES = 10
# Operations that wait for the reply of a consumer.
WAITING = ("sendRequest", "takeReply")


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """The address of a gateway that runs in a thread of its own."""
    addresses: Queue[str] = Queue()
    ended: Future[None] = Future()

    async def run() -> None:
        async with dejaq.Broker() as broker, serving(dejaq.connect(broker, deadline=5), rate=0) as address:
            addresses.put(address)
            await asyncio.wrap_future(ended)

    thread = Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        address = addresses.get(timeout=30)
        with httpx.Client(base_url=address, verify=False, trust_env=False) as web:
            web.post("/api/v1/topics", json={"name": "mail", "buckets": 2})
            web.put("/api/v1/topics/mail/messages/one", json={"delay": 3_600})
        yield address
    finally:
        ended.set_result(None)
        thread.join(timeout=30)


@pytest.mark.parametrize("name", [one.name for one in operations()])
@pytest.mark.filterwarnings("ignore")
def test_r15_no_invented_request_is_a_server_error(gateway: str, name: str) -> None:
    schema = schemathesis.openapi.from_dict(openapi(operations()))
    operation = schema.find_operation_by_id(name)

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(), own=st.booleans())
    def check(case: Any, own: bool) -> None:
        if own and "topic" in case.path_parameters:
            case.path_parameters["topic"] = "mail"
        if name == "takeLeases" and isinstance(case.body, dict):
            case.body["wait"] = 0
        if name in WAITING and isinstance(case.body, dict):
            case.body["timeout"] = 0.01
        response = case.call(base_url=gateway)
        if name in WAITING and response.status_code == 503:
            # Nobody replies here.
            assert response.json()["code"] == "INDEFINITE"
            return
        assert response.status_code < 500, f"{case.method} {case.path}: {response.text[:500]}"

    check()
