"""What is known about one call: the caller, its deadline, and the name of the call in the log.

The broker creates a context where the call arrives (the gRPC server, the in-process transport, a frame of a session).
It is an argument of everything that the call runs, down to the storage, which writes the caller into the journal record
of each change. Work that the broker does by itself has a context of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# The address of a client inside the broker's own process; such a client is not sent to other brokers.
IN_PROCESS = "in-process"


class Endpoint(StrEnum):
    """The kind of address at which a call arrived; a caller is sent only to other brokers' addresses of that kind."""

    WEBSOCKET = "websocket"
    GRPC = "grpc"
    # A Unix socket, which other machines cannot use.
    LOCAL = "local"


class PrincipalKind(StrEnum):
    """How a caller proved who it is."""

    # The caller proved nothing.
    ANONYMOUS = "anonymous"
    # The broker itself, or another broker of its cluster.
    BROKER = "broker"
    # A bearer token of an OpenID issuer.
    USER = "user"
    # An API key.
    KEY = "key"
    # A client certificate.
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated identity that a call runs under.

    `name` is unique: `user:ISSUER-ALIAS/alice`, `key:ID`, `certificate:NAME`. `user` is the short name of the user for
    whom it acts, the owner of the topics `~alice/...`; it is empty for a caller without topics of its own.
    """

    name: str
    kind: PrincipalKind = PrincipalKind.ANONYMOUS
    user: str = ""
    groups: frozenset[str] = frozenset()
    # Whether the broker's configuration gives it every right.
    admin: bool = False

    @property
    def recorded(self) -> str:
        """The name as the journal records it: nothing for the anonymous principal, so that its records cost no byte."""
        return "" if self.name == ANONYMOUS.name else self.name


# Callers without credentials, where the broker allows them.
ANONYMOUS = Principal("anonymous")
# Work that no caller asked for, and calls of other brokers.
BROKER = Principal("broker", kind=PrincipalKind.BROKER)


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call. `deadline` is in the time of the event loop, as clients count it; None for no deadline."""

    request_id: str
    peer: str
    principal: Principal = ANONYMOUS
    deadline: float | None = None
    endpoint: Endpoint = Endpoint.WEBSOCKET
    # The session of a user on a device to which the call belongs; empty without users.
    session_id: str = ""

    @classmethod
    def internal(cls, task: str) -> CallContext:
        """The context of work that the broker does by itself."""
        return cls(request_id=task, peer=IN_PROCESS, principal=BROKER)

    def of_frame(self, request: int) -> CallContext:
        """The context of one frame of a session whose own context is this one."""
        return CallContext(
            f"{self.request_id}/{request}",
            self.peer,
            self.principal,
            self.deadline,
            self.endpoint,
            self.session_id,
        )

    @property
    def in_process(self) -> bool:
        """Whether the caller is in the broker's own process."""
        return self.peer == IN_PROCESS

    @property
    def movable(self) -> bool:
        """Whether the caller can be sent to another broker."""
        return self.endpoint is not Endpoint.LOCAL and not self.in_process

    def log_fields(self, **fields: object) -> Mapping[str, object]:
        """The `extra` of a log record about this call."""
        return {"dejaq": {**fields, "request_id": self.request_id, "peer": self.peer, "principal": self.principal.name}}


# The context of programs that use a store without a broker, such as benchmarks and tests.
DIRECT_CALL = CallContext(request_id="direct", peer=IN_PROCESS)
