"""S11: an endpoint that other machines can reach needs TLS and known callers, or `insecure`."""

from __future__ import annotations

from typing import Any

import pytest

import dejaq
from dejaq.config import load_config
from dejaq.errors import Code, DejaqError
from dejaq.synchronization.local import LocalSynchronization
from tests.integration.security.certificates import Certificates

ENDPOINTS = ["listen", "grpc", "peer_listen", "metrics"]
OPEN = "0.0.0.0:0"


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("address", [OPEN, "[::]:0", "192.0.2.1:7400", "broker.example.org:7400"])
def test_s11_an_unprotected_endpoint_listens_on_loopback_only(name: str, address: str) -> None:
    with pytest.raises(DejaqError) as caught:
        load_config(env={}, **{name: address})
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert name in caught.value.message
    assert "insecure=true" in caught.value.message
    assert getattr(load_config(env={}, insecure=True, **{name: address}), name) == address
    assert getattr(load_config(env={}, **{name: "127.0.0.1:0"}), name) == "127.0.0.1:0"


@pytest.mark.parametrize("name", ENDPOINTS)
def test_s11_tls_alone_does_not_say_who_the_callers_are(name: str, certificates: Certificates) -> None:
    files: dict[str, Any] = {"tls_cert": certificates.server.cert, "tls_key": certificates.server.key}
    with pytest.raises(DejaqError, match="insecure=true"):
        load_config(env={}, **files, **{name: OPEN})
    authority = "tls_peer_ca" if name == "peer_listen" else "tls_client_ca"
    files |= {name: OPEN, authority: certificates.client_ca}
    load_config(env={}, **files)


async def test_s11_a_cluster_needs_protection_between_its_brokers(certificates: Certificates) -> None:
    """The peer port takes the host of `listen`, so it is checked when its address is known."""
    server = certificates.server
    keys: dict[str, Any] = {"tls_cert": server.cert, "tls_key": server.key, "tls_client_ca": certificates.client_ca}
    broker = dejaq.Broker(listen=OPEN, synchronization=LocalSynchronization(), **keys)
    with pytest.raises(DejaqError, match="tls_peer_ca"):
        await broker.start()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"tls_cert": "server.pem"}, "tls_key"),
        ({"tls_key": "server.pem"}, "tls_cert"),
        ({"tls_client_ca": "ca.pem"}, "tls_cert"),
        ({"tls_peer_ca": "ca.pem"}, "tls_cert"),
    ],
)
def test_half_of_the_tls_settings_is_an_error(keys: dict[str, str], named: str) -> None:
    with pytest.raises(DejaqError, match=named):
        load_config(env={}, **keys)


async def test_files_that_do_not_work_stop_the_start(certificates: Certificates) -> None:
    server, other = certificates.server, certificates.make_client("DNS:x")
    expired = certificates.make_server(expired=True, name="expired")
    for cert, key, text in (
        (server.cert, other.key, "key values mismatch"),
        (server.cert.with_name("none.pem"), server.key, "no such file"),
        (expired.cert, expired.key, "expired"),
    ):
        broker = dejaq.Broker(listen="127.0.0.1:0", tls_cert=cert, tls_key=key)
        with pytest.raises(DejaqError, match=text):
            await broker.start()
