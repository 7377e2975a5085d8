"""Logins at a real OpenID provider, and answers of providers that must be refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import dejaq
from dejaq.errors import Unauthenticated, Unavailable
from dejaq.sdk.admin.access import AccessCalls
from dejaq.security.openid import DeviceLogin, LoginSettings, OpenIdClient
from tests.integration.security.conftest import Endpoints
from tests.integration.security.provider import CLIENT, WEB_CLIENT, WEB_SECRET, Person, absent, provider

needs_provider = pytest.mark.skipif(bool(absent()), reason=absent() or "the provider is there")
VERIFIER = "v" * 43


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with provider() as made:
        yield made


async def pause(_: float) -> None:
    """Ask again at once: the test has no five seconds."""
    await asyncio.sleep(0)


def client(issuer: str, **keys: Any) -> OpenIdClient:
    return OpenIdClient(LoginSettings(issuer=issuer, client_id=CLIENT, **keys), sleep=pause)


@needs_provider
async def test_a_device_login_gives_a_token_that_the_broker_accepts_and_that_is_renewed(
    issuer: str, endpoints: Endpoints, tmp_path: Path
) -> None:
    auth = tmp_path / "auth.toml"
    auth.write_text(f'[[issuers]]\nalias = "corp"\nissuer = "{issuer}"\naudience = ["dejaq"]\n')
    openid = client(issuer)
    login = await openid.begin_device_login()
    waiting = asyncio.create_task(openid.finish_device_login(login))
    await asyncio.to_thread(Person("alice").confirm, login.complete_address)
    tokens = await waiting
    assert tokens.refresh_token
    renewed = await openid.refresh(tokens.refresh_token)
    assert renewed.bearer != tokens.bearer

    async with endpoints.broker(auth=str(auth)) as broker:
        for token in (tokens.bearer, renewed.bearer):
            async with dejaq.connect(endpoints.url(broker, tls=False), token=token) as connected:
                caller = await AccessCalls(connected).who_am_i()
                assert (caller.principal, caller.user, caller.groups) == ("user:corp/alice", "alice", ("staff",))

    assert await openid.revoke(renewed.refresh_token)
    with pytest.raises(Unauthenticated, match="invalid_grant"):
        await openid.refresh(renewed.refresh_token)


@needs_provider
async def test_a_browser_login_by_code_gives_tokens_only_with_its_verifier(issuer: str) -> None:
    redirect = "http://127.0.0.1:7480/login/callback"
    openid = OpenIdClient(LoginSettings(issuer=issuer, client_id=WEB_CLIENT), secret=WEB_SECRET)

    async def code() -> str:
        address = await openid.authorization_address(redirect=redirect, state="s1", nonce="n1", verifier=VERIFIER)
        query = parse_qs(urlsplit(await asyncio.to_thread(Person("bob").log_in, address)).query)
        assert query["state"] == ["s1"]
        return query["code"][0]

    tokens = await openid.exchange(await code(), redirect=redirect, verifier=VERIFIER)
    assert tokens.bearer.count(".") == 2
    with pytest.raises(Unauthenticated, match="invalid_grant"):
        await openid.exchange(await code(), redirect=redirect, verifier="w" * 43)


class Scripted:
    """A provider that gives the answers of a list to requests for a token."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.document: dict[str, Any] = {
            "issuer": "https://login.example.org",
            "token_endpoint": "https://login.example.org/token",
            "device_authorization_endpoint": "https://login.example.org/device",
        }
        self.slept: list[float] = []
        self.now = 0.0

    async def fetch(self, url: str, **_: Any) -> dict[str, Any]:
        if url.endswith("openid-configuration"):
            return self.document
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def client(self) -> OpenIdClient:
        settings = LoginSettings(issuer="https://login.example.org", client_id="dejaq")
        return OpenIdClient(settings, fetch=self.fetch, sleep=self.sleep, monotonic=lambda: self.now)


LOGIN = DeviceLogin("secret", "ABCD", "https://login.example.org/d", "", interval_s=5, lifetime_s=600)
PENDING, SLOWER = {"error": "authorization_pending"}, {"error": "slow_down"}
TOKENS = {"access_token": "a.b.c", "token_type": "Bearer", "expires_in": 300}


async def test_a_device_login_waits_longer_when_the_provider_asks_for_it_or_does_not_answer() -> None:
    scripted = Scripted(PENDING, SLOWER, PENDING, Unavailable("away"), TOKENS)
    assert (await scripted.client().finish_device_login(LOGIN)).bearer == "a.b.c"
    assert scripted.slept == [5, 5, 10, 10, 20]


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_client"])
async def test_a_device_login_that_is_refused_ends(error: str) -> None:
    with pytest.raises(Unauthenticated, match=error):
        await Scripted({"error": error}).client().finish_device_login(LOGIN)


async def test_a_device_login_that_nobody_confirms_ends() -> None:
    with pytest.raises(Unauthenticated, match="not confirmed in time"):
        await Scripted(*[PENDING] * 200).client().finish_device_login(LOGIN)


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://elsewhere.example.org"},
        {"token_endpoint": None},
        {"token_endpoint": "http://login.example.org/token"},
        {"device_authorization_endpoint": ""},
    ],
)
async def test_a_discovery_document_that_cannot_be_trusted_is_refused(change: dict[str, Any]) -> None:
    scripted = Scripted({})
    scripted.document.update(change)
    with pytest.raises(dejaq.DejaqError):
        await scripted.client().begin_device_login()


async def test_control_characters_in_a_providers_error_are_not_shown() -> None:
    with pytest.raises(Unauthenticated) as refused:
        await Scripted({"error": "bad", "error_description": "\x1b[2Jcleared\r\n"}).client().refresh("r")
    assert refused.value.message == "the provider refused: bad: [2Jcleared"
