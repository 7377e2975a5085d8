"""What the operator of the gateway chooses."""

from __future__ import annotations

from dataclasses import dataclass

LISTEN = "127.0.0.1:7480"
# The requests per second of one client address, and how many it may send at once.
RATE = 200
BURST_SECONDS = 2


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The settings of one gateway."""

    url: str
    listen: str = LISTEN
    read_only: bool = False
    # 0: no limit.
    rate: int = RATE
    # Host names in requests that are accepted beside those of this machine.
    hosts: tuple[str, ...] = ()
