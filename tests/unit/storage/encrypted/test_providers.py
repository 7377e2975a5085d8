"""Key providers return exactly what they protected, and say what is wrong without showing a key."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dejaq.errors import Code, DejaqError
from dejaq.storage.encrypted.providers.base import KeyProvider
from dejaq.storage.encrypted.providers.chosen import key_provider
from dejaq.storage.encrypted.providers.listed import new_key_line, parse_keys

SECRET = bytes(range(32))


class Transit(BaseHTTPRequestHandler):
    """Answers as Vault's transit engine is documented to: it wraps by base64, and checks token and associated data."""

    def do_POST(self) -> None:
        """Wrap or unwrap."""
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["X-Vault-Token"] != "s.token":
            return self._answer(403, {"errors": ["permission denied"]})
        if self.path == "/v1/transit/encrypt/dejaq":
            held = json.dumps([asked["plaintext"], asked["associated_data"]]).encode()
            return self._answer(200, {"data": {"ciphertext": "vault:v1:" + base64.b64encode(held).decode()}})
        plaintext, data = json.loads(base64.b64decode(asked["ciphertext"].removeprefix("vault:v1:")))
        if data != asked["associated_data"]:
            return self._answer(400, {"errors": ["message authentication failed"]})
        return self._answer(200, {"data": {"plaintext": plaintext}})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def vault(answers: type[Transit] = Transit) -> Iterator[str]:
    """The address of a key in a server that answers as Vault does."""
    server = HTTPServer(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/transit/dejaq"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(params=["file", "env", "vault"])
def provider(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyProvider]:
    """Each provider, with a key."""
    if request.param == "vault":
        monkeypatch.setenv("VAULT_TOKEN", "s.token")
        with vault() as url:
            yield key_provider(f"vault:{url}")
    elif request.param == "env":
        monkeypatch.setenv("DEJAQ_TEST_KEYS", f"{new_key_line('k2')},{new_key_line('k1')}")
        yield key_provider("env:DEJAQ_TEST_KEYS")
    else:
        yield key_provider(f"file:{key_file(tmp_path, 'k1')}")


def key_file(folder: Path, *names: str) -> Path:
    """A key file with new keys."""
    path = folder / "keys"
    path.touch(mode=0o600)
    path.write_text("# keys\n" + "\n".join(map(new_key_line, names)) + "\n")
    return path


async def test_a_provider_returns_what_it_protected(provider: KeyProvider) -> None:
    wrapped = await provider.wrap(SECRET, b"topic 1")
    assert base64.b64encode(SECRET).decode() not in wrapped.wrapped
    assert wrapped.provider_key == await provider.current()
    assert await provider.unwrap(wrapped, b"topic 1") == SECRET


async def test_a_key_is_returned_only_for_its_use(provider: KeyProvider) -> None:
    wrapped = await provider.wrap(SECRET, b"topic 1")
    with pytest.raises(DejaqError) as caught:
        await provider.unwrap(wrapped, b"topic 2")
    assert caught.value.code is Code.KEY_UNAVAILABLE


async def test_a_new_first_key_protects_new_keys_and_the_old_one_still_opens(tmp_path: Path) -> None:
    path = key_file(tmp_path, "k1")
    provider = key_provider(f"file:{path}")
    first = await provider.wrap(SECRET, b"use")
    path.write_text(new_key_line("k2") + "\n" + path.read_text())
    second = await provider.wrap(SECRET, b"use")
    assert (first.provider_key, second.provider_key) == ("k1", "k2")
    assert await provider.unwrap(first, b"use") == await provider.unwrap(second, b"use") == SECRET
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(DejaqError, match="has no key 'k1'"):
        await provider.unwrap(first, b"use")


async def test_a_damaged_list_keeps_the_keys_that_are_known(tmp_path: Path) -> None:
    path = key_file(tmp_path, "k1")
    provider = key_provider(f"file:{path}")
    wrapped = await provider.wrap(SECRET, b"use")
    path.write_text("nonsense")
    assert await provider.unwrap(wrapped, b"use") == SECRET


@pytest.mark.parametrize(
    "line", ["k1", "k1 short", f"k1 {base64.b64encode(bytes(31)).decode()}", f"a/b {base64.b64encode(SECRET).decode()}"]
)
def test_a_bad_line_is_named_without_its_content(line: str) -> None:
    with pytest.raises(DejaqError) as caught:
        parse_keys(f"{new_key_line('good')}\n{line}\n", "the list")
    assert caught.value.code is Code.KEY_UNAVAILABLE
    assert "line 2 of the list" in str(caught.value)
    assert line.partition(" ")[2] not in str(caught.value) or not line.partition(" ")[2]


async def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path, "k1")
    path.chmod(0o644)
    with pytest.raises(DejaqError, match="chmod 600"):
        await key_provider(f"file:{path}").current()


async def test_what_vault_refuses_is_said_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", "s.wrong")
    with vault() as url, pytest.raises(DejaqError, match="permission denied") as caught:
        await key_provider(f"vault:{url}").wrap(SECRET, b"use")
    assert "s.wrong" not in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    ["", "file", "file:", "keys", "vault:nowhere", "vault:https://host/key", "vault:http://vault.example/transit/key"],
)
def test_a_setting_of_another_form_is_refused(setting: str) -> None:
    with pytest.raises(DejaqError) as caught:
        key_provider(setting)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_the_token_of_vault_is_not_sent_where_a_redirect_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", "s.token")
    seen: list[str | None] = []

    class Elsewhere(Transit):
        def do_POST(self) -> None:
            seen.append(self.headers["X-Vault-Token"])
            super().do_POST()

        def do_GET(self) -> None:
            self.do_POST()

    class Redirecting(Transit):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", f"{elsewhere.rpartition('/transit')[0]}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with vault(Elsewhere) as elsewhere, vault(Redirecting) as url:
        with pytest.raises(DejaqError, match="307") as refused:
            asyncio.run(key_provider(f"vault:{url}").wrap(SECRET, b"for a topic"))
        assert refused.value.code is Code.KEY_UNAVAILABLE
    assert seen == []
