"""Callers of the gateway: sign in, own rights, CSRF, ends of sessions, and certificates that change."""

from __future__ import annotations

import asyncio
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed

import dejaq
from dejaq.sdk.admin.access import AccessCalls, Caller
from dejaq.security.keys import digest_of, new_secret
from dejaq.security.openid import LoginSettings, OpenIdClient
from dejaq.security.tls import TlsFiles
from dejaq.testing.waiting import eventually
from dejaq.web.login import pool as pools
from dejaq.web.login.pool import GatewayPool
from dejaq.web.login.sessions import COOKIE, LIFE_SECONDS, WebSessions
from dejaq.web.metrics.history import MetricsHistory
from dejaq.web.serve import bind, connection, providers_of
from dejaq.web.settings import WebSettings
from tests.integration.security.certificates import Certificates
from tests.integration.security.issuer import ForgingIssuer
from tests.integration.security.issuer import serving as serving_issuer
from tests.integration.security.provider import WEB_CLIENT, WEB_SECRET, Person, absent, provider
from tests.integration.web.serving import serving

ROOT_ID, ROOT = new_secret(secrets.token_bytes)
ANN_ID, ANN = new_secret(secrets.token_bytes)
needs_provider = pytest.mark.skipif(bool(absent()), reason=absent() or "the provider is there")


def auth_text(more: str = "") -> str:
    keys = "".join(
        f'[[keys]]\nid = "{key_id}"\ndigest = "{digest_of(key)}"\nuser = "{user}"\n'
        for key_id, key, user in ((ROOT_ID, ROOT, "root"), (ANN_ID, ANN, "ann"))
    )
    return f'admins = ["key:{ROOT_ID}"]\n{more}{keys}'


@pytest.fixture(scope="module")
def issuer() -> Iterator[ForgingIssuer]:
    with serving_issuer(ForgingIssuer()) as made:
        yield made


@dataclass
class Site:
    """A gateway with TLS and users, in front of a broker with users."""

    address: str
    files: Certificates
    broker_url: str

    def browser(self, **options: Any) -> httpx.AsyncClient:
        context = ssl.create_default_context(cafile=str(self.files.ca))
        return httpx.AsyncClient(base_url=self.address, verify=context, trust_env=False, timeout=30, **options)

    async def signed_in(self, key: str) -> httpx.AsyncClient:
        """A browser with a session, which sends the token of its pages."""
        browser = self.browser()
        answer = await browser.post("/login", data={"credentials": key, "next": "/topics"})
        assert (answer.status_code, answer.headers.get("location")) == (303, "/topics"), answer.text
        page = await browser.get("/topics")
        found = re.search(r'name="csrf" content="([^"]+)"', page.text)
        assert found is not None
        browser.headers["X-CSRF-Token"] = found[1]
        return browser


@asynccontextmanager
async def site_of(tmp_path: Path, auth: str, providers: Any = None, *, safe: bool = True) -> AsyncIterator[Site]:
    path = tmp_path / "auth.toml"
    path.write_text(auth)
    files = Certificates(tmp_path)
    async with dejaq.Broker(listen="127.0.0.1:0", auth=path) as broker:
        url = f"dejaq://{broker.address}"
        tls = TlsFiles(str(files.server.cert), str(files.server.key)) if safe else None
        connect = connection(WebSettings(url=url))
        async with serving(connect, providers, login=True, tls=tls) as address:
            yield Site(address, files, url)


@pytest.fixture
async def site(tmp_path: Path, issuer: ForgingIssuer) -> AsyncIterator[Site]:
    async with site_of(tmp_path, auth_text(issuer.settings)) as made:
        yield made


async def test_without_credentials_pages_lead_to_the_form_and_the_api_refuses(site: Site) -> None:
    async with site.browser() as browser:
        page = await browser.get("/topics?q=a%26b")
        assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Ftopics%3Fq%3Da%2526b")
        answer = await browser.get("/api/v1/topics")
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")
        assert (await browser.post("/topics")).status_code == 401
        form = await browser.get("/login")
        assert form.status_code == 200
        assert form.headers["strict-transport-security"]
        for path in ("/static/app.js", "/static/style.css"):
            assert (await browser.get(path)).status_code == 200
        wrong = await browser.post("/login", data={"credentials": "dq_000000000000_wrong"})
        assert wrong.status_code == 401
        assert "The API key is not valid" in wrong.text
        assert COOKIE not in browser.cookies


