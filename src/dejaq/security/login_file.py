"""The logins of the command `dejaq login`: a file that only its user can read, with the tokens for each broker."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dejaq.errors import Code, DejaqError, Unauthenticated, error_of
from dejaq.security.credentials import MARGIN_US, BearerSource
from dejaq.security.openid import LoginSettings, OpenIdClient, TokenSet

VARIABLE = "DEJAQ_LOGINS"
LOCK_SECONDS, LOCK_POLL_SECONDS = 30.0, 0.05
FILE_BYTES_MAX = 1024 * 1024
# A token that a broker refused is replaced early, but not more often than this.
FORCED_US = 30_000_000
_OWNER_ONLY, _OWNER_ONLY_FOLDER = 0o600, 0o700


def default_path() -> Path:
    """`DEJAQ_LOGINS`, otherwise `dejaq/logins.json` in the user's folder for configuration."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "dejaq" / "logins.json"


@dataclass(frozen=True, slots=True)
class KeptLogin:
    """A user who is logged in at one issuer, for the brokers at these addresses and for no others."""

    addresses: tuple[str, ...]
    settings: LoginSettings
    bearer: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_us: int
    # When the token was given, on this machine's clock.
    given_us: int

    def with_tokens(self, tokens: TokenSet, now_us: int) -> KeptLogin:
        """The login after a refresh."""
        return replace(
            self,
            bearer=tokens.bearer,
            refresh_token=tokens.refresh_token,
            expires_us=tokens.expires_us,
            given_us=now_us,
        )


class LoginFile:
    """Reads and replaces the file; programs that change it at the same time wait for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, addresses: Iterable[str]) -> KeptLogin | None:
        """The login that covers every one of these brokers, so that no token reaches a broker it is not for."""
        wanted = set(addresses)
        return next((one for one in self._read() if wanted <= set(one.addresses)), None)

    async def keep(self, login: KeptLogin) -> None:
        """Store a login in place of those for any of its brokers."""
        async with self._locked():
            others = [one for one in self._read() if not set(one.addresses) & set(login.addresses)]
            self._write([*others, login])

    async def forget(self, addresses: Iterable[str]) -> KeptLogin | None:
        """Remove the login of these brokers; it, or None when there is none."""
        async with self._locked():
            found = self.find(addresses)
            if found is not None:
                self._write([one for one in self._read() if one != found])
            return found

    async def fresh(
        self, addresses: Iterable[str], refused: str, *, now_us: Callable[[], int], openid: type[OpenIdClient]
    ) -> KeptLogin:
        """The login with a token that is valid for a while: refreshed when needed, by one program at a time.

        `refused` is a token that no broker accepts any more; empty for none. Raises UNAUTHENTICATED when the user must
        log in again, and UNAVAILABLE when the provider does not answer.
        """
        async with self._locked():
            login = self.find(addresses)
            if login is None:
                raise Unauthenticated("you are logged out; log in with `dejaq login`")
            now = now_us()
            lasts = login.expires_us - now > min(MARGIN_US, (login.expires_us - login.given_us) // 4)
            if lasts and (login.bearer != refused or now - login.given_us < FORCED_US):
                return login
            if not login.refresh_token:
                if login.expires_us > now and login.bearer != refused:
                    return login
                raise Unauthenticated("the login has ended; log in again with `dejaq login`")
            client = openid(login.settings, now_us=now_us)
            try:
                renewed = login.with_tokens(await client.refresh(login.refresh_token), now)
            except Unauthenticated as error:
                raise Unauthenticated(
                    f"the login has ended; log in again with `dejaq login` ({error.message})"
                ) from None
            self._write([renewed if one == login else one for one in self._read()])
            return renewed

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        self.path.parent.mkdir(mode=_OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
        descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                while not _try_lock(descriptor):  # noqa: ASYNC110
                    await asyncio.sleep(LOCK_POLL_SECONDS)  # another process has it: there is nothing to wait for
            yield
        except TimeoutError:
            raise self._wrong("another program has locked it for a long time") from None
        finally:
            os.close(descriptor)

    def _read(self) -> list[KeptLogin]:
        try:
            with self.path.open("rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise self._wrong(f"others may read it; `chmod 600 {self.path}`, or remove it and log in again")
                data = file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._wrong(error.strerror or str(error)) from None
        try:
            return [_login(one) for one in json.loads(data)["logins"]]
        except (ValueError, KeyError, TypeError):
            raise self._wrong("it cannot be read; remove it and log in again") from None

    def _write(self, logins: list[KeptLogin]) -> None:
        partial = Path(f"{self.path}.new")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump({"logins": [asdict(one) for one in logins]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def _wrong(self, reason: str) -> DejaqError:
        return error_of(Code.INVALID_ARGUMENT, f"the file of logins {self.path}: {reason}")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _login(values: dict[str, Any]) -> KeptLogin:
    settings = LoginSettings(**values.pop("settings"))
    return KeptLogin(addresses=tuple(values.pop("addresses")), settings=settings, **values)


def from_login(
    file: LoginFile,
    addresses: tuple[str, ...],
    *,
    now_us: Callable[[], int],
    openid: type[OpenIdClient] = OpenIdClient,
) -> BearerSource | None:
    """The credentials of the login for these brokers; None without one."""
    if file.find(addresses) is None:
        return None
    given = ""

    async def fetch() -> str:
        nonlocal given
        login = await file.fresh(addresses, given, now_us=now_us, openid=openid)
        given = login.bearer
        return given

    return BearerSource(fetch, now_us=now_us)
