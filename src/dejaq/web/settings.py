"""What the operator of the gateway chooses."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq.security.tls import TlsFiles

LISTEN = "127.0.0.1:7480"
# The requests per second of one client address, and how many it may send at once.
RATE = 200
BURST_SECONDS = 2
NICE = 10


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
    # The certificate and the key; None without TLS.
    tls: TlsFiles | None = None
    # Whether callers must sign in, or show credentials with each request.
    login: bool = False
    # The auth file with the OpenID providers where users may sign in, and the file with the client's secret.
    auth: str | None = None
    openid_secret_file: str | None = None
    # Origins of web programs of other sites that may use the browser client.
    origins: tuple[str, ...] = ()
    # How much lower the priority of this process is than that of others, such as a broker beside it.
    nice: int = NICE
    # The directory of the lake whose results the pipeline page shows.
    lake: str | None = None
