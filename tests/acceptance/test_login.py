"""`dejaq login` at a real OpenID provider: tokens are kept for one broker, renewed, and forgotten by `dejaq logout`."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dejaq as sdk
from dejaq.errors import DejaqError, Unauthenticated
from dejaq.sdk.admin.access import AccessCalls
from dejaq.security.client import ClientSecurity
from dejaq.security.login_file import VARIABLE, KeptLogin, LoginFile, from_login
from dejaq.security.openid import LoginSettings
from dejaq.security.tls import ClientTls, TlsFiles
from dejaq.timekeeper.clock import SystemClock
from tests.acceptance.process import DEJAQ, SECONDS_MAX, dejaq, environment, serve
from tests.integration.security.provider import Person, absent, provider

needs_provider = pytest.mark.skipif(bool(absent()), reason=absent() or "the provider is there")


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    # Tokens live for so short a time that the SDK must renew them at once.
    with provider(access_seconds=8) as made:
        yield made


def log_in(url: str, variables: dict[str, str], user: str, *options: str) -> dict[str, str]:
    """Run `dejaq login` and confirm it as a user; what the command printed at its end."""
    with subprocess.Popen(
        [DEJAQ, "login", "--json", *options],
        env={**environment(url), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        begun = process.stdout.readline()
        if begun:
            Person(user).confirm(json.loads(begun)["open"])
        out, err = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, err
        done: dict[str, str] = json.loads(out)
        return done


@needs_provider
def test_a_user_logs_in_and_out_over_tls(issuer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, auth, kept = tmp_path / "tls", tmp_path / "auth.toml", tmp_path / "config" / "logins.json"
    assert dejaq("cert", "dev", str(files)).code == 0
    auth.write_text(
        f'admins = ["group:staff"]\n[[issuers]]\nalias = "corp"\nissuer = "{issuer}"\naudience = ["dejaq"]\n'
        'client_id = "dejaq"\n'
    )
    tls = ("--tls-cert", str(files / "server.pem"), "--tls-key", str(files / "server-key.pem"))
    variables = {"DEJAQ_CA": str(files / "ca.pem"), VARIABLE: str(kept)}
    trusting = ClientSecurity(ClientTls(TlsFiles(ca=str(files / "ca.pem"))))
    with serve(None, *tls, "--auth", str(auth), security=trusting) as broker:
        url = broker.url
        refused = dejaq("whoami", url=url, variables=variables)
        assert refused.code == 1
        assert "dejaq login" in refused.err

        assert log_in(url, variables, "alice")["principal"] == "user:corp/alice"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        assert dejaq("whoami", "--json", url=url, variables=variables).objects[0]["user"] == "alice"
        assert dejaq("topic", "create", "mail", url=url, variables=variables).code == 0

        # A client of the SDK uses the login too, and outlives several tokens of it.
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        asyncio.run(outlives_its_token(url, kept))

        elsewhere = dejaq("whoami", url=f"dejaqs://localhost:{broker.port}", variables=variables)
        assert "UNAUTHENTICATED" in elsewhere.err

        assert "logged out" in dejaq("logout", url=url, variables=variables).out
        assert dejaq("whoami", url=url, variables=variables).code == 1
        assert "no login" in dejaq("logout", url=url, variables=variables).out


async def outlives_its_token(url: str, kept: Path) -> None:
    """A consumer whose session gets newer tokens."""
    first = kept.read_text()
    async with sdk.connect(url) as client, client.consumer("mail") as consumer, client.producer("mail") as producer:
        begun = await AccessCalls(client).who_am_i()
        await producer.send(b"later", delay=max(begun.expires_ms - client.now_ms(), 0) / 1_000 + 2)
        async with asyncio.timeout(SECONDS_MAX):
            lease = await anext(aiter(consumer))
        assert (await AccessCalls(client).who_am_i()).expires_ms > begun.expires_ms
        await lease.delete()
    assert kept.read_text() != first


BROKER = ("127.0.0.1:7400",)
SETTINGS = LoginSettings("https://login.example.org", "dejaq")


def kept_login(bearer: str = "a", *, seconds: int = 600, refresh: str = "") -> KeptLogin:
    now = SystemClock().now_us()
    return KeptLogin(BROKER, SETTINGS, bearer, refresh, now + seconds * 1_000_000, now)


async def test_a_login_is_used_for_its_brokers_only(tmp_path: Path) -> None:
    file = LoginFile(tmp_path / "logins.json")
    await file.keep(kept_login())
    clock = SystemClock()
    found = from_login(file, BROKER, now_us=clock.now_us)
    assert found is not None
    assert await found.current() == "a"
    assert from_login(file, (*BROKER, "evil.example.org:7400"), now_us=clock.now_us) is None
    assert from_login(file, ("evil.example.org:7400",), now_us=clock.now_us) is None


async def test_a_login_that_has_ended_asks_for_another_one(tmp_path: Path) -> None:
    file = LoginFile(tmp_path / "logins.json")
    await file.keep(kept_login(seconds=-1))
    source = from_login(file, BROKER, now_us=SystemClock().now_us)
    assert source is not None
    with pytest.raises(Unauthenticated, match="log in again with `dejaq login`"):
        await source.current()


async def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = LoginFile(tmp_path / "logins.json")
    await file.keep(kept_login())
    file.path.chmod(0o640)
    with pytest.raises(DejaqError, match="others may read it"):
        file.find(BROKER)


async def test_a_new_login_replaces_that_of_the_same_broker(tmp_path: Path) -> None:
    file = LoginFile(tmp_path / "logins.json")
    await asyncio.gather(*(file.keep(kept_login(bearer)) for bearer in "abc"))
    assert file.path.read_text().count('"bearer"') == 1
    assert await file.forget(BROKER) is not None
    assert file.find(BROKER) is None
