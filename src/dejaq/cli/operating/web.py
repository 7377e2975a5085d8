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
    help="A loopback address for the pages and the API; port 0 uses a free port.",
)
@click.option("--read-only", is_flag=True, help="Show everything and change nothing.")
@click.option(
    "--rate",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Requests per second of a client; 0: any.",
)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A host name that requests may use, of a proxy.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True, help="The lowest level that is logged.")
@pass_invocation
def web(
    invocation: Invocation, /, listen: str, read_only: bool, rate: int, hosts: tuple[str, ...], log_level: str
) -> None:
    """Serve pages, an HTTP API and live data in front of the brokers at --url, until SIGTERM or Ctrl-C."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"dejaq web needs {' and '.join(missing)}; install them with: pip install 'dejaq-mq[web]'",
        )
    log_to_stderr(log_level, as_json=False)
    from dejaq.web.serve import serve
    from dejaq.web.settings import WebSettings

    settings = WebSettings(
        url=invocation.url, listen=listen, read_only=read_only, rate=rate, hosts=tuple(name.lower() for name in hosts)
    )
    serve(
        settings,
        started=lambda address: invocation.output.record(
            {"web": address, "url": settings.url, "read_only": read_only},
            f"serving {address} in front of {settings.url}; Ctrl-C stops",
        ),
    )
