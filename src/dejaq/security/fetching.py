"""Small documents of OpenID providers over HTTPS. A thread does the request, so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from dejaq.errors import Unavailable
from dejaq.security.settings import check_url

SECONDS = 5.0
DOCUMENT_BYTES_MAX = 512 * 1024


async def fetch_json(
    url: str,
    *,
    ca: str = "",
    form: Mapping[str, str] | None = None,
    empty: bool = False,
    context: ssl.SSLContext | None = None,
) -> dict[str, Any]:
    """The JSON object at `url`, or the answer to a form that is sent there; raises UNAVAILABLE.

    The answer of a form may be an OAuth error: an object with `error`. With `empty` an answer without content is
    allowed; `context` is for TLS, in place of one that trusts `ca`.
    """
    return await asyncio.to_thread(_fetch, url, ca, form, empty, context)


def _fetch(
    url: str, ca: str, form: Mapping[str, str] | None, empty: bool, context: ssl.SSLContext | None
) -> dict[str, Any]:
    check_url(url, "the address of the provider")
    data = urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(url, data=data, headers={"Accept": "application/json"})  # noqa: S310 - checked
    opener = urllib.request.build_opener(
        _NoRedirect(), urllib.request.HTTPSHandler(context=context or ssl.create_default_context(cafile=ca or None))
    )
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            data = answer.read(DOCUMENT_BYTES_MAX + 1)
            return {} if empty and not data.strip() else _object(data, url)
    except urllib.error.HTTPError as error:
        if form is not None and error.code in (400, 401, 403):
            return _object(error.read(DOCUMENT_BYTES_MAX + 1), url)
        raise Unavailable(f"the provider answered {error.code} at {url}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unavailable(f"the provider did not answer at {url}: {reason}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it could lead to an address that is not protected."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow nothing."""


def _object(data: bytes, url: str) -> dict[str, Any]:
    if len(data) > DOCUMENT_BYTES_MAX:
        raise Unavailable(f"the document at {url} has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = json.loads(data)
    except ValueError:
        raise Unavailable(f"the document at {url} is not JSON") from None
    if not isinstance(found, dict):
        raise Unavailable(f"the document at {url} is not a JSON object")
    return found
