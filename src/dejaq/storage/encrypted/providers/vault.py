"""Keys that HashiCorp Vault (or OpenBao) keeps: its transit engine wraps and unwraps, and never shows its keys."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from dejaq.errors import Code, error_of
from dejaq.storage.encrypted.providers.base import WrappedKey

TIMEOUT_SECONDS = 5.0
ANSWER_BYTES_MAX = 1024 * 1024


class VaultKeys:
    """Wraps keys by the transit engine: `POST /v1/MOUNT/encrypt/KEY` and `decrypt/KEY`.

    The token is in VAULT_TOKEN, or in the file that VAULT_TOKEN_FILE names, which is read for each call, so that an
    agent can renew it. VAULT_CACERT names the certificates to trust, VAULT_NAMESPACE the namespace.
    """

    def __init__(self, url: str) -> None:
        """`url` is the server with the mount and the key, such as `https://vault:8200/transit/dejaq`."""
        parts = urllib.parse.urlsplit(url)
        path = parts.path.strip("/")
        mount, _, key = path.rpartition("/")
        if parts.scheme not in ("http", "https") or not parts.netloc or not mount or not key:
            raise error_of(Code.INVALID_ARGUMENT, "the address of a Vault key has the form https://HOST:PORT/MOUNT/KEY")
        if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise error_of(
                Code.INVALID_ARGUMENT, "a Vault server on another machine needs https: its token and keys are secret"
            )
        self._server = f"{parts.scheme}://{parts.netloc}"
        self._mount, self._key = mount, key

    async def wrap(self, key: bytes, context: bytes) -> WrappedKey:
        """Protect a key with the latest version of Vault's key."""
        answer = await self._post(
            f"encrypt/{self._key}",
            {"plaintext": base64.b64encode(key).decode(), "associated_data": base64.b64encode(context).decode()},
        )
        wrapped = str(answer.get("ciphertext", ""))
        if not wrapped.startswith("vault:v"):
            raise error_of(Code.KEY_UNAVAILABLE, "Vault gave no ciphertext for a key")
        return WrappedKey(self._key, wrapped)

    async def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """The key that was wrapped."""
        answer = await self._post(
            f"decrypt/{wrapped.provider_key}",
            {"ciphertext": wrapped.wrapped, "associated_data": base64.b64encode(context).decode()},
        )
        return base64.b64decode(str(answer.get("plaintext", "")))

    async def current(self) -> str:
        """The name of the key; Vault numbers its versions itself."""
        return self._key

    async def _post(self, path: str, values: dict[str, str]) -> dict[str, Any]:
        return await asyncio.to_thread(self._call, path, values)

    def _call(self, path: str, values: dict[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310
            f"{self._server}/v1/{self._mount}/{path}",
            data=json.dumps(values).encode(),
            headers={"Content-Type": "application/json", "X-Vault-Token": _token(), **_namespace()},
            method="POST",
        )
        try:
            with _opener(self._server).open(request, timeout=TIMEOUT_SECONDS) as answer:
                data = json.loads(answer.read(ANSWER_BYTES_MAX))["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise error_of(
                    Code.KEY_UNAVAILABLE, f"Vault refused {path} with status {error.code}", details=_reason(error)
                ) from None
        except (OSError, ValueError, KeyError) as cause:
            raise error_of(
                Code.KEY_UNAVAILABLE, f"Vault at {self._server} does not answer", details=str(cause)
            ) from None
        return dict(data)


def _token() -> str:
    file = os.environ.get("VAULT_TOKEN_FILE")
    try:
        token = Path(file).read_text(encoding="utf-8").strip() if file else os.environ.get("VAULT_TOKEN", "")
    except OSError as cause:
        raise error_of(Code.KEY_UNAVAILABLE, "cannot read VAULT_TOKEN_FILE", details=str(cause)) from None
    if not token:
        raise error_of(Code.KEY_UNAVAILABLE, "no token for Vault", details="set VAULT_TOKEN or VAULT_TOKEN_FILE")
    return token


def _namespace() -> dict[str, str]:
    name = os.environ.get("VAULT_NAMESPACE")
    return {"X-Vault-Namespace": name} if name else {}


class _StaysAtServer(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would take the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def _opener(server: str) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_StaysAtServer()]
    if server.startswith("https:"):
        trust = ssl.create_default_context(cafile=os.environ.get("VAULT_CACERT") or None)
        handlers.append(urllib.request.HTTPSHandler(context=trust))
    return urllib.request.build_opener(*handlers)


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return "; ".join(map(str, json.loads(error.read(ANSWER_BYTES_MAX)).get("errors", ())))
    except (OSError, ValueError, AttributeError):
        return ""
