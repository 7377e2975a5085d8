"""`dejaq cert`: certificates for trials."""

from __future__ import annotations

from pathlib import Path

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation


@click.group(cls=Group)
def cert() -> None:
    """Make certificates for trials."""


@cert.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A host name or IP address of the broker; can be given several times. Default: localhost, 127.0.0.1 and ::1",
)
@click.option("--user", default="dev", show_default=True, metavar="NAME", help="The user of the client's certificate.")
@pass_invocation
def dev(invocation: Invocation, /, directory: Path, hosts: tuple[str, ...], user: str) -> None:
    """Make an authority, a broker's certificate and a client's certificate in DIR, valid for 397 days.

    They are for trials: the keys of the authorities are not kept, so that nobody can make more certificates of them.
    """
    from dejaq.security.certificates import make_trial_set

    files = make_trial_set(directory, hosts or ("localhost", "127.0.0.1", "::1"), user)
    named = {name.removesuffix(".pem").replace("-", "_"): str(path) for name, path in files.items()}
    broker = (
        f"dejaq serve --memory --tls-cert {named['server']} --tls-key {named['server_key']} "
        f"--tls-client-ca {named['client_ca']}"
    )
    client = f"DEJAQ_CA={named['ca']} DEJAQ_CERT={named['client']} DEJAQ_KEY={named['client_key']}"
    told = f"made {len(files)} files in {directory}\n  {broker}\n  {client} dejaq info --url URL"
    invocation.output.record(named, told)
