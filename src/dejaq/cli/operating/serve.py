"""`dejaq serve`: runs a broker in the foreground until it is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.logs import LEVELS, log_to_stderr
from dejaq.config import BrokerConfig, load_config
from dejaq.errors import Code, DejaqError
from dejaq.storage.postgres.connection.address import shown

if TYPE_CHECKING:
    from dejaq.broker.central import Central

METAVARS = {
    "data": "DIR",
    "journal": "DIR|off",
    "listen": "HOST:PORT",
    "unix": "PATH",
    "grpc": "HOST:PORT",
    "peer_listen": "HOST:PORT",
    "metrics": "HOST:PORT",
    "auth": "FILE",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_client_ca": "FILE",
    "tls_peer_ca": "FILE",
    "encryption_keys": "KIND:WHERE",
    "cluster": "NAME",
    "synchronization": "WHERE",
    "advertise": "HOST:PORT",
    "broker": "NAME",
    "admins": "PRINCIPAL,...",
}


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each key of the broker's configuration; the key's description is its help."""
    for known in reversed(fields(BrokerConfig)):
        name = "--" + known.name.replace("_", "-")
        text = str(known.metadata["doc"])
        if known.type == "bool":
            option = click.option(name, is_flag=True, default=None, help=text)
        elif known.name == "storage":
            option = click.option(name, metavar="[NAME=]DSN", multiple=True, default=None, help=text)
        else:
            usual = "" if known.default in (None, "") else f" Default: {known.default}"
            option = click.option(name, metavar=METAVARS.get(known.name, "N"), help=text + usual)
        function = option(function)
    return function


@click.command(cls=Command)
@config_options
@click.option("--memory", is_flag=True, help="Store messages in memory only; they are lost at the end.")
@click.option("--config", "file", metavar="FILE", help="A TOML file with some of these keys.")
@click.option(
    "--log-level", type=LEVELS, default="info", show_default=True, help="The lowest level that is logged on stderr."
)
@pass_invocation
def serve(invocation: Invocation, /, memory: bool, file: str | None, log_level: str, **keys: Any) -> None:
    """Run a broker until SIGTERM or Ctrl-C, then let clients finish and stop."""
    keys["storage"] = " ".join(keys["storage"] or ()) or None
    if memory and (keys["data"] or keys["storage"]) is not None:
        raise click.UsageError("Give one of --data, --storage and --memory.")
    if memory:
        # An empty value overrides the file and the environment.
        keys["data"] = keys["storage"] = ""
    config = _config(file, keys)
    if config.data is None and config.storage is None and not memory:
        raise click.UsageError(
            "Give a directory with --data DIR, a server with --storage DSN, or --memory to store nothing."
        )
    log_to_stderr(log_level, as_json=False)
    # gRPC's own remarks on a port that is taken would stand before our one clear line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dejaq.broker.loop.running import run
    from dejaq.broker.serve import serve as serve_broker

    run(serve_broker(config, started=lambda central: _announce(invocation, central)))


def _config(file: str | None, keys: dict[str, Any]) -> BrokerConfig:
    try:
        return load_config(file, **keys)
    except DejaqError as wrong:
        if wrong.code is not Code.INVALID_ARGUMENT:
            raise
        raise click.UsageError(wrong.message) from None


def _announce(invocation: Invocation, central: Central) -> None:
    config = central.config
    storage = shown(config.storage) if config.storage is not None else None
    scheme = "dejaqs" if config.tls_cert is not None else "dejaq"
    values = {
        "url": f"{scheme}://{central.address}",
        "grpc": central.grpc.address if central.grpc is not None else None,
        "broker": config.name,
        "cluster": config.cluster,
        "data": config.data,
        "storage": storage,
        "metrics": config.metrics,
        "pid": os.getpid(),
    }
    place = f"data in {storage or config.data}" if storage or config.data else "in memory only"
    also = f" and {scheme}+grpc://{central.grpc.address}" if central.grpc is not None else ""
    invocation.output.record(values, f"serving {values['url']}{also}, {place}; Ctrl-C stops")
