"""TLS between brokers: each shows a certificate of the brokers' own authority."""

from __future__ import annotations

from typing import Any

import pytest

import dejaq
from dejaq.errors import NoBroker
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.security.client import PLAIN, ClientSecurity
from dejaq.security.tls import ClientTls, TlsFiles
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually
from tests.integration.security.certificates import Certificates


async def test_brokers_call_each_other_and_nobody_else_can(certificates: Certificates) -> None:
    server = certificates.server
    keys: dict[str, Any] = {
        "tls_cert": server.cert,
        "tls_key": server.key,
        "tls_client_ca": certificates.client_ca,
        "tls_peer_ca": certificates.ca,
        "listen": "127.0.0.1:0",
    }
    hub = Hub()
    storage = SharedMemoryStorage()
    one = dejaq.Broker(broker="one", synchronization=LocalSynchronization(hub), storage=storage, **keys)
    two = dejaq.Broker(broker="two", synchronization=LocalSynchronization(hub), storage=storage, **keys)
    async with one, two:
        await eventually(lambda: list(one.central.cluster.connections) == ["two"], within=10)
        answers = await one.central.cluster.connections.call(
            "two", "Overseer.Ping", overseer.PingRequest(client_us=1), overseer.PingResponse, 5.0
        )
        assert answers.broker_us > 1
        client = certificates.make_client("DNS:client")
        wrong = ClientTls(TlsFiles(str(client.cert), str(client.key), str(certificates.ca)))
        unknown = ClientTls(TlsFiles(ca=str(certificates.ca)))
        for security in (PLAIN, ClientSecurity(tls=wrong), ClientSecurity(tls=unknown)):
            transport = GrpcTransport(two.central.peer_address, security)
            try:
                with pytest.raises(NoBroker):
                    await transport.call("Overseer.Ping", overseer.PingRequest(), overseer.PingResponse, 2.0)
            finally:
                await transport.close()
