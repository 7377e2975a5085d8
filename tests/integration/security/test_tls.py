"""TLS of every endpoint: S1, and certificates that change while the broker runs."""

from __future__ import annotations

import asyncio
import os
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import dejaq
from dejaq.errors import Code, DejaqError, NoBroker
from dejaq.protocol.websocket.connecting import open_socket
from dejaq.security import tls as tls_module
from dejaq.security.certificates import names_of
from dejaq.security.client import ClientSecurity
from dejaq.security.tls import ClientTls, TlsFiles
from dejaq.testing.waiting import eventually
from tests.integration.security.certificates import Certificates, Files
from tests.integration.security.conftest import Endpoints

# Long enough for a handshake also on a busy machine: a broker that serves the client must be found out.
DEADLINE = 0.4


async def served_certificate(endpoints: Endpoints, broker: dejaq.Broker, ca: Path) -> str:
    """The serial number of the certificate that a new connection meets."""
    host, _, port = endpoints.address(broker.central).rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    if endpoints.carriage == "grpc":
        context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()


async def refused(url: str, **options: object) -> DejaqError:
    """The error of a client that cannot connect."""
    with pytest.raises(DejaqError) as caught:
        async with dejaq.connect(url, deadline=DEADLINE, **options):  # type: ignore[arg-type]
            raise AssertionError("the broker served this client")
    return caught.value


async def test_messages_travel_over_mutual_tls(certificates: Certificates, endpoints: Endpoints) -> None:
    server, client = certificates.server, certificates.make_client("URI:dejaq:user:alice")
    async with (
        endpoints.broker(tls_cert=server.cert, tls_key=server.key, tls_client_ca=certificates.client_ca) as broker,
        dejaq.connect(endpoints.url(broker), ca=certificates.ca, cert=client.cert, key=client.key) as connected,
    ):
        await connected.create_topic("mail")
        async with connected.producer("mail") as producer, connected.consumer("mail") as consumer:
            await producer.send(b"x" * 500_000, delay=0.01)
            async for lease in consumer:
                assert len(lease.body) == 500_000
                await lease.delete()
                break