async def test_a_session_has_a_safe_cookie_and_its_own_rights(site: Site) -> None:
    """The cookie has no credentials; each caller's requests have that caller's own rights."""
    root, ann = await site.signed_in(ROOT), await site.signed_in(ANN)
    async with site.browser() as third:
        cookie = (await third.post("/login", data={"credentials": ANN})).headers["set-cookie"]
    assert re.fullmatch(rf"{COOKIE}=[\w-]{{43}}; HttpOnly; Max-Age=\d+; Path=/; SameSite=lax; Secure", cookie)
    assert ANN not in cookie
    for page in ("/", "/topics"):
        assert ANN not in (await ann.get(page)).text
    assert (await root.post("/api/v1/topics", json={"name": "mail"})).status_code == 201
    refused = await ann.put("/api/v1/topics/mail/messages/one", json={"body": "x"})
    assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")
    async with dejaq.connect(site.broker_url, api_key=ROOT) as client:
        await client.rights().allow("user:ann", ["produce", "inspect"], "mail")
    assert (await ann.put("/api/v1/topics/mail/messages/one", json={"body": "x"})).status_code == 201
    async with site.browser() as program:
        for headers in ({"Authorization": f"Bearer {ROOT}"}, {"X-Api-Key": ROOT}):
            found = await program.get("/api/v1/topics", headers=headers)
            assert [one["name"] for one in found.json()["topics"]] == ["mail"]
        wrong = await program.get("/api/v1/topics", headers={"Authorization": "Bearer dq_000000000000_x"})
        assert wrong.status_code == 401
    for browser in (root, ann):
        await browser.aclose()


