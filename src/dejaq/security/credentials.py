"""The credentials of a client: fixed, from a file, or from a function, and fetched again before they expire."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dejaq.errors import Code, DejaqError, error_of
from dejaq.security.keys import PREFIX
from dejaq.security.tokens import TOKEN_BYTES_MAX, expires_us_of

# A token is replaced this long before it expires, or at a fifth of its time if that is less, but no later than the
# lower limit: sessions look every three seconds.
MARGIN_US, MARGIN_US_MIN = 60_000_000, 5_000_000
_MARGIN_PART = 5

TokenFunction = Callable[[], "str | Awaitable[str]"]


class BearerSource:
    """Gives the credentials to use now."""

    def __init__(
        self, fetch: Callable[[], Awaitable[str]], *, now_us: Callable[[], int], renewable: bool = True
    ) -> None:
        self._fetch = fetch
        self._now_us = now_us
        # Whether asking again may give others.
        self.renewable = renewable
        self._text: str | None = None
        self._renew_at_us: int | None = None
        self._lock = asyncio.Lock()

    @property
    def due(self) -> bool:
        """Whether the credentials must be fetched, for the first time or because they expire soon."""
        return self._text is None or (self._renew_at_us is not None and self._now_us() >= self._renew_at_us)

    def invalidate(self) -> None:
        """Fetch them again at the next use: a broker has refused them."""
        if self.renewable:
            self._text = None

    async def current(self) -> str:
        """The credentials; raises INVALID_ARGUMENT for what cannot be any, or the error of the user's function."""
        if self.due:
            async with self._lock:
                if self.due:
                    self._keep((await self._fetch()).strip())
        assert self._text is not None
        return self._text

    def _keep(self, text: str) -> None:
        if not text or not text.isascii() or not text.isprintable() or len(text) > TOKEN_BYTES_MAX:
            raise error_of(
                Code.INVALID_ARGUMENT, f"a token or an API key is 1 to {TOKEN_BYTES_MAX} printable ASCII characters"
            )
        self._text, self._renew_at_us = text, None
        expires_us = None if text.startswith(PREFIX) else expires_us_of(text)
        if expires_us is not None and self.renewable:
            now_us = self._now_us()
            # At least a second passes, also when the function gives a token that has expired.
            left_us = max(expires_us - now_us, 0)
            margin_us = min(MARGIN_US, max(left_us // _MARGIN_PART, MARGIN_US_MIN))
            self._renew_at_us = max(expires_us - margin_us, now_us + 1_000_000)


def fixed(text: str, *, now_us: Callable[[], int]) -> BearerSource:
    """Credentials that never change."""

    async def fetch() -> str:
        return text

    return BearerSource(fetch, now_us=now_us, renewable=False)


def from_function(function: TokenFunction, *, now_us: Callable[[], int]) -> BearerSource:
    """Credentials that a function returns; one that is not async runs on a thread, as it may wait for a network."""

    async def fetch() -> str:
        given: str | Awaitable[str]
        if inspect.iscoroutinefunction(function):
            given = await function()
        else:
            call: Callable[[], Any] = function
            given = await asyncio.to_thread(call)
        text = await given if inspect.isawaitable(given) else given
        if not isinstance(text, str):
            raise error_of(Code.INVALID_ARGUMENT, "the function for the token must return a text")
        return text

    return BearerSource(fetch, now_us=now_us)


def from_file(path: str, *, now_us: Callable[[], int]) -> BearerSource:
    """The token in a file, read again when it expires; another program keeps the file up to date."""

    def read() -> str:
        try:
            return Path(path).read_text(encoding="ascii")
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from None
        except ValueError:
            raise _unreadable(path, "it is not ASCII text") from None

    return from_function(read, now_us=now_us)


def _unreadable(path: str, reason: str) -> DejaqError:
    return error_of(Code.INVALID_ARGUMENT, f"the token file {path} cannot be read: {reason}")