@pytest.mark.parametrize("case", ["plaintext", "wrong authority", "wrong name", "expired"])
async def test_s1_a_client_refuses_a_broker_that_it_cannot_verify(
    certificates: Certificates, endpoints: Endpoints, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ca = certificates.server, certificates.ca
    if case == "wrong authority":
        ca = certificates.other_ca
    elif case == "wrong name":
        server = certificates.make_server(names=("elsewhere.example.org",), name="elsewhere")
    elif case == "expired":
        server = certificates.make_server(expired=True, name="expired")
        # A broker does not start with such a certificate; it may expire while the broker runs.
        load = tls_module.load_server
        monkeypatch.setattr(tls_module, "load_server", lambda files, _: load(files, 0.0))
    async with endpoints.broker(tls_cert=server.cert, tls_key=server.key) as broker:
        encrypted = case != "plaintext"
        error = await refused(endpoints.url(broker, tls=encrypted), **({"ca": ca} if encrypted else {}))
        assert error.code is Code.NO_BROKER


@pytest.mark.parametrize("case", ["none", "wrong authority", "expired"])
async def test_s1_a_broker_refuses_a_client_without_a_good_certificate(
    certificates: Certificates, endpoints: Endpoints, case: str
) -> None:
    server, shown = certificates.server, {}
    if case != "none":
        files = certificates.make_client("DNS:bob", expired=case == "expired", of_brokers=case == "wrong authority")
        shown = {"cert": files.cert, "key": files.key}
    async with endpoints.broker(
        tls_cert=server.cert, tls_key=server.key, tls_client_ca=certificates.client_ca
    ) as broker:
        assert (await refused(endpoints.url(broker), ca=certificates.ca, **shown)).code is Code.NO_BROKER


async def test_the_error_names_what_is_wrong_with_tls(certificates: Certificates) -> None:
    endpoints, server = Endpoints("websocket"), certificates.server

    async def reason(broker: dejaq.Broker, ca: Path) -> str:
        security = ClientSecurity(tls=ClientTls(TlsFiles(ca=str(ca))))
        port = endpoints.address(broker.central).rpartition(":")[2]
        with pytest.raises(NoBroker) as caught:
            await open_socket(f"localhost:{port}", security)
        return caught.value.details

    async with endpoints.broker() as plain:
        assert "does not speak TLS" in await reason(plain, certificates.ca)
    async with endpoints.broker(tls_cert=server.cert, tls_key=server.key) as encrypted:
        assert "its certificate is not accepted" in await reason(encrypted, certificates.other_ca)
    async with endpoints.broker(
        tls_cert=server.cert, tls_key=server.key, tls_client_ca=certificates.client_ca
    ) as mutual:
        assert "give cert and key" in await reason(mutual, certificates.ca)


async def test_a_new_certificate_is_served_without_a_restart(certificates: Certificates, endpoints: Endpoints) -> None:
    server = certificates.server
    async with endpoints.broker(tls_cert=server.cert, tls_key=server.key) as broker:

        async def serial() -> str:
            return await served_certificate(endpoints, broker, certificates.ca)

        async with dejaq.connect(endpoints.url(broker), ca=certificates.ca) as client:
            first = await serial()
            certificates.make_server()
            await eventually(lambda: broker.central.tls.clients_version == 2, within=10)
            assert await serial() != first
            # A connection that was open before stays open.
            assert (await client.ping()).latency_ms > 0


@pytest.mark.parametrize("damage", ["not a certificate", "key of another", "expired", "missing"])
async def test_files_that_do_not_work_leave_the_earlier_certificate_in_use(
    certificates: Certificates, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoints, server = Endpoints("websocket"), certificates.server
    damages: dict[str, Callable[[], object]] = {
        "not a certificate": lambda: server.cert.write_text("nothing"),
        "key of another": lambda: os.replace(certificates.make_client("DNS:x").key, server.key),
        "expired": lambda: certificates.make_server(expired=True),
        "missing": server.cert.unlink,
    }
    async with endpoints.broker(tls_cert=server.cert, tls_key=server.key) as broker:
        first = await served_certificate(endpoints, broker, certificates.ca)
        damages[damage]()
        metrics = broker.central.metrics
        await eventually(lambda: b'tls_reload_failed{endpoint="clients"} 1.0' in metrics.render(), within=10)
        assert await served_certificate(endpoints, broker, certificates.ca) == first
        assert caplog.text.count("the earlier ones stay in use") == 1
        certificates.make_server()
        await eventually(lambda: b'tls_reload_failed{endpoint="clients"} 0.0' in metrics.render(), within=10)
        assert await served_certificate(endpoints, broker, certificates.ca) != first


async def test_the_end_of_the_certificate_is_a_metric(certificates: Certificates) -> None:
    server = certificates.server
    async with Endpoints("grpc").broker(tls_cert=server.cert, tls_key=server.key) as broker:
        context = ssl.create_default_context(cafile=certificates.ca)
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
        line = next(
            one
            for one in broker.central.metrics.render().decode().splitlines()
            if one.startswith("dejaq_tls_certificate_expiry_seconds{")
        )
        days = (float(line.split()[-1]) - broker.central.clock.now_ms() / 1_000) / 86_400
        assert 390 < days < 400


async def test_the_metrics_port_has_the_same_tls(certificates: Certificates) -> None:
    server = certificates.server
    client = certificates.make_client("DNS:prometheus")
    async with dejaq.Broker(
        metrics="127.0.0.1:0", tls_cert=server.cert, tls_key=server.key, tls_client_ca=certificates.client_ca
    ) as broker:
        url = f"https://{broker.central.metrics_address}/metrics"

        def scrape(files: Files | None) -> bytes:
            context = ssl.create_default_context(cafile=certificates.ca)
            if files is not None:
                context.load_cert_chain(files.cert, files.key)
            with urllib.request.urlopen(url, context=context, timeout=5) as page:
                return bytes(page.read())

        assert b"dejaq_sessions" in await asyncio.to_thread(scrape, client)
        with pytest.raises(OSError, match=r"certificate|Connection|EOF|closed"):
            await asyncio.to_thread(scrape, None)
        plain = url.replace("https", "http")
        with pytest.raises(OSError, match=r"reset|closed|Remote"):
            await asyncio.to_thread(lambda: urllib.request.urlopen(plain, timeout=5).read())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_older_versions_of_tls_are_refused(
    certificates: Certificates, endpoints: Endpoints, version: ssl.TLSVersion
) -> None:
    server = certificates.server
    async with endpoints.broker(tls_cert=server.cert, tls_key=server.key) as broker:
        context = ssl.create_default_context(cafile=certificates.ca)
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
        host, _, port = endpoints.address(broker.central).rpartition(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")


def test_names_are_those_of_the_san_and_not_the_common_name() -> None:
    found = {"subject": ((("commonName", "root"),),), "subjectAltName": (("URI", "a"), ("IP Address", "::1"))}
    assert names_of(found) == ("URI:a",)
