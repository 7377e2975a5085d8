"""`dejaq storage make-key` and `dejaq storage rekey`: the keys of encrypted topics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dejaq.cli.operating.storage import storage
from dejaq.cli.terminal.invocation import Invocation, pass_invocation
from dejaq.cli.terminal.progress import ProgressBar
from dejaq.errors import Code, error_of

if TYPE_CHECKING:
    from dejaq.sdk.client import Client


@storage.command("make-key")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="The name of the new key. Default: k1, k2 and so on.")
@pass_invocation
def make_key(invocation: Invocation, /, file: Path, name: str | None) -> None:
    """Add a new random key to the key file FILE, above its other keys, or begin the file with it.

    A broker with `encryption_keys=file:FILE` protects the keys of new topics with it from then on. Then run
    `dejaq storage rekey`, so that it protects those of the existing topics too. Keep a copy of the file apart from the
    data: without it, nobody can read the encrypted bodies.
    """
    from dejaq.storage.encrypted.providers.listed import new_key_line, parse_keys

    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        known = parse_keys(before, str(file)) if before.strip() else {}
        chosen = name or next(n for n in (f"k{number}" for number in range(len(known) + 1, 10_000)) if n not in known)
        if chosen in known:
            raise click.UsageError(f"{file} has a key named {chosen!r}; give another --name.")
        # Written aside and renamed, so that the file is whole at any time.
        aside = file.with_name(f"{file.name}.new")
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as target:
            os.fchmod(handle, 0o600)
            target.write(new_key_line(chosen) + "\n" + before)
            target.flush()
            os.fsync(handle)
        aside.replace(file)
        directory = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as cause:
        raise error_of(Code.KEY_UNAVAILABLE, f"cannot write {file}", details=str(cause)) from None
    invocation.output.record(
        {"file": str(file), "key": chosen, "keys": len(known) + 1},
        f"{file}: {chosen} protects new topics, and after `dejaq storage rekey` the others. Keep a copy of the file",
    )


@storage.command()
@click.argument("topics", nargs=-1)
@click.option(
    "--new-key", is_flag=True, help="Also give each topic another key, with which new bodies are encrypted from now on."
)
@pass_invocation
def rekey(invocation: Invocation, /, topics: tuple[str, ...], new_key: bool) -> None:
    """Protect the keys of encrypted topics with the current key of the brokers' key provider.

    Without TOPICS, of all encrypted topics. Deliveries go on, and no message is written again. A repeat changes nothing
    more, so continue an interrupted command by running it again. Afterwards the old key of the provider is not needed
    any more, unless backups were made before.
    """

    async def work(client: Client) -> list[tuple[str, str]]:
        encrypted = [one.name for one in await client.topics() if one.settings.encryption != "none"]
        chosen = list(topics) or encrypted
        done = []
        with ProgressBar("protecting keys", len(chosen), quiet=invocation.json) as bar:
            for count, name in enumerate(chosen, 1):
                done.append((name, await client.rekey_topic(name, new_key=new_key)))
                bar.advance(1, f"{count:,} of {len(chosen):,} topics")
        return done

    done = invocation.run(work)
    for name, key in done:
        invocation.output.record({"topic": name, "key": key}, f"topic {name}: protected by {key}")
    if not done:
        invocation.output.record({"topics": 0}, "no topic is encrypted")
