"""PostgreSQL as a child process. It refuses to run as root; then it runs as the user `postgres`."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness.server import ServerFailed, ServerProcess
from dejaq.testing.servers.memory_folder import new_folder, remove_folder

OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",
    # A table that was just filled is analysed soon, and not after a minute of bad plans.
    "autovacuum_naptime": "2s",
}


class PostgresServer(ServerProcess):
    """A new cluster with fsync and synchronous_commit on, as by default."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        # Not below the harness's folder, which another user may not enter.
        self._data = new_folder("bench-pg", place=Path(tempfile.gettempdir()))

    def user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None

    def command(self) -> Sequence[str]:
        options = {**OPTIONS, "port": str(self.port), "unix_socket_directories": str(self._data)}
        flags = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [_program("postgres"), "-D", str(self._data / "cluster"), *flags]

    def start(self) -> None:
        if not (self._data / "cluster").exists():
            if os.geteuid() == 0:
                owner = pwd.getpwnam("postgres")
                os.chown(self._data, owner.pw_uid, owner.pw_gid)
            made = subprocess.run(
                [_program("initdb"), "-D", str(self._data / "cluster"), "-U", "postgres", "-A", "trust", "-E", "UTF8"],
                user=self.user(),
                cwd=self._data,
                capture_output=True,
                text=True,
                check=False,
            )
            if made.returncode:
                raise ServerFailed(f"initdb: {made.stderr[-500:]}")
        # The child must be able to enter its working directory.
        self.folder.chmod(0o755)
        super().start()

    def wait_ready(self) -> None:
        """Wait until the server accepts connections: the port answers earlier, during recovery."""
        super().wait_ready()
        deadline = time.monotonic() + 60
        probe = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(probe, check=False).returncode and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self) -> None:
        if self._child is not None:
            # Fast shutdown: SIGTERM alone waits for every client to leave.
            subprocess.run(
                [_program("pg_ctl"), "stop", "-D", str(self._data / "cluster"), "-m", "fast", "-w", "-t", "60"],
                user=self.user(),
                cwd=self._data,
                capture_output=True,
                check=False,
            )
        super().stop()

    def discard(self) -> None:
        """Remove the data."""
        remove_folder(self._data)


def _program(name: str) -> str:
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: path.parts[-3])
    return str(newest[-1]) if newest else str(shutil.which(name))


def postgres_version() -> str:
    """The server's version."""
    shown = subprocess.run([_program("postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    return shown.split()[2]


def postgres_missing() -> str | None:
    """The reason why PostgreSQL cannot run here, or None."""
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return "postgresql is not installed"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL refuses to run as root, and there is no user postgres"
    return None