async def test_a_change_needs_the_token_of_the_page(site: Site) -> None:
    """S9: CSRF. The cookie alone changes nothing."""
    root = await site.signed_in(ROOT)
    token = root.headers.pop("X-CSRF-Token")
    for headers in ({}, {"X-CSRF-Token": "x" * len(token)}, {"X-CSRF-Token": token, "Origin": "https://evil.example"}):
        answer = await root.post("/api/v1/topics", json={"name": "mail"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION_DENIED")
    assert (await root.get("/api/v1/topics")).json() == {"topics": []}
    good = {"X-CSRF-Token": token, "Origin": site.address}
    assert (await root.post("/api/v1/topics", json={"name": "mail"}, headers=good)).status_code == 201
    foreign = {"Origin": "https://evil.example"}
    assert (await root.post("/login", data={"credentials": ROOT}, headers=foreign)).status_code == 403
    await root.aclose()


@pytest.mark.parametrize("then", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\\b", "/\nx"])
async def test_signing_in_leads_to_pages_of_the_gateway_only(site: Site, then: str) -> None:
    async with site.browser() as browser:
        answer = await browser.post("/login", data={"credentials": ROOT, "next": then})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_signing_out_ends_the_session_and_its_open_pages(site: Site) -> None:
    root = await site.signed_in(ROOT)
    context = ssl.create_default_context(cafile=str(site.files.ca))
    live = site.address.replace("https", "wss") + "/live"
    headers = {"Cookie": f"{COOKIE}={root.cookies[COOKIE]}"}
    async with open_socket(live, ssl=context, additional_headers=headers, proxy=None) as socket:
        await socket.send('{"views": [{"kind": "overview"}]}')
        assert b"data" in (await asyncio.wait_for(socket.recv(), 30)).encode()  # type: ignore[union-attr]
        kept = root.cookies[COOKIE]
        out = await root.post("/logout")
        assert (out.status_code, out.headers["location"]) == (303, "/login")
        await asyncio.wait_for(socket.wait_closed(), 30)
        assert socket.close_code == 4401
    async with site.browser(cookies={COOKIE: kept}) as again:
        assert (await again.get("/api/v1/topics")).status_code == 401
    async with open_socket(live, ssl=context, additional_headers=headers, proxy=None) as socket:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 30)
        assert socket.close_code == 4401
    await root.aclose()


async def test_a_revoked_key_ends_the_session(site: Site) -> None:
    async with dejaq.connect(site.broker_url, api_key=ROOT) as client:
        info, key = await AccessCalls(client).create_key(user="eve", label="short")
        eve = await site.signed_in(key)
        await AccessCalls(client).revoke_key(info.id)
    page = await eve.get("/topics")
    assert (page.status_code, page.headers["location"]) == (303, "/login?ended=1&next=%2Ftopics")
    assert "Your session has ended" in (await eve.get(page.headers["location"])).text
    assert (await eve.get("/api/v1/topics")).status_code == 401
    await eve.aclose()


async def test_a_session_ends_when_its_token_does(site: Site, issuer: ForgingIssuer) -> None:
    token = issuer.token(exp=int(time.time()) + 30)
    async with site.browser() as browser:
        answer = await browser.post("/login", data={"credentials": token})
        assert answer.status_code == 303, answer.text
        life = int(re.search(r"Max-Age=(\d+)", answer.headers["set-cookie"])[1])  # type: ignore[index]
        # The broker gives clocks a minute to differ.
        assert life <= 91
        assert (await browser.get("/topics")).status_code == 200


def test_a_session_ends_in_time_and_with_the_credentials() -> None:
    now = 1_000.0
    sessions = WebSessions(lambda: now)
    caller = Caller("user:ann", "token", "ann", (), "", "", 1_060_000)
    short_id, short = sessions.begin("one", caller)
    long_id, _ = sessions.begin("two", Caller("key:1", "key", "", (), "", "", 0))
    assert sessions.find(short_id) is short
    assert sessions.find("other") is None
    now = 1_061.0
    assert sessions.find(short_id) is None
    assert short.ended.is_set()
    assert sessions.find(long_id) is not None
    now += LIFE_SECONDS
    sessions.sweep()
    assert (sessions.find(long_id), sessions.count) == (None, 0)


async def test_connections_of_callers_are_bounded_and_closed_when_idle(
    broker: dejaq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "GATEWAYS_MAX", 2)
    now = 0.0
    pool = GatewayPool(lambda _: dejaq.connect(broker), WebSettings(url=""), MetricsHistory(), monotonic=lambda: now)
    async with pool.use("a") as first, pool.use("a") as same:
        assert first is same
        async with pool.use("b"):
            with pytest.raises(dejaq.errors.DejaqError, match="2 callers are connected"):
                async with pool.use("c"):
                    pass
        now = 1.0
        async with pool.use("c"):
            assert pool.count == 2
        now = 500.0
        await pool.sweep()
        assert pool.count == 1
    await pool.close()


async def test_a_renewed_certificate_is_used_for_new_connections(site: Site) -> None:
    async def serial() -> bytes:
        host, port = site.address.removeprefix("https://").split(":")
        context = ssl.create_default_context(cafile=str(site.files.ca))
        # Without a name, as for an address: the callback of the context is called for these too.
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(found)

    before = await serial()
    assert await serial() == before

    async def serial_changed() -> bool:
        return await serial() != before

    site.files.make_server()
    await eventually(serial_changed, within=30, what="the new certificate is served")


def test_beyond_loopback_the_gateway_needs_tls_and_users() -> None:
    with bind("0.0.0.0:0", is_safe=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


@needs_provider
async def test_a_user_signs_in_at_a_real_provider(tmp_path: Path) -> None:
    """The authorization code flow with PKCE; another browser cannot use the answer, and it works once."""
    with provider() as url:
        openid = OpenIdClient(LoginSettings(url, WEB_CLIENT), secret=WEB_SECRET)
        trusted = f'[[issuers]]\nalias = "corp"\nissuer = "{url}"\naudience = ["dejaq"]\n'
        # The provider of the tests knows an address without TLS.
        async with site_of(tmp_path, auth_text(trusted), {"corp": openid}, safe=False) as site, site.browser() as web:
            assert "Continue with corp" in (await web.get("/login")).text
            assert (await web.get("/login/to/other")).status_code == 404
            begun = await web.get("/login/to/corp?next=/cluster")
            assert begun.status_code == 303, begun.text
            # A browser keeps this cookie on loopback; the client of the tests does not.
            binding = begun.headers["set-cookie"].partition(";")[0]
            back = await asyncio.to_thread(Person("alice").log_in, begun.headers["location"])
            path = back.removeprefix(site.address)
            stolen = await web.get(path)
            assert (stolen.status_code, "another browser" in stolen.text) == (401, True)
            begun = await web.get("/login/to/corp?next=/cluster")
            binding = begun.headers["set-cookie"].partition(";")[0]
            back = await asyncio.to_thread(Person("alice").log_in, begun.headers["location"])
            path = back.removeprefix(site.address)
            done = await web.get(path, headers={"Cookie": binding})
            assert (done.status_code, done.headers["location"]) == (303, "/cluster"), done.text
            session = next(one for one in done.headers.get_list("set-cookie") if one.startswith(f"{COOKIE}="))
            page = await web.get("/topics", headers={"Cookie": session.partition(";")[0]})
            assert (page.status_code, ">alice</a>" in page.text) == (200, True)
            again = await web.get(path, headers={"Cookie": binding})
            assert (again.status_code, "used before" in again.text) == (401, True)


def test_the_auth_file_names_the_providers(tmp_path: Path) -> None:
    auth, secret = tmp_path / "auth.toml", tmp_path / "secret"
    shared = 'audience = ["dejaq"]\n'
    auth.write_text(
        f'[[issuers]]\nalias = "a"\nissuer = "https://a.example"\n{shared}client_id = "dejaq-web"\n'
        f'[[issuers]]\nalias = "b"\nissuer = "https://b.example"\nuser_prefix = "b-"\n{shared}'
    )
    secret.write_text("hidden\n")
    found = providers_of(WebSettings(url="", auth=str(auth), openid_secret_file=str(secret)))
    assert set(found) == {"a"}
    assert found["a"].settings.client_id == "dejaq-web"
    with pytest.raises(dejaq.errors.DejaqError, match="cannot be read"):
        providers_of(WebSettings(url="", auth=str(auth), openid_secret_file=str(tmp_path / "none")))
