"""`dejaq web`: runs the gateway with its pages and its HTTP API."""

from __future__ import annotations

from importlib.util import find_spec

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.logs import LEVELS, log_to_stderr
from dejaq.errors import Code, error_of

NEEDED = ("starlette", "uvicorn", "msgspec", "jinja2", "websockets")


@click.command(cls=Command)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7480",
    show_default=True,
    help="The address of the pages and the API; port 0 uses a free port. Beyond loopback it needs TLS and --login.",
)
@click.option("--tls-cert", metavar="FILE", help="The certificate chain; read again when it changes.")
@click.option("--tls-key", metavar="FILE", help="The key of the certificate.")
@click.option("--login", is_flag=True, help="Callers sign in; each has the rights of their own credentials.")
@click.option("--auth", metavar="FILE", help="The auth file with the OpenID providers where users may sign in.")
@click.option(
    "--openid-secret-file", metavar="FILE", help="The secret of DejaQ's client at the provider, if it has one."
)
@click.option("--read-only", is_flag=True, help="Show everything and change nothing.")
@click.option(
    "--rate",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Requests per second of a client; 0: any.",
)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A host name that requests may use.")
@click.option(
    "--origin", "origins", multiple=True, metavar="URL", help="A site whose programs may use the browser client."
)
@click.option(
    "--nice",
    type=click.IntRange(0, 19),
    default=10,
    show_default=True,
    help="How much lower its priority is than that of other processes, such as a broker on the same machine.",
)
@click.option("--lake", metavar="DIR", help="The lake whose results the pipeline page shows.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True, help="The lowest level that is logged.")
@pass_invocation
def web(
    invocation: Invocation,
    /,
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    login: bool,
    auth: str | None,
    openid_secret_file: str | None,
    read_only: bool,
    rate: int,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    nice: int,
    lake: str | None,
    log_level: str,
) -> None:
    """Serve pages, an HTTP API and live data in front of the brokers at --url, until SIGTERM or Ctrl-C."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"dejaq web needs {' and '.join(missing)}; install them with: pip install 'dejaq-mq[web]'",
        )
    log_to_stderr(log_level, as_json=False)
    from dejaq.security.tls import TlsFiles
    from dejaq.web.serve import serve
    from dejaq.web.settings import WebSettings

    settings = WebSettings(
        url=invocation.url,
        listen=listen,
        read_only=read_only,
        rate=rate,
        hosts=tuple(name.lower() for name in hosts),
        tls=TlsFiles(tls_cert, tls_key) if tls_cert is not None or tls_key is not None else None,
        login=login or auth is not None,
        auth=auth,
        openid_secret_file=openid_secret_file,
        origins=tuple(origin.rstrip("/").lower() for origin in origins),
        nice=nice,
        lake=lake,
    )
    serve(
        settings,
        started=lambda address: invocation.output.record(
            {"web": address, "url": settings.url, "read_only": read_only},
            f"serving {address} in front of {settings.url}; Ctrl-C stops",
        ),
    )
