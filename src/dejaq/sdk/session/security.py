"""What a client was given to reach its brokers safely: arguments, or environment variables."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import TypedDict

from dejaq.errors import Code, error_of
from dejaq.sdk.session.address import Target
from dejaq.security.client import ClientSecurity
from dejaq.security.credentials import BearerSource, TokenFunction, fixed, from_file, from_function
from dejaq.security.login_file import LoginFile, default_path, from_login
from dejaq.security.tls import ClientTls, TlsFiles
from dejaq.timekeeper.clock import Clock

FilePath = str | os.PathLike[str]


class SecurityArguments(TypedDict, total=False):
    """The arguments of `connect` about security."""

    ca: FilePath | None
    cert: FilePath | None
    key: FilePath | None
    token: str | TokenFunction | None
    api_key: str | None
    token_file: FilePath | None


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Files for TLS, and one kind of credentials.

    Files that are None are taken from `DEJAQ_CA`, `DEJAQ_CERT` and `DEJAQ_KEY`. Without any credentials, those of
    `DEJAQ_API_KEY`, `DEJAQ_TOKEN` or `DEJAQ_TOKEN_FILE` are used, and then the login of `dejaq login`, if it is one for
    these brokers.
    """

    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None
    token: str | TokenFunction | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    token_file: FilePath | None = None

    def for_target(self, target: Target, clock: Clock) -> ClientSecurity:
        """What connections to `target` use; raises INVALID_ARGUMENT for files that do not work."""
        credentials = self._credentials(clock) or from_login(
            LoginFile(default_path()), target.addresses, now_us=clock.now_us
        )
        device = socket.gethostname() if credentials is not None or target.tls else ""
        if not target.tls:
            if self.ca is not None or self.cert is not None or self.key is not None:
                raise error_of(Code.INVALID_ARGUMENT, "ca, cert and key are for TLS: begin the address with dejaqs://")
            return ClientSecurity(credentials=credentials, device=device)
        tls = self.client_tls()
        # Files that cannot be used are found now, and not at every try to connect.
        tls.context()
        return ClientSecurity(tls=tls, credentials=credentials, device=device)

    def client_tls(self) -> ClientTls:
        """The client's side of TLS, from these files or those of the environment."""
        return ClientTls(
            TlsFiles(
                ca=_text(self.ca, "DEJAQ_CA"),
                cert=_text(self.cert, "DEJAQ_CERT"),
                key=_text(self.key, "DEJAQ_KEY"),
            )
        )

    def _credentials(self, clock: Clock) -> BearerSource | None:
        given = [one for one in (self.token, self.api_key, self.token_file) if one is not None]
        if len(given) > 1:
            raise error_of(Code.INVALID_ARGUMENT, "give one of token, api_key and token_file")
        if callable(self.token):
            return from_function(self.token, now_us=clock.now_us)
        environment = os.environ if not given else {}
        text = self.api_key or self.token or environment.get("DEJAQ_API_KEY") or environment.get("DEJAQ_TOKEN")
        if text:
            return fixed(text, now_us=clock.now_us)
        path = self.token_file if self.token_file is not None else environment.get("DEJAQ_TOKEN_FILE")
        return from_file(os.fspath(path), now_us=clock.now_us) if path else None


NO_OPTIONS = SecurityOptions()


def _text(value: FilePath | None, variable: str) -> str | None:
    return os.fspath(value) if value is not None else os.environ.get(variable) or None
