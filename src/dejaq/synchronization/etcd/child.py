"""An etcd server as a child of this process."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dejaq.errors import SynchronizationError

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
# A cluster's changes are few; an hour of them is kept, so that a watch seldom has to read everything again.
_HOUSEKEEPING = ("--auto-compaction-mode=periodic", "--auto-compaction-retention=1h", "--logger=zap")


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """Where one server is: `client` and `peer` are host:port, `data` is its directory."""

    name: str
    data: Path
    client: str
    peer: str


class EtcdChild:
    """One etcd server. `members` are (name, peer address) of the whole cluster, this one included."""

    def __init__(
        self,
        place: EtcdPlace,
        members: Sequence[tuple[str, str]] = (),
        *,
        existing: bool = False,
        options: Sequence[str] = (),
        wrapper: Sequence[str] = (),
    ) -> None:
        """`wrapper` is a command that it is run by."""
        self.place = place
        self._members = list(members) or [(place.name, place.peer)]
        self._existing = existing
        self._options = list(options)
        self._wrapper = list(wrapper)
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes]], EtcdChild] | None = None

    def detach(self) -> None:
        """Let it run on when this process ends."""
        if self._finalizer is not None:
            self._finalizer.detach()

    @property
    def pid(self) -> int | None:
        """The process while it runs."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self.place.data.with_name(self.place.data.name + ".log")

    def start(self) -> None:
        """Start the process; raises when there is no etcd on this machine."""
        program = shutil.which("etcd")
        if program is None:
            raise SynchronizationError("there is no etcd on this machine; install the package etcd-server")
        place = self.place
        place.data.parent.mkdir(parents=True, exist_ok=True)
        # etcd refuses a directory that others may read.
        place.data.mkdir(mode=0o700, exist_ok=True)
        command = [
            *self._wrapper,
            program,
            f"--name={place.name}",
            f"--data-dir={place.data}",
            f"--listen-client-urls=http://{place.client}",
            f"--advertise-client-urls=http://{place.client}",
            f"--listen-peer-urls=http://{place.peer}",
            f"--initial-advertise-peer-urls=http://{place.peer}",
            f"--initial-cluster={','.join(f'{name}=http://{peer}' for name, peer in self._members)}",
            f"--initial-cluster-state={'existing' if self._existing else 'new'}",
            *_HOUSEKEEPING,
            *self._options,
        ]
        with self.log.open("ab") as log_file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.environ.get("ETCD_UNSUPPORTED_ARCH", "")},
                # A Ctrl-C at the broker's terminal must not end etcd before the broker has left its cluster.
                start_new_session=True,
            )
        self._finalizer = weakref.finalize(self, _end, self._process)

    def last_words(self) -> str:
        """The end of its log, for an error."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1][:500] if lines else ""

    async def stop(self) -> None:
        """Ask it to stop; kill it when it does not."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, STOP_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("etcd did not stop in time and is killed")
                self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
