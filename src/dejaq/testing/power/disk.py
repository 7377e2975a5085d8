"""A mounted file system whose power a test can cut.

async with PowerDisk(tmp_path / "disk", seed=7) as disk, BrokerProcess(disk.path / "data") as broker:
    ...
    await disk.cut(after=20)
    await disk.restore(broker)
    await broker.restart()
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.testing.servers.faults import FaultUnavailable
from dejaq.testing.servers.process import BrokerProcess

_ANSWER_SECONDS = 20.0


class PowerDisk:
    """A file system in the memory of a process of its own. It keeps what was synced; a cut may undo the rest.

    `unsynced` are patterns of the names of files and directories whose syncs do nothing, as if the program had none.
    Entering it raises FaultUnavailable where this machine cannot mount it.
    """

    def __init__(self, path: Path, *, seed: int, unsynced: Sequence[str] = ()) -> None:
        self.path = path
        self._arguments = [str(path), str(seed), *unsynced]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        if os.geteuid() != 0:
            raise FaultUnavailable("mounting a FUSE file system needs root")
        self.path.mkdir(parents=True, exist_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dejaq.testing.power.server", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        answer = await self._answer()
        if answer != "mounted":
            await self._end()
            raise FaultUnavailable(answer)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def cut(self, *, after: int = 0, within: float = 10.0) -> None:
        """Cut the power after so many further changes of the disk, or when `within` seconds passed without them.

        From then on every program that uses the disk waits.
        """
        await self._tell(f"cut {after}")
        try:
            await self._expect("stopped", within)
        except TimeoutError:
            await self._tell("cut 0")
            await self._expect("stopped", _ANSWER_SECONDS)

    async def restore(self, broker: BrokerProcess, *, keep_some: bool = False) -> None:
        """End the broker as the power failure did, and mount what the disk has kept.

        Everything that was not synced is lost, or, with `keep_some`, a random part of it.
        """
        if broker.running:
            # It may wait for the disk, so it ends only when the disk is gone.
            os.kill(broker.pid, signal.SIGKILL)
        await self._tell(f"restore {int(keep_some)}")
        await self._expect("mounted", _ANSWER_SECONDS)
        await broker.exited()

    async def _tell(self, command: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        await self._process.stdin.drain()

    async def _expect(self, word: str, within: float) -> None:
        answer = await asyncio.wait_for(self._answer(), within)
        assert answer == word, f"the file system said {answer!r} and not {word!r}"

    async def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _ANSWER_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
