"""One broker for all worker tests; each test has a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import dejaq, serve

_numbers = count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with serve() as serving:
        yield serving


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"topic-{next(_numbers)}"
    assert dejaq("topic", "create", name, "--buckets", "4", url=broker.url).code == 0
    return name
