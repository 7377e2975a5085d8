"""Runs the gateway until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

import dejaq
from dejaq.config import is_loopback, join_address, split_address
from dejaq.errors import Code, PortTaken, error_of
from dejaq.web.application import application
from dejaq.web.settings import WebSettings

# How long a page waits for a broker before it says that none answers.
DEADLINE_SECONDS = 5.0
STOP_SECONDS = 3
CLIENT_NAME = "dejaq web"


def bind(listen: str) -> socket.socket:
    """The listening socket; raises PORT_TAKEN, or INVALID_ARGUMENT for an address that other machines reach."""
    host, port = split_address(listen)
    if not is_loopback(host):
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"{listen} is open to other machines, and the gateway has neither TLS nor users; listen on loopback, and "
            "reach it from elsewhere through an SSH tunnel or a proxy that checks its users",
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
    listener = bind(settings.listen)
    host, port = listener.getsockname()[:2]
    started(f"http://{join_address(host, port)}")
    asyncio.run(_serve(settings, listener))


class GatewayServer(uvicorn.Server):
    """A server that does not end its process by the signal that stopped it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


async def _serve(settings: WebSettings, listener: socket.socket) -> None:
    client = dejaq.connect(settings.url, name=CLIENT_NAME, deadline=DEADLINE_SECONDS, timeout=DEADLINE_SECONDS)
    config = uvicorn.Config(
        application(client, settings),
        log_config=None,
        access_log=False,
        server_header=False,
        ws_per_message_deflate=False,
        ws_max_size=64 * 1024,
        timeout_graceful_shutdown=STOP_SECONDS,
        limit_concurrency=2_000,
    )
    server = GatewayServer(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    await server.serve(sockets=[listener])
