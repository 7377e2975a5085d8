"""What a broker tells the others of itself, as a record of the synchronization."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

PREFIX = "members/"


@dataclass(frozen=True, slots=True)
class Process:
    """Which process a broker is, so that one that starts again on the same machine knows that the last one is dead."""

    machine: str = ""
    namespace: str = ""
    pid: int = 0

    @classmethod
    def here(cls, machine: str) -> Process:
        """This process; `machine` names the running kernel."""
        try:
            namespace = str(Path("/proc/self/ns/pid").readlink())
        except OSError:
            namespace = ""
        return cls(machine=machine, namespace=namespace, pid=os.getpid())

    def surely_dead(self, here: Process) -> bool:
        """Whether it ran where process numbers mean the same as here, and no process has its number."""
        if not self.namespace or (self.machine, self.namespace) != (here.machine, here.namespace):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


@dataclass(frozen=True, slots=True)
class Member:
    """One broker of the cluster, as it last told; `token` tells who came first."""

    id: str
    address: str
    version: str = ""
    storage: str = ""
    started_ms: int = 0
    seen_ms: int = 0
    sessions: int = 0
    latency_ms: float = 0.0
    drift_ms: float = 0.0
    draining: bool = False
    # Whether it serves, whatever it complains of.
    ready: bool = True
    degradations: tuple[str, ...] = ()
    process: Process = field(default_factory=Process)
    token: int = 0

    @property
    def well(self) -> bool:
        """Whether clients should go there."""
        return self.ready and not self.draining

    def encode(self) -> bytes:
        """The record's value."""
        values = asdict(self)
        del values["token"]
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, value: bytes, token: int) -> Member:
        """The member that `encode` wrote; what a newer broker adds is passed over."""
        values = json.loads(value)
        known = {f.name for f in fields(cls)}
        kept = {name: v for name, v in values.items() if name in known}
        kept["degradations"] = tuple(kept.get("degradations", ()))
        kept["process"] = Process(**kept.get("process", {}))
        return cls(**kept | {"token": token})
