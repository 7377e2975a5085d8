"""A real OpenID provider (npm's `oidc-provider`) on loopback, and a person who logs in at its pages."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

from dejaq.testing.waiting import patient

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / ".venv/node/node_modules/oidc-provider/lib/index.js"
SCRIPT = Path(__file__).parent / "openid/provider.mjs"
CLIENT, WEB_CLIENT, WEB_SECRET = "dejaq", "dejaq-web", "a secret of the tests"
REDIRECT_PATH = "/login/callback"


def absent() -> str:
    """Why the provider cannot run here; empty when it can."""
    if shutil.which("node") is None:
        return "node is not installed (scripts/install_system.sh)"
    return "" if MODULE.exists() else "npm's oidc-provider is not installed (scripts/install_node.sh)"


@contextmanager
def provider(*, access_seconds: int = 60) -> Iterator[str]:
    """Serve a provider; gives its issuer."""
    with subprocess.Popen(
        ["node", "--no-warnings", str(SCRIPT), MODULE.as_uri()],
        env={"ACCESS_SECONDS": str(access_seconds), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            issuer = process.stdout.readline().strip()
            assert issuer.startswith("http://127.0.0.1:"), "the provider did not start"
            yield issuer
        finally:
            process.stdin.close()
            process.wait(timeout=patient(10))


class Person:
    """A browser with cookies, and a person who fills in the provider's forms."""

    def __init__(self, user: str) -> None:
        self.user = user
        self._jar = CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._jar), _StopAtCallback())

    def confirm(self, address: str) -> str:
        """Open the address of a device login, log in and agree; the last page."""
        return self._walk(*self._get(address))

    def log_in(self, address: str) -> str:
        """Open an authorization address, log in and agree; the address to which the provider sends the browser."""
        return self._walk(*self._get(address))

    def _walk(self, where: str, page: str) -> str:
        for _ in range(10):
            if _is_callback(where):
                return where
            form = re.search(r"<form(.*?)>(.*?)</form>", page, re.S)
            if form is None:
                return page
            action = re.search(r'action="([^"]*)"', form[1])
            fields = {
                html.unescape(name): html.unescape(value)
                for name, value in re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', form[2])
            }
            if 'name="login"' in form[2]:
                fields |= {"login": self.user, "password": "not looked at"}
            if 'name="confirm"' in form[2] or "user_code" in fields:
                fields["confirm"] = "yes"
            target = urllib.parse.urljoin(where, html.unescape(action[1]) if action else "")
            where, page = self._get(target, fields)
        raise AssertionError(f"the provider's pages do not end: {page[:500]}")

    def _get(self, address: str, form: dict[str, str] | None = None) -> tuple[str, str]:
        data = urllib.parse.urlencode(form).encode() if form is not None else None
        try:
            with self._opener.open(address, data, timeout=patient(10)) as answer:
                return answer.url, answer.read().decode()
        except urllib.error.HTTPError as error:
            location = error.headers.get("Location", "")
            if _is_callback(location):
                return location, ""
            raise AssertionError(f"{error.code} at {address}: {error.read().decode()[:500]}") from None


def _is_callback(address: str) -> bool:
    return urllib.parse.urlsplit(address).path == REDIRECT_PATH


class _StopAtCallback(urllib.request.HTTPRedirectHandler):
    """Nobody serves the address of the client: the browser stops there."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        if _is_callback(newurl):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)
