"""Commands and a broker as a user runs them: processes of the installed command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dejaq.security.client import PLAIN, ClientSecurity
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import patient
from tests.regressions import bugs

DEJAQ = str(Path(sys.executable).with_name("dejaq"))
SECONDS_MAX = patient(30)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The output, as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(url: str) -> Mapping[str, str]:
    # A wide terminal without colours, and no DejaQ setting from the environment of the test run.
    kept = {key: value for key, value in os.environ.items() if key == bugs.VARIABLE or not key.startswith("DEJAQ_")}
    return {**kept, "DEJAQ_URL": url, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def dejaq(
    *arguments: str,
    url: str = "dejaq://127.0.0.1:1",
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Done:
    """Run one command until it ends; `variables` are of its environment."""
    done = subprocess.run(
        [DEJAQ, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**environment(url), **(variables or {})},
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def serve(data: Path | None = None, *options: str, security: ClientSecurity = PLAIN) -> Iterator[BrokerProcess]:
    """A ready broker for the duration of the block; without `data` it keeps messages in memory."""
    broker = BrokerProcess(data, options=options, security=security)
    try:
        broker.start()
        asyncio.run(broker.ready())
        yield broker
    finally:
        broker.close()
