from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.broker.access import endpoint_tls, gate
from dejaq.broker.central import Central
from tests.integration.security.certificates import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """New authorities, with the certificate of a broker on this machine."""
    return Certificates(tmp_path)


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker looks for changed files and ended credentials more often than the product, so that tests wait less."""
    monkeypatch.setattr(endpoint_tls, "RELOAD_SECONDS", 0.05)
    monkeypatch.setattr(gate, "SWEEP_SECONDS", 0.05)


class Endpoints:
    """The endpoints for clients of a broker in this process."""

    def __init__(self, carriage: str) -> None:
        self.carriage = carriage

    def broker(self, **keys: Any) -> dejaq.Broker:
        """A broker with this endpoint."""
        return dejaq.Broker(listen="127.0.0.1:0", grpc="127.0.0.1:0", drain_ms=0, **keys)

    def address(self, central: Central) -> str:
        """Its host:port."""
        server = central.server if self.carriage == "websocket" else central.grpc
        assert server is not None
        return server.address

    def url(self, broker: dejaq.Broker, *, tls: bool = True) -> str:
        """The address for clients."""
        mark = "s" if tls else ""
        scheme = f"dejaq{mark}" if self.carriage == "websocket" else f"dejaq{mark}+grpc"
        port = self.address(broker.central).rpartition(":")[2]
        return f"{scheme}://localhost:{port}"


@pytest.fixture(params=["websocket", "grpc"])
def endpoints(request: pytest.FixtureRequest) -> Endpoints:
    """Each endpoint for clients in turn."""
    return Endpoints(request.param)
