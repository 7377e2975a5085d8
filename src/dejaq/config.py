"""The configuration of a broker: one frozen value, read from a TOML file, the environment and arguments.

Arguments win over the environment (`DEJAQ_<KEY>`), which wins over the file. A bad value is an
INVALID_ARGUMENT that names the key, where it came from and what is allowed.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from dejaq import limits
from dejaq.errors import Code, DejaqError, error_of
from dejaq.security.rights.rules import check_principal
from dejaq.storage.postgres.connection.address import Address, shard_dsns

_CLUSTER = re.compile(r"[0-9A-Za-z._\-]{1,64}")
_SYNCHRONIZATION = re.compile(r"(etcd|embedded)://.+")
ENVIRONMENT_PREFIX = "DEJAQ_"
JOURNAL_OFF = "off"
_TRUTHS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _key(default: object, doc: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"doc": doc}, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of a broker; each field's `doc` is its line in docs/settings.md."""

    data: str | None = _key(
        None,
        "Directory of the embedded store; with `storage`, of the journal. `dejaq serve` without either needs --memory.",
    )
    storage: str | None = _key(
        None,
        "postgres://user@host/database of a shared store, or several, one per shard. `data` is then for the journal.",
        secret=True,
    )
    storage_connections: int = _key(8, "The number of connections to the shared store.")
    encryption_keys: str | None = _key(
        None,
        "The keys that protect the keys of encrypted topics: `file:PATH`, `env:VARIABLE` or "
        "`vault:https://host:port/mount/key`. Without it, a broker serves no encrypted topic.",
    )
    journal: str | None = _key(
        None, "The directory of the journal, or `off`. The default is `journal` in the data directory."
    )
    journal_interval_ms: int = _key(1_000, "The time between two exports to the journal's directory.")
    journal_max_age: int = _key(0, "The age in seconds at which segments of the journal are dropped; 0: never.")
    journal_max_bytes: int = _key(
        0, "The size of the journal above which the oldest segments are dropped; 0: no limit."
    )
    listen: str | None = _key(
        "127.0.0.1:7400",
        "The host:port for clients (WebSocket), `/healthz`, `/readyz` and `/metrics`; port 0 uses a free port.",
    )
    unix: str | None = _key(None, "The path of a Unix socket that serves clients of this machine as `listen` does.")
    grpc: str | None = _key(
        None, "The host:port for gRPC clients, health and reflection. Without it, there is no gRPC endpoint."
    )
    peer_listen: str | None = _key(
        None, "host:port for the other brokers of the cluster; without it a free port of the host of `listen`."
    )
    metrics: str | None = _key(
        None, "A second host:port for `/metrics` alone, for collectors that must not reach the port of the clients."
    )
    insecure: bool = _key(
        False, "Allow an address other than loopback although nothing is encrypted or clients are not authenticated."
    )
    auth: str | None = _key(
        None,
        "A TOML file that says who may connect: issuers of tokens, keys, certificates. Without it, callers are not "
        "authenticated.",
    )
    tls_cert: str | None = _key(None, "The file of the broker's certificate and its chain (PEM); with `tls_key`.")
    tls_key: str | None = _key(None, "The file of the key of the certificate (PEM, without a password).")
    tls_client_ca: str | None = _key(
        None, "The file of the authorities of the clients' certificates (PEM); with it, every client must have one."
    )
    tls_peer_ca: str | None = _key(
        None, "The same for the other brokers of the cluster, which use their `tls_cert` as clients too."
    )
    admins: str | None = _key(
        None,
        "The principals that have every right, with commas between: user:NAME, group:NAME, key:ID or certificate:NAME. "
        "With it, every other caller may do only what rules allow.",
    )
    cluster: str = _key("dejaq", "The name of the cluster.")
    synchronization: str = _key(
        "local",
        "How brokers find each other: `local` for one broker, `etcd://host:port,...`, or `embedded`.",
    )
    advertise: str | None = _key(
        None, "host:port at which clients reach this broker, and whose host other brokers use; without it `listen`."
    )
    member_ttl: int = _key(5, "Seconds after which the other brokers replace a silent broker.")
    offset_ms_max: int = _key(
        100, "The largest difference to the clocks of the other brokers; beyond it the broker stops serving."
    )
    broker: str = _key("", "The name of this broker. The default is the host name and the process id.")
    window_bytes: int = _key(limits.WINDOW_BYTES_DEFAULT, "The memory for messages that are due soon.")
    prefetch_ms_max: int = _key(limits.PREFETCH_MS_MAX, "How long before its time a message may be sent to a consumer.")
    memory_bytes_max: int = _key(
        2 * 1024**3, "The resident memory above which creates are refused with OVERLOADED; 0: no limit."
    )
    disk_free_min: int = _key(
        256 * 1024**2,
        "The free space of the data directory's disk below which creates are refused with OVERLOADED, so that "
        "consumers can continue; at most a sixteenth of the disk; 0: no limit.",
    )
    sessions_max: int = _key(limits.SESSIONS_MAX, "The number of client sessions at one time.")
    connections_max: int = _key(limits.CONNECTIONS_MAX, "The number of client connections with a session at one time.")
    topics_max: int = _key(limits.TOPICS_MAX, "The number of topics at one time.")
    drain_ms: int = _key(3_000, "How long a stopping broker waits until its clients have finished.")
    drift_ms_max: int = _key(500, "A larger jump of the clock is reported as a degradation.")

    loop_block_ms: int = _key(
        50, "Code that blocks the event loop for longer is logged with its stack; 0: nothing watches the loop."
    )
    loop_lag_ms_max: int = _key(
        250, "A median lag of the event loop above it, over 10 seconds, is reported as a degradation; 0: never."
    )

    def check(self) -> None:
        """Raise INVALID_ARGUMENT, naming the key, when a value is out of range or does not fit another."""
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise _refusal(name, value, f"an integer from {low} to {high}")
        if not _CLUSTER.fullmatch(self.cluster):
            raise _refusal("cluster", self.cluster, "1 to 64 characters of 0-9 A-Z a-z . _ -")
        for admin in self.admin_names:
            check_principal(admin)
        if self.broker and not _CLUSTER.fullmatch(self.broker):
            raise _refusal("broker", self.broker, "1 to 64 characters of 0-9 A-Z a-z . _ -")
        if self.synchronization not in ("local", "embedded") and not _SYNCHRONIZATION.match(self.synchronization):
            raise _refusal(
                "synchronization",
                self.synchronization.partition("://")[0],
                "local, embedded, embedded://host:port,... or etcd://host:port,...",
            )
        if self.advertise is not None:
            split_address(self.advertise, key="advertise")
        for peer in self.synchronization.partition("embedded://")[2].split(","):
            if peer and not self.insecure and not is_loopback(split_address(peer, key="synchronization")[0]):
                raise _refusal(
                    "synchronization",
                    peer,
                    "a loopback address: the embedded etcd serves other machines only with insecure=true",
                )
        if self.storage is not None:
            # Refuses anything that is not an address of a store, without showing the password in it.
            for dsn in shard_dsns(self.storage).values():
                Address(dsn, self.cluster)
        self._check_tls()
        if self.journal not in (None, JOURNAL_OFF) and self.data is None:
            raise _refusal(
                "journal", self.journal, "possible without a data directory, because messages are stored in memory only"
            )
        for name in ("listen", "grpc", "peer_listen", "metrics"):
            address = getattr(self, name)
            if address is not None:
                split_address(address, key=name)
                self.check_reach(name, address)

    def check_reach(self, name: str, address: str) -> None:
        """Raise INVALID_ARGUMENT when other machines could reach the endpoint `name` and it is not protected."""
        if self.insecure or is_loopback(split_address(address, key=name)[0]):
            return
        needed = _PROTECTION[name]
        missing = [key for key in needed if all(getattr(self, one) is None for one in key.split(" or "))]
        if missing:
            raise _refusal(
                name,
                address,
                f"a loopback address: DejaQ serves other machines only with {' and '.join(needed)}, "
                "or, unprotected, with insecure=true",
            )

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise error_of(Code.INVALID_ARGUMENT, "tls_cert and tls_key are given together, or neither")
        for name in ("tls_client_ca", "tls_peer_ca"):
            if getattr(self, name) is not None and self.tls_cert is None:
                raise _refusal(name, getattr(self, name), "possible without tls_cert and tls_key")

    @property
    def checks_rights(self) -> bool:
        """Whether callers may do only what rules allow."""
        return bool(self.admin_names)

    @property
    def admin_names(self) -> list[str]:
        """The principals that have every right."""
        return [name.strip() for name in (self.admins or "").split(",") if name.strip()]

    @property
    def name(self) -> str:
        """The broker's name, or one made of the host and the process."""
        return self.broker or f"{socket.gethostname()}-{os.getpid()}"


