"""What a broker publishes about itself, as a record of the synchronization."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from dejaq.domain.context import IN_PROCESS, Endpoint


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a broker: a broker that starts again on the same machine finds out that the last one has ended."""

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
        """Whether it ran in this process namespace of this machine, and no process has its number."""
        if not self.namespace or (self.machine, self.namespace) != (here.machine, here.namespace):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


# In a record `address` is for gRPC: releases up to 0.2 know no other, and send their clients there.
_NAMES = {"grpc_address": "address", "address": "websocket_address"}


@dataclass(frozen=True, slots=True)
class Member:
    """One broker of the cluster, as it last published itself; the broker with the smallest `token` joined first."""

    id: str
    # Where its clients reach it over WebSocket, and over gRPC; empty where they cannot.
    address: str = ""
    grpc_address: str = ""
    # Where other brokers call it. A broker of release 0.1.0 has none and is called where its clients are.
    peer_address: str = ""
    version: str = ""
    storage: str = ""
    started_ms: int = 0
    seen_ms: int = 0
    sessions: int = 0
    latency_ms: float = 0.0
    drift_ms: float = 0.0
    draining: bool = False
    # Whether it serves clients, whatever degradations it has.
    ready: bool = True
    degradations: tuple[str, ...] = ()
    process: Process = field(default_factory=Process)
    token: int = 0

    @property
    def well(self) -> bool:
        """Whether clients should go there."""
        return self.ready and not self.draining

    def address_at(self, endpoint: Endpoint) -> str:
        """Its address for clients of an endpoint; empty when it has none."""
        return {Endpoint.GRPC: self.grpc_address, Endpoint.WEBSOCKET: self.address}.get(endpoint, "")

    @property
    def shown_address(self) -> str:
        """The address that people are shown."""
        return self.address or self.grpc_address or IN_PROCESS

    def differs(self, other: Member) -> bool:
        """Whether the other brokers would treat it differently if it published `other`."""
        same = replace(
            other, seen_ms=self.seen_ms, latency_ms=self.latency_ms, drift_ms=self.drift_ms, token=self.token
        )
        return same != self

    def encode(self) -> bytes:
        """The record's value."""
        values = asdict(self)
        del values["token"]
        return json.dumps({_NAMES.get(name, name): value for name, value in values.items()}).encode()

    @classmethod
    def decode(cls, value: bytes, token: int) -> Member:
        """The member that `encode` wrote; fields that a newer broker adds are ignored."""
        values = json.loads(value)
        kept = {f.name: values[name] for f in fields(cls) if (name := _NAMES.get(f.name, f.name)) in values}
        kept["degradations"] = tuple(kept.get("degradations", ()))
        kept["process"] = Process(**kept.get("process", {}))
        return cls(**kept | {"token": token})
