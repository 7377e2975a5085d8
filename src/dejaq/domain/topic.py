"""A topic, its settings and its provisioning state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.bodies.packing import Compression
from dejaq.domain.naming.topic_name import valid_topic_name
from dejaq.errors import Code, DejaqError, error_of


class TopicStage(StrEnum):
    """A topic is created and deleted in steps that survive a crash; only a live topic takes messages."""

    CREATING = "creating"
    LIVE = "live"
    DELETING = "deleting"


class Durability(StrEnum):
    """When a change is acknowledged: after fsync, or after the write reached the operating system."""

    FSYNC = "fsync"
    RELAXED = "relaxed"


class TopicKind(StrEnum):
    """The order of delivery: by time, by priority, by time with messages from schedules; or a log, read by offsets."""

    TIMELINE = "timeline"
    PRIORITY = "priority"
    CRON = "cron"
    LOG = "log"


class Encryption(StrEnum):
    """What of a topic's messages is encrypted in the store."""

    NONE = "none"
    BODIES = "bodies"
    BODIES_AND_HEADERS = "bodies+headers"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic; every field has a safe default."""

    buckets: int = field(
        default=limits.BUCKETS_DEFAULT,
        metadata={"doc": "The number of buckets, over which messages are spread; it cannot be changed."},
    )
    max_future_ms: int = field(
        default=limits.FUTURE_MS_DEFAULT,
        metadata={"doc": "How far in the future a message may be due."},
    )
    max_lease_ms: int = field(
        default=limits.LEASE_MS_MAX, metadata={"doc": "The longest lease a consumer may ask for."}
    )
    max_body_bytes: int = field(
        default=limits.BODY_BYTES_MAX,
        metadata={"doc": "The largest body, up to 64 MiB; a body above 1 MiB is stored in parts."},
    )
    durability: Durability = field(
        default=Durability.FSYNC,
        metadata={
            "doc": "`fsync`: acknowledged after fsync. `relaxed`: before fsync; a power failure may lose the change."
        },
    )

    journal: bool = field(
        default=True,
        metadata={
            "doc": "Whether every change is written to the journal; without it the audit cannot check the topic."
        },
    )
    kind: TopicKind = field(
        default=TopicKind.TIMELINE,
        metadata={
            "doc": "`timeline`: the earliest message first. `priority`: the lowest available priority first. "
            "`cron`: schedules make its messages. `log`: messages are appended and read by offsets."
        },
    )

    max_attempts: int = field(
        default=0,
        metadata={"doc": "The number of leases before a message moves to the dead-letter topic. 0: no limit."},
    )
    dead_letter: str = field(
        default="", metadata={"doc": "The topic for dead letters. Empty: the topic's name with `.dead`."}
    )
    expiry_backoff: str = field(
        default="",
        metadata={
            "doc": "How long a message waits after an expired lease, such as `exponential:1s:5m:0.5`. Empty: no wait."
        },
    )

    client_rate: int = field(
        default=0,
        metadata={"doc": "The number of messages per second that one client may create or change; 0: no limit."},
    )

    compression: Compression = field(
        default=Compression.NONE,
        metadata={"doc": "`zstd`: clients compress bodies. `none`: they do not."},
    )

    share_bodies: bool = field(
        default=False,
        metadata={"doc": "Whether a body that several messages have is stored once, if the storage supports it."},
    )

    encryption: Encryption = field(
        default=Encryption.NONE,
        metadata={
            "doc": "`bodies`: the broker encrypts bodies in the store, with the keys of its setting `encryption_keys`. "
            "`bodies+headers`: the values of headers too. Ids, times and sizes stay readable. It cannot be changed."
        },
    )

    dedup_ms: int = field(
        default=0,
        metadata={
            "doc": "How long an own id stays taken, counted from its creation, also when its message is gone; at most "
            "30 days. 0: until its message is gone. It cannot be changed."
        },
    )
    max_dedup_ids: int = field(
        default=limits.DEDUP_IDS_DEFAULT,
        metadata={"doc": "The number of ids that are remembered for `dedup_ms`; a new id beyond is LIMIT_EXCEEDED."},
    )

    expires: bool = field(
        default=False,
        metadata={"doc": "Messages are discarded when their time comes, as replies are; they are never leased."},
    )

    keep_ms: int = field(default=0, metadata={"doc": "How long a log keeps a message. 0: without a limit of time."})
    keep_bytes: int = field(
        default=0,
        metadata={"doc": "How many bytes a log keeps, each bucket the same share. 0: without a limit of size."},
    )
    rollback_window_ms: int = field(
        default=0,
        metadata={
            "doc": "How long a batch of a log can be rolled back; committed readers get it after that. At most an hour."
        },
    )
    trim_read: bool = field(
        default=False, metadata={"doc": "Whether a log removes what every one of its groups has read."}
    )
    compact: bool = field(
        default=False,
        metadata={"doc": "Whether a log keeps only the latest message of each key. Only the embedded store does that."},
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
            "dedup_ms": (0, limits.DEDUP_MS_MAX),
            "max_dedup_ids": (1, limits.DEDUP_IDS_MAX),
            "keep_ms": (0, limits.TS_MS_MAX),
            "keep_bytes": (0, limits.LOG_KEEP_BYTES_MAX),
            "rollback_window_ms": (0, limits.LOG_ROLLBACK_MS_MAX),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise error_of(Code.INVALID_SETTING, f"{name}={value!r} is not an integer from {low} to {high}")

        for name in ("journal", "share_bodies", "expires", "trim_read", "compact"):
            if not isinstance(getattr(self, name), bool):
                raise error_of(Code.INVALID_SETTING, f"{name}={getattr(self, name)!r} is not true or false")
        for name in ("dead_letter", "expiry_backoff"):
            if not isinstance(getattr(self, name), str):
                raise error_of(Code.INVALID_SETTING, f"{name}={getattr(self, name)!r} is not text")
        if self.dead_letter and not valid_topic_name(self.dead_letter):
            raise error_of(Code.INVALID_SETTING, f"dead_letter={self.dead_letter[:140]!r} is not a topic name")
        if self.expiry_backoff:
            Backoff.parse(self.expiry_backoff)
        self._check_kind()

    def _check_kind(self) -> None:
        """Raise INVALID_SETTING for a setting that topics of this kind do not have."""
        of_logs = self.kind is TopicKind.LOG
        for name in _NOT_OF_LOGS if of_logs else _OF_LOGS:
            if getattr(self, name) != getattr(_DEFAULTS, name):
                kinds = "a log does not have" if of_logs else "only a log has"
                raise error_of(Code.INVALID_SETTING, f"{name}={getattr(self, name)}: {kinds} this setting")
        if self.compact and self.encryption is not Encryption.NONE:
            raise error_of(
                Code.INVALID_SETTING, "compact=True: the store cannot read the keys of the messages of an encrypted log"
            )

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
        """The settings of a record, which a newer release may have written, and those that this release does not know.

        A known setting with an unknown value gets its default and counts as unknown.
        """
        ours = cls.__dataclass_fields__
        newer = {name: value for name, value in values.items() if name not in ours}
        known = {name: value for name, value in values.items() if name in ours}
        with suppress(DejaqError):
            # The values are tried one by one only where there is one that this release does not know.
            return cls.from_dict(known), tuple(sorted(newer.items()))
        # A log has settings of its own, which are checked together with its kind.
        kind = {"kind": known["kind"]} if known.get("kind") in tuple(TopicKind) else {}
        for name, value in known.items():
            try:
                cls.from_dict(kind | {name: value})
            except DejaqError:
                newer[name] = value
        return cls.from_dict({n: v for n, v in known.items() if n not in newer}), tuple(sorted(newer.items()))


_OF_LOGS = ("keep_ms", "keep_bytes", "rollback_window_ms", "trim_read", "compact")
_NOT_OF_LOGS = (
    *("max_future_ms", "max_lease_ms", "durability", "max_attempts", "dead_letter", "expiry_backoff", "client_rate"),
    *("compression", "share_bodies", "dedup_ms", "max_dedup_ids", "expires"),
)
_DEFAULTS = TopicSettings()

# The settings that may change while a topic is in use. The others decide how its messages are stored or what its
# journal contains.
CHANGEABLE = (
    "max_future_ms",
    "max_lease_ms",
    "max_body_bytes",
    "max_attempts",
    "dead_letter",
    "expiry_backoff",
    "client_rate",
    "compression",
    "durability",
    "max_dedup_ids",
    *_OF_LOGS,
)


def changed_settings(settings: TopicSettings, values: Mapping[str, int | str | bool]) -> TopicSettings:
    """The settings with some of them changed; raises INVALID_SETTING for one that is fixed or out of range."""
    current = settings.as_dict()
    wanted = TopicSettings.from_dict(current | dict(values))
    for name, value in wanted.as_dict().items():
        if value != current[name] and name not in CHANGEABLE:
            raise error_of(
                Code.INVALID_SETTING,
                f"{name} is {current[name]} and is fixed when a topic is created; these can change: "
                f"{', '.join(CHANGEABLE)}. For another {name}, create another topic and forward the messages to it",
            )
    return wanted


# The name of the creator among the stored settings.
CREATOR = "creator"
# The name of a topic's keys among the settings of its record.
KEYS = "encryption_keys"
Newer = tuple[tuple[str, int | str | bool], ...]
_CHOICES: dict[str, type[Durability] | type[TopicKind] | type[Compression] | type[Encryption]] = {
    "durability": Durability,
    "encryption": Encryption,
    "kind": TopicKind,
    "compression": Compression,
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A named collection of messages. `number` is its short key in storage and is never used again."""

    name: str
    number: int
    settings: TopicSettings
    state: TopicStage = TopicStage.LIVE
    created_ms: int = 0
    # Settings of a newer release that this release does not know; they are kept.
    newer: Newer = ()
    # The user or the key that created it, as rules name it, which has every right on it; empty for nobody.
    creator: str = ""
    # The wrapped keys of an encrypted topic, in the record of the store only (`storage.encrypted.topic_keys`).
    keys: str = ""

    def __hash__(self) -> int:
        # Topics are compared with all their settings, but a hash of all settings costs as much as a small call.
        return hash(self.number)

    @property
    def unsupported_setting(self) -> str | None:
        """A setting with a value that this release does not know, so that it cannot serve the topic; or None."""
        if not self.newer:
            return None
        known = {f.name for f in fields(TopicSettings)}
        return next((f"{name}={value}" for name, value in self.newer if name in known), None)

    def settings_record(self) -> dict[str, int | str | bool]:
        """The settings as they are stored: the known ones, and the unknown ones without a change.

        The creator and the keys are stored with them, because an earlier release keeps settings that it does not know.
        """
        more = {name: value for name, value in ((CREATOR, self.creator), (KEYS, self.keys)) if value}
        return self.settings.as_dict() | dict(self.newer) | more

    @property
    def by_priority(self) -> bool:
        """Whether the available message with the lowest priority is next, and not the earliest."""
        return self.settings.kind is TopicKind.PRIORITY

    @property
    def is_log(self) -> bool:
        """Whether its messages are read by offsets."""
        return self.settings.kind is TopicKind.LOG

    @property
    def dead_letter_name(self) -> str:
        """The topic for its dead letters."""
        return self.settings.dead_letter or f"{self.name}.dead"

    def in_state(self, state: TopicStage) -> Topic:
        """The same topic in another state."""
        return replace(self, state=state)
