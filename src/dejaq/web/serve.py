"""Runs the gateway until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

import dejaq
from dejaq.config import is_loopback, join_address, split_address
from dejaq.errors import Code, PortTaken, error_of
from dejaq.sdk.client import Client
from dejaq.security.openid import LoginSettings, OpenIdClient
from dejaq.security.settings import load_settings
from dejaq.security.tls import ServerTls
from dejaq.web.application import application
from dejaq.web.programs.frames import FRAME_BYTES_MAX
from dejaq.web.settings import WebSettings

# How long a page waits for a broker before it says that none answers.
DEADLINE_SECONDS = 5.0
STOP_SECONDS = 3
TLS_RELOAD_SECONDS = 1.0
CLIENT_NAME = "dejaq web"


def bind(listen: str, *, is_safe: bool = False) -> socket.socket:
    """The listening socket; raises PORT_TAKEN, or INVALID_ARGUMENT for an address that other machines reach.

    A gateway `is_safe` for those with TLS and callers who sign in.
    """
    host, port = split_address(listen)
    if not is_safe and not is_loopback(host):
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"{listen} is open to other machines; give the gateway TLS and users (--tls-cert, --tls-key, --login), or "
            "listen on loopback and reach it from elsewhere through an SSH tunnel",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as fault:
        listener.close()
        if fault.errno == errno.EADDRINUSE:
            raise PortTaken(f"another process uses {listen}; give another address with --listen") from None
        raise error_of(Code.INVALID_ARGUMENT, f"the gateway cannot listen on {listen}: {fault.strerror}") from None
    return listener


def serve(settings: WebSettings, *, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; `started` gets the address of the pages."""
    tls = ServerTls(settings.tls, now_s=time.time) if settings.tls is not None else None
    providers = providers_of(settings)
    listener = bind(settings.listen, is_safe=tls is not None and settings.login)
    host, port = listener.getsockname()[:2]
    os.nice(settings.nice)
    started(f"http{'s' if tls is not None else ''}://{join_address(host, port)}")
    asyncio.run(_serve(settings, listener, tls, providers))


def providers_of(settings: WebSettings) -> dict[str, OpenIdClient]:
    """The OpenID providers in the auth file that name the client for signing in; raises INVALID_ARGUMENT."""
    if settings.auth is None:
        return {}
    secret = ""
    if settings.openid_secret_file is not None:
        try:
            secret = Path(settings.openid_secret_file).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            path = settings.openid_secret_file
            raise error_of(Code.INVALID_ARGUMENT, f"the secret file {path} cannot be read: {error}") from None
    issuers = [one for one in load_settings(settings.auth).issuers if one.client_id]
    return {one.alias: OpenIdClient(LoginSettings.of(one), secret=secret) for one in issuers}


def connection(settings: WebSettings) -> Callable[[str], Client]:
    """Makes the clients of callers."""

    def connect(credentials: str) -> Client:
        return dejaq.connect(
            settings.url,
            name=CLIENT_NAME,
            deadline=DEADLINE_SECONDS,
            timeout=DEADLINE_SECONDS,
            token=credentials or None,
        )

    return connect


class GatewayServer(uvicorn.Server):
    """A server that does not end its process by the signal that stopped it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


async def _serve(
    settings: WebSettings, listener: socket.socket, tls: ServerTls | None, providers: dict[str, OpenIdClient]
) -> None:
    config = uvicorn.Config(
        application(connection(settings), settings, providers),
        log_config=None,
        access_log=False,
        server_header=False,
        ws_per_message_deflate=False,
        ws_max_size=FRAME_BYTES_MAX,
        timeout_graceful_shutdown=STOP_SECONDS,
        limit_concurrency=2_000,
    )
    server = GatewayServer(config)
    renewing = asyncio.ensure_future(renew(tls)) if tls is not None else None
    if tls is not None:
        config.load()
        config.ssl = reloading_context(tls)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    try:
        await server.serve(sockets=[listener])
    finally:
        if renewing is not None:
            renewing.cancel()


def reloading_context(tls: ServerTls) -> ssl.SSLContext:
    """A context whose new connections get the certificate that is valid then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.files.cert or "", tls.files.key)

    def choose(connected: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        connected.context = tls.material.context

    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Called for every connection, also for one that names no host.
    context.sni_callback = choose
    return context


async def renew(tls: ServerTls) -> None:
    """Read the files again when they change, until cancelled."""
    while True:
        await asyncio.sleep(TLS_RELOAD_SECONDS)
        await asyncio.to_thread(tls.refresh)
