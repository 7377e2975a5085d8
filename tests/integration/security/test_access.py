"""API keys and sessions: S4, at one broker and in a cluster; S8."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.domain.context import CallContext
from dejaq.errors import Code, DejaqError
from dejaq.journal.security.events import read_events
from dejaq.sdk.admin.access import AccessCalls
from dejaq.security.keys import digest_of, new_secret
from dejaq.security.rights.operations import Operation
from dejaq.security.rights.rules import Effect, Rule
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.security.certificates import Certificates
from tests.integration.security.conftest import Endpoints
from tests.integration.security.issuer import ForgingIssuer, serving

ROOT_ID, ROOT = new_secret(secrets.token_bytes)
# S4: how long a stream may stay open after its credentials have ended.
END_SECONDS = 5.0


@pytest.fixture(scope="module")
def issuer() -> Iterator[ForgingIssuer]:
    with serving(ForgingIssuer()) as made:
        yield made


@pytest.fixture
def auth_file(tmp_path: Path, issuer: ForgingIssuer) -> Path:
    """A broker with tokens of the issuer, and one administrator with a key."""
    path = tmp_path / "auth.toml"
    path.write_text(
        f'admins = ["key:{ROOT_ID}"]\nsessions_per_user_max = 3\n{issuer.settings}'
        f'[[keys]]\nid = "{ROOT_ID}"\ndigest = "{digest_of(ROOT)}"\nuser = "root"\n'
        '[[certificates]]\nname = "URI:dejaq:user:carol"\nuser = "carol"\n'
    )
    return path


def connect(endpoints: Endpoints, broker: dejaq.Broker, **options: Any) -> dejaq.Client:
    return dejaq.connect(endpoints.url(broker, tls=False), deadline=5.0, **options)


async def open_topic(broker: dejaq.Broker, root: dejaq.Client) -> None:
    """Make a topic that every user may use; the rights themselves are not tested here."""
    await root.create_topic("mail")
    rule = Rule(id="", effect=Effect.ALLOW, principal="*", operations=frozenset({Operation.ADMIN}), topic="mail")
    await broker.central.rights.book.add(CallContext.internal("test"), rule)


async def ended(consumer: dejaq.Consumer) -> DejaqError:
    """The error with which a consumer ends; fails when it does not end in time."""
    async with asyncio.timeout(patient(END_SECONDS)):
        try:
            await anext(aiter(consumer))
        except DejaqError as error:
            return error
        raise AssertionError("there are no messages")


@pytest.mark.parametrize("lifetime_ms", [0, 90 * 86_400_000], ids=["endless", "ninety-days"])
async def test_a_key_is_shown_once_and_works_until_it_is_revoked(
    auth_file: Path, endpoints: Endpoints, lifetime_ms: int
) -> None:
    """S4: a revoked key ends its open sessions, also one that would have ended by itself later."""
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        admin = AccessCalls(root)
        key, secret = await admin.create_key(user="bob", groups=["staff"], label="a worker", lifetime_ms=lifetime_ms)
        assert re.fullmatch(r"dq_[0-9a-f]{12}_[0-9a-f]{64}", secret)
        assert [one for one in await admin.keys() if one == key]
        await open_topic(broker, root)
        async with connect(endpoints, broker, api_key=secret) as bob:
            me = await AccessCalls(bob).who_am_i()
            assert (me.principal, me.user, me.groups) == (f"key:{key.id}", "bob", ("staff",))
            async with bob.consumer("mail") as consumer:
                before = time.monotonic()
                waiting = asyncio.ensure_future(ended(consumer))
                await admin.revoke_key(key.id)
                assert (await waiting).code is Code.UNAUTHENTICATED
                assert time.monotonic() - before < patient(END_SECONDS)
            with pytest.raises(DejaqError) as caught:
                await AccessCalls(bob).who_am_i()
            assert caught.value.code is Code.UNAUTHENTICATED
        assert await admin.keys() == []
        with pytest.raises(DejaqError, match="no key has the id"):
            await admin.revoke_key(key.id)


async def test_a_key_expires(auth_file: Path, endpoints: Endpoints) -> None:
    clock = VirtualClock()
    async with (
        endpoints.broker(auth=auth_file, clock=clock) as broker,
        connect(endpoints, broker, api_key=ROOT) as root,
    ):
        _, secret = await AccessCalls(root).create_key(user="bob", lifetime_ms=1_500)
        await open_topic(broker, root)
        async with connect(endpoints, broker, api_key=secret) as bob, bob.consumer("mail") as consumer:
            await clock.advance(1_400)
            assert (await AccessCalls(bob).who_am_i()).user == "bob"
            await clock.advance(200)
            assert (await ended(consumer)).code is Code.UNAUTHENTICATED


async def test_users_make_keys_of_their_own_only(auth_file: Path, issuer: ForgingIssuer) -> None:
    endpoints = Endpoints("websocket")
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        foreign, _ = await AccessCalls(root).create_key(user="bob")
        async with connect(endpoints, broker, token=issuer.token()) as alice:
            calls = AccessCalls(alice)
            own, secret = await calls.create_key(groups=["staff"])
            assert (own.user, own.made_by) == ("alice", "user:corp/alice")
            assert await calls.keys() == [own]
            for refused in (
                calls.create_key(user="bob"),
                calls.create_key(groups=["admins"]),
                calls.revoke_key(foreign.id),
            ):
                with pytest.raises(DejaqError) as caught:
                    await refused
                assert caught.value.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
        async with connect(endpoints, broker, api_key=secret) as device:
            with pytest.raises(DejaqError, match="a key cannot make keys"):
                await AccessCalls(device).create_key()
            await AccessCalls(device).revoke_key(own.id)


async def test_keys_survive_a_restart(auth_file: Path, tmp_path: Path) -> None:
    endpoints = Endpoints("websocket")
    async with (
        endpoints.broker(data=tmp_path / "data", auth=auth_file) as broker,
        connect(endpoints, broker, api_key=ROOT) as root,
    ):
        _, secret = await AccessCalls(root).create_key(user="bob")
        assert await root.topics() == []
    async with (
        endpoints.broker(data=tmp_path / "data", auth=auth_file) as broker,
        connect(endpoints, broker, api_key=secret) as bob,
    ):
        assert (await AccessCalls(bob).who_am_i()).user == "bob"
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert secret.encode() not in stored
    assert secret.rpartition("_")[2].encode() not in stored


async def test_every_broker_of_a_cluster_knows_a_key_and_ends_a_session(auth_file: Path) -> None:
    """S4 in a cluster: the key was made, and the session is ended, at another broker."""
    hub, storage, endpoints = Hub(), SharedMemoryStorage(), Endpoints("websocket")
    one, two = (
        endpoints.broker(broker=name, storage=storage, synchronization=LocalSynchronization(hub), auth=auth_file)
        for name in ("one", "two")
    )
    async with one, two, connect(endpoints, one, api_key=ROOT, follow=False) as root:
        await eventually(lambda: list(one.central.cluster.connections) == ["two"], within=10)
        key, secret = await AccessCalls(root).create_key(user="bob")
        await eventually(lambda: key.id in two.central.access.ledger.keys, within=1)
        await open_topic(one, root)
        async with (
            connect(endpoints, two, api_key=secret, follow=False) as bob,
            bob.consumer("mail") as consumer,
        ):
            sessions = await AccessCalls(root).sessions()
            found = next(one for one in sessions if one.principal == f"key:{key.id}")
            assert (found.broker, found.streams) == ("two", 1)
            waiting = asyncio.ensure_future(ended(consumer))
            await AccessCalls(root).end_session(found.id)
            assert (await waiting).code is Code.UNAUTHENTICATED
            with pytest.raises(DejaqError, match="was ended"):
                await AccessCalls(bob).who_am_i()
        with pytest.raises(DejaqError) as caught:
            await AccessCalls(root).end_session("0" * 12)
        assert caught.value.code is Code.NOT_FOUND


async def test_s4_a_stream_ends_with_its_token(auth_file: Path, issuer: ForgingIssuer, endpoints: Endpoints) -> None:
    clock = VirtualClock(int(time.time() * 1_000))
    async with (
        endpoints.broker(auth=auth_file, clock=clock) as broker,
        connect(endpoints, broker, api_key=ROOT) as root,
    ):
        await open_topic(broker, root)
        token = issuer.token(exp=clock.now_ms() / 1_000 + 30)
        async with connect(endpoints, broker, token=token) as client, client.consumer("mail") as consumer:
            await clock.advance(29_000)
            assert (await AccessCalls(client).who_am_i()).user == "alice"
            await clock.advance(2_000)
            assert (await ended(consumer)).code is Code.UNAUTHENTICATED


async def test_a_new_token_is_shown_in_band_before_the_old_one_ends(
    auth_file: Path, issuer: ForgingIssuer, endpoints: Endpoints
) -> None:
    made: list[str] = []

    async def renewed() -> str:
        made.append(issuer.token(exp=time.time() + (5 if not made else 3_600), jti=str(len(made))))
        return made[-1]

    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        await open_topic(broker, root)
        async with connect(endpoints, broker, token=renewed) as client, client.consumer("mail"):
            gate = broker.central.access.gate
            (stream,) = (one for one in gate.streams if one.context.principal.user == "alice")
            first = stream.identity.expires_us or 0
            await eventually(lambda: (stream.identity.expires_us or 0) > first + 3_000_000_000, within=8)
            assert stream.error is None
            # Calls beside the session use the new token too.
            assert (await AccessCalls(client).who_am_i()).expires_ms * 1_000 > first
        assert len(made) == 2


async def test_a_session_ends_when_its_new_token_has_other_groups(auth_file: Path, issuer: ForgingIssuer) -> None:
    """What the session may do was decided for the groups of the earlier token."""
    endpoints = Endpoints("websocket")
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        await open_topic(broker, root)
        async with connect(endpoints, broker, token=issuer.token(groups=["ops"])) as client, client.consumer("mail"):
            gate = broker.central.access.gate
            (stream,) = (one for one in gate.streams if one.context.principal.user == "alice")
            with pytest.raises(DejaqError, match="other groups"):
                await gate.renew(stream.context, issuer.token(groups=["staff"]))
            assert stream.error is not None
            await gate.renew(stream.context, issuer.token(groups=["ops"], jti="later"))


async def test_a_client_logs_in_again_when_its_session_ended_with_its_token(
    auth_file: Path, issuer: ForgingIssuer
) -> None:
    endpoints = Endpoints("websocket")
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        await open_topic(broker, root)
        async with (
            connect(endpoints, broker, token=issuer.token) as client,
            client.consumer("mail") as consumer,
            root.producer("mail") as producer,
        ):
            gate = broker.central.access.gate
            before = {one for one in gate.streams if one.context.principal.user == "alice"}
            for stream in before:
                stream.identity = type(stream.identity)(stream.identity.principal, expires_us=1)
            await eventually(
                lambda: any(one.context.principal.user == "alice" and one not in before for one in gate.streams),
                within=10,
            )
            await producer.send(b"after")
            async for lease in consumer:
                assert lease.body == b"after"
                break


async def test_a_user_has_a_limit_of_sessions(auth_file: Path, issuer: ForgingIssuer, endpoints: Endpoints) -> None:
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        await open_topic(broker, root)
        async with connect(endpoints, broker, token=issuer.token()) as client:
            consumers = [client.consumer("mail", name=f"c{number}") for number in range(3)]
            for consumer in consumers:
                await consumer.open()
            with pytest.raises(DejaqError, match="the most a user may") as caught:
                await client.consumer("mail", name="c3").open()
            assert caught.value.code is Code.LIMIT_EXCEEDED
            # Another user is not concerned.
            async with root.consumer("mail"):
                pass


async def test_a_certificate_is_a_user(auth_file: Path, certificates: Certificates, endpoints: Endpoints) -> None:
    server = certificates.server
    keys = {"tls_cert": server.cert, "tls_key": server.key, "tls_client_ca": certificates.client_ca}
    known, unknown = certificates.make_client("URI:dejaq:user:carol"), certificates.make_client("DNS:worker-1")
    nameless = certificates.make_client()
    async with endpoints.broker(auth=auth_file, **keys) as broker:
        found = []
        for files in (known, unknown):
            async with dejaq.connect(
                endpoints.url(broker), ca=certificates.ca, cert=files.cert, key=files.key
            ) as client:
                me = await AccessCalls(client).who_am_i()
                found.append((me.principal, me.user, me.kind))
        assert found == [
            ("certificate:URI:dejaq:user:carol", "carol", "certificate"),
            ("certificate:DNS:worker-1", "", "certificate"),
        ]
        with pytest.raises(DejaqError) as caught:
            async with dejaq.connect(endpoints.url(broker), ca=certificates.ca, cert=nameless.cert, key=nameless.key):
                raise AssertionError("a certificate without a name was accepted")
        assert caught.value.code is Code.UNAUTHENTICATED


async def test_s8_no_log_metric_or_error_has_a_secret(
    auth_file: Path, issuer: ForgingIssuer, endpoints: Endpoints, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    async with endpoints.broker(auth=auth_file) as broker, connect(endpoints, broker, api_key=ROOT) as root:
        _, secret = await AccessCalls(root).create_key(user="bob")
        good, bad = issuer.token(), issuer.token(issuer.other)
        wrong = ROOT[:-6] + "000000"
        for options in ({"api_key": secret}, {"token": good}, {"token": bad}, {"api_key": wrong}):
            try:
                async with connect(endpoints, broker, **options) as client:
                    shown += [repr(client), repr(client.__dict__), str(await AccessCalls(client).keys())]
            except DejaqError as error:
                shown += [str(error), repr(error), repr(error.__dict__)]
        gate = broker.central.access.gate
        shown += [caplog.text, broker.central.metrics.render().decode(), repr(gate.streams.__dict__)]
        shown += [repr(broker.config), repr(broker.central.auth)]
    for secret_text in (ROOT, secret, good, bad, wrong):
        for part in secret_text.split("." if "." in secret_text else "_")[-1:]:
            assert [text[:200] for text in shown if part in text] == []


def test_a_session_is_a_user_on_a_device() -> None:
    from dejaq.broker.access.open_streams import session_id_of
    from dejaq.domain.context import ANONYMOUS, Principal, PrincipalKind

    alice, bob = Principal("user:corp/alice"), Principal("user:corp/bob")
    ids = {session_id_of(alice, "laptop"), session_id_of(alice, "phone"), session_id_of(bob, "laptop")}
    assert len(ids) == 3
    assert session_id_of(alice, "laptop") in ids
    assert session_id_of(ANONYMOUS, "laptop") == ""
    for kind in (PrincipalKind.KEY, PrincipalKind.CERTIFICATE):
        assert session_id_of(Principal("one", kind), "laptop") == session_id_of(Principal("one", kind), "phone")


async def test_the_metrics_page_of_the_port_for_clients_needs_credentials(auth_file: Path) -> None:
    import urllib.error
    import urllib.request

    endpoints = Endpoints("websocket")
    async with endpoints.broker(auth=auth_file) as broker:
        base = f"http://{endpoints.address(broker.central)}"

        def get(path: str, **headers: str) -> tuple[int, bytes]:
            try:
                with urllib.request.urlopen(urllib.request.Request(base + path, headers=headers), timeout=5) as page:
                    return page.status, page.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        assert (await asyncio.to_thread(get, "/healthz"))[0] == 200
        assert (await asyncio.to_thread(get, "/metrics"))[0] == 401
        status, text = await asyncio.to_thread(lambda: get("/metrics", Authorization=f"Bearer {ROOT}"))
        assert status == 200
        assert b'dejaq_callers_refused_total{code="UNAUTHENTICATED"} 1.0' in text


async def test_the_security_log_has_logins_refused_callers_and_keys_but_no_secret(
    auth_file: Path, endpoints: Endpoints, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    _, wrong = new_secret(secrets.token_bytes)
    broker = endpoints.broker(data=str(data), journal="off", auth=auth_file)
    async with broker, connect(endpoints, broker, api_key=ROOT) as root:
        key, secret = await AccessCalls(root).create_key(user="bob")
        await AccessCalls(root).revoke_key(key.id)
        await open_topic(broker, root)
        async with root.producer("mail") as producer:
            await producer.send(b"x")
        with pytest.raises(dejaq.Unauthenticated):
            async with connect(endpoints, broker, api_key=wrong):
                pass
    events = {(one.event, one.outcome) for one in read_events(data / "security")}
    assert {("login", "ok"), ("login", "refused"), ("key_made", "ok"), ("key_revoked", "ok")} <= events
    for path in (data / "security").iterdir():
        content = path.read_bytes()
        assert not any(text.encode() in content for text in (ROOT, secret, wrong))