# What protects each endpoint: encryption, and that callers are known.
_PROTECTION: dict[str, tuple[str, ...]] = {
    "listen": ("tls_cert", "auth or tls_client_ca"),
    "grpc": ("tls_cert", "auth or tls_client_ca"),
    "peer_listen": ("tls_cert", "tls_peer_ca"),
    "metrics": ("tls_cert", "tls_client_ca"),
}
_RANGES: dict[str, tuple[int, int]] = {
    "storage_connections": (2, 1_000),
    "window_bytes": (1024 * 1024, 2**50),
    "prefetch_ms_max": (0, limits.PREFETCH_MS_MAX),
    "memory_bytes_max": (0, 2**50),
    "disk_free_min": (0, 2**50),
    "sessions_max": (1, limits.SESSIONS_MAX),
    "connections_max": (1, limits.CONNECTIONS_MAX),
    "topics_max": (1, limits.TOPICS_MAX),
    "drain_ms": (0, 600_000),
    "journal_interval_ms": (10, 3_600_000),
    "journal_max_age": (0, 2**40),
    "journal_max_bytes": (0, 2**60),
    "drift_ms_max": (1, 3_600_000),
    "loop_block_ms": (0, 60_000),
    "loop_lag_ms_max": (0, 60_000),
    "member_ttl": (2, 600),
    "offset_ms_max": (1, 3_600_000),
}


