"""A topic, its settings and its provisioning state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.bodies import Compression
from dejaq.errors import Code, DejaqError, error_of

_NAME = re.compile(r"[0-9A-Za-z._\-]{1,128}")


class TopicState(StrEnum):
    """A topic is made and unmade in steps that survive a crash; only a live one takes messages."""

    CREATING = "creating"
    LIVE = "live"
    DELETING = "deleting"


class Durability(StrEnum):
    """When a change is acknowledged: after fsync, or after the write reached the operating system."""

    FSYNC = "fsync"
    RELAXED = "relaxed"


class TopicKind(StrEnum):
    """What decides which message is next: its time, its priority, or a schedule that makes the messages."""

    TIMELINE = "timeline"
    PRIORITY = "priority"
    CRON = "cron"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What an owner may choose for a topic; every field has a default that is safe."""

    buckets: int = field(
        default=limits.BUCKETS_DEFAULT,
        metadata={"doc": "How many parts the topic is spread over; fixed at creation."},
    )
    max_future_ms: int = field(
        default=limits.FUTURE_MS_DEFAULT,
        metadata={"doc": "How far ahead a message may be scheduled."},
    )
    max_lease_ms: int = field(
        default=limits.LEASE_MS_MAX, metadata={"doc": "The longest lease a consumer may ask for."}
    )
    max_body_bytes: int = field(
        default=limits.BODY_BYTES_MAX,
        metadata={"doc": "The largest body that is accepted, up to 64 MiB; above 1 MiB it is kept in parts."},
    )
    durability: Durability = field(
        default=Durability.FSYNC,
        metadata={"doc": "`fsync`: acknowledged after fsync. `relaxed`: before; a power cut may lose it."},
    )

    journal: bool = field(
        default=True,
        metadata={"doc": "Whether every change is written to the journal; off, the audit knows nothing of the topic."},
    )
    kind: TopicKind = field(
        default=TopicKind.TIMELINE,
        metadata={
            "doc": "`timeline`: the earliest first. `priority`: of what is available, the lowest priority first."
        },
    )

    max_attempts: int = field(
        default=0,
        metadata={"doc": "Leases a message may have; then it goes to the dead-letter topic. 0: no limit."},
    )
    dead_letter: str = field(
        default="", metadata={"doc": "The topic that dead letters go to. Empty: the topic's name and `.dead`."}
    )
    expiry_backoff: str = field(
        default="",
        metadata={"doc": "How long a message waits after a lost lease, such as `exponential:1s:5m:0.5`. Empty: not."},
    )

    client_rate: int = field(
        default=0,
        metadata={"doc": "How many messages a second one client may create or change; 0 for no limit."},
    )

    compression: Compression = field(
        default=Compression.NONE,
        metadata={"doc": "`zstd`: clients compress bodies on their way in. `none`: they do not."},
    )

    share_bodies: bool = field(
        default=False,
        metadata={"doc": "Whether a body is stored once however many messages have it; where the storage can."},
    )

    expires: bool = field(
        default=False,
        metadata={"doc": "Messages are removed when their time comes, as replies are; nobody leases them."},
    )

    def check(self) -> None:
        """Raise INVALID_SETTING, naming the setting and its range, when a value is out of range."""
        ranges = {
            "buckets": (limits.BUCKETS_MIN, limits.BUCKETS_MAX),
            "max_future_ms": (0, limits.TS_MS_MAX),
            "max_lease_ms": (limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
            "max_body_bytes": (0, limits.LARGE_BODY_BYTES_MAX),
            "client_rate": (0, limits.CLIENT_RATE_MAX),
            "max_attempts": (0, limits.ATTEMPTS_MAX),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise error_of(Code.INVALID_SETTING, f"{name}={value!r} is not an integer from {low} to {high}")

        for name in ("journal", "share_bodies", "expires"):
            if not isinstance(getattr(self, name), bool):
                raise error_of(Code.INVALID_SETTING, f"{name}={getattr(self, name)!r} is not true or false")
        for name in ("dead_letter", "expiry_backoff"):
            if not isinstance(getattr(self, name), str):
                raise error_of(Code.INVALID_SETTING, f"{name}={getattr(self, name)!r} is not text")
        if self.dead_letter and _NAME.fullmatch(self.dead_letter) is None:
            raise error_of(Code.INVALID_SETTING, f"dead_letter={self.dead_letter[:140]!r} is not a topic name")
        if self.expiry_backoff:
            Backoff.parse(self.expiry_backoff)

    def as_dict(self) -> dict[str, int | str | bool]:
        """Plain values, for JSON."""
        return {name: str(v) if isinstance(v, StrEnum) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, int | str | bool]) -> TopicSettings:
        """The settings that `as_dict` wrote; unknown names are an error."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise error_of(Code.INVALID_SETTING, f"unknown setting {unknown[0]!r}; known: {', '.join(sorted(known))}")
        arguments = dict(values)
        for name, choices in _CHOICES.items():
            if name in arguments:
                try:
                    arguments[name] = choices(str(arguments[name]))
                except ValueError:
                    named = ", ".join(choices)
                    raise error_of(Code.INVALID_SETTING, f"{name}={arguments[name]!r} is none of {named}") from None
        settings = cls(**arguments)  # type: ignore[arg-type]
        settings.check()
        return settings

    @classmethod
    def from_record(cls, values: Mapping[str, int | str | bool]) -> tuple[TopicSettings, Newer]:
        """The settings of a record, which a newer release may have written, and what of them is not known here.

        A known setting with a value that is not known has its default, and is among what is not known.
        """
        defaults = cls().as_dict()
        newer = {name: value for name, value in values.items() if name not in defaults}
        known = {name: value for name, value in values.items() if name in defaults}
        for name, value in known.items():
            try:
                cls.from_dict({name: value})
            except DejaqError:
                newer[name] = value
        return cls.from_dict({n: v for n, v in known.items() if n not in newer}), tuple(sorted(newer.items()))


Newer = tuple[tuple[str, int | str | bool], ...]
_CHOICES: dict[str, type[Durability] | type[TopicKind] | type[Compression]] = {
    "durability": Durability,
    "kind": TopicKind,
    "compression": Compression,
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A named collection of messages. `number` is its short key in storage and is never used again."""

    name: str
    number: int
    settings: TopicSettings
    state: TopicState = TopicState.LIVE
    created_ms: int = 0
    # Settings that a newer release gave it and this one does not know; they stay with it.
    newer: Newer = ()

    @property
    def strange(self) -> str | None:
        """A setting with a value that this release does not know, so that it cannot serve the topic; or None."""
        known = {f.name for f in fields(TopicSettings)}
        return next((f"{name}={value}" for name, value in self.newer if name in known), None)

    def settings_record(self) -> dict[str, int | str | bool]:
        """The settings as they are kept: those that are known here, and the others as they came."""
        return self.settings.as_dict() | dict(self.newer)

    @property
    def by_priority(self) -> bool:
        """Whether of what is available the lowest priority is next, and not the earliest."""
        return self.settings.kind is TopicKind.PRIORITY

    @property
    def dead_letter_name(self) -> str:
        """The topic that its dead letters go to."""
        return self.settings.dead_letter or f"{self.name}.dead"

    def in_state(self, state: TopicState) -> Topic:
        """The same topic in another state."""
        return replace(self, state=state)


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC when `name` is not a topic name."""
    if _NAME.fullmatch(name) is None:
        raise error_of(Code.INVALID_TOPIC, f"{name[:140]!r} is not a topic name")
