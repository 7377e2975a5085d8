"""Ports of this machine for servers that are started here."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

HOST = "127.0.0.1"
# Below the ports that the kernel gives to outgoing connections: a client that keeps trying a closed port among
# those can be connected to itself, and then holds the port that the broker wants back.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A loopback port that nobody listens on, and that no other call returns within the next minute."""
    for _ in range(1_000):
        port = random.choice(_PORTS)
        with suppress(OSError):
            # Fails while the port is in use, and while it is reserved.
            with socket.socket() as probe:
                probe.bind((HOST, port))
            _reserve(port)
            return port
    raise OSError("no free port on loopback")


def _reserve(port: int) -> None:
    """Leave the remains of a connection at the port: servers may take it, since they set SO_REUSEADDR.

    A server needs a moment until it listens, and another process must not choose the same port meanwhile.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(1)
        with socket.create_connection((HOST, port), timeout=5):
            # The end that closes first keeps the port for a minute.
            listener.accept()[0].close()