def load_config(
    file: str | Path | None = None, *, env: Mapping[str, str] | None = None, **arguments: Any
) -> BrokerConfig:
    """The config of a file, the environment and the arguments that are not None, checked."""
    values: dict[str, Any] = {}
    if file is not None:
        for name, value in _read(Path(file)).items():
            values[name] = _coerce(name, value, source=str(file))
    environment = os.environ if env is None else env
    for known in fields(BrokerConfig):
        text = environment.get(ENVIRONMENT_PREFIX + known.name.upper())
        if text is not None:
            values[known.name] = _coerce(known.name, text, source=ENVIRONMENT_PREFIX + known.name.upper())
    for name, value in arguments.items():
        if value is not None:
            values[name] = _coerce(name, value, source="argument")
    config = BrokerConfig(**values)
    config.check()
    return config


def split_address(address: str, *, key: str = "listen") -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise _refusal(key, address, "host:port with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """The `host:port` or `[v6]:port` of these."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_of(Code.INVALID_ARGUMENT, f"config file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise error_of(Code.INVALID_ARGUMENT, f"config file {path} is not TOML: {error}") from None


def _coerce(name: str, value: Any, *, source: str) -> Any:
    kinds = {known.name: str(known.type) for known in fields(BrokerConfig)}
    if name not in kinds:
        raise error_of(Code.INVALID_ARGUMENT, f"{source}: unknown key {name!r}; known: {', '.join(sorted(kinds))}")
    kind = kinds[name]
    if kind == "bool":
        truth = _TRUTHS.get(str(value).lower())
        if truth is None:
            raise _refusal(name, value, "true or false", source)
        return truth
    if kind == "int":
        if isinstance(value, bool) or not str(value).lstrip("-").isdecimal():
            raise _refusal(name, value, "an integer", source)
        return int(value)
    if name == "storage" and isinstance(value, dict | list | tuple):
        # Several shards are one text: addresses separated by spaces, each after its name if it has one.
        entries = [f"{shard}={dsn}" for shard, dsn in value.items()] if isinstance(value, dict) else value
        if not all(isinstance(entry, str) and entry and " " not in entry for entry in entries):
            raise error_of(Code.INVALID_ARGUMENT, f"{source}: each shard of storage is one address")
        return " ".join(entries) or None
    if not isinstance(value, str | Path):
        raise _refusal(name, value, "a string", source)
    if str(value) == "" and "None" in kind:
        return None
    return str(value)


def _refusal(name: str, value: object, allowed: str, source: str = "") -> DejaqError:
    place = f"{source}: " if source and source != "argument" else ""
    return error_of(Code.INVALID_ARGUMENT, f"{place}{name}={value!r} is not {allowed}")
