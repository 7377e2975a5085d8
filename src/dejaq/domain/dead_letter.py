"""Dead letters: when a message is moved aside, under which id, and the headers that tell its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.domain.topic import TopicSettings
from dejaq.errors import Code, error_of

# Headers that begin so are the broker's: a move to or from a dead-letter topic writes or removes them.
PREFIX = "dejaq-dead-"
REASON, TOPIC, ID = PREFIX + "reason", PREFIX + "topic", PREFIX + "id"
ATTEMPTS, AT, DUE = PREFIX + "attempts", PREFIX + "at", PREFIX + "due"
FIRST_LEASE, LAST_LEASE, CONSUMER = PREFIX + "first-lease", PREFIX + "last-lease", PREFIX + "consumer"

# The reason of what was leased too often and never settled.
EXHAUSTED = "max_attempts"


@dataclass(frozen=True, slots=True)
class Death:
    """How a message came to be dead: times in UTC ms, 0 or empty where nothing is known."""

    topic: str
    reason: str
    attempts: int
    at: int
    due: int
    first_lease: int = 0
    last_lease: int = 0
    consumer: str = ""

    def headers(self, encoded: bytes, *, renamed_from: str = "") -> bytes:
        """The message's headers with its history; the history of an earlier death is replaced."""
        told = {
            REASON: self.reason,
            TOPIC: self.topic,
            ID: renamed_from,
            ATTEMPTS: str(self.attempts),
            AT: str(self.at),
            DUE: str(self.due),
            FIRST_LEASE: str(self.first_lease or ""),
            LAST_LEASE: str(self.last_lease or ""),
            CONSUMER: self.consumer,
        }
        return encode_headers(_own(encoded) | {name: value for name, value in told.items() if value})


def without_history(encoded: bytes) -> bytes:
    """The message's headers as they were before it died."""
    return encode_headers(_own(encoded)) if encoded else encoded


def id_before(message_id: str, encoded: bytes) -> str:
    """The id a dead letter had where it came from."""
    return decode_headers(encoded).get(ID, message_id) if encoded else message_id


def free_id(message_id: str, now: int, taken: Callable[[str], bool]) -> str:
    """The id that a dead letter gets: its own, or where that is taken, its own with the time it died."""
    if not taken(message_id):
        return message_id
    number = 1
    while True:
        suffix = f".{now}" if number == 1 else f".{now}-{number}"
        candidate = message_id[: limits.ID_CHARS_MAX - len(suffix)] + suffix
        if not taken(candidate):
            return candidate
        number += 1


def check_reason(reason: str) -> None:
    """Raise INVALID_ARGUMENT when a consumer's reason is empty or too long."""
    if not 1 <= len(reason) <= limits.REASON_CHARS_MAX:
        raise error_of(
            Code.INVALID_ARGUMENT, f"a reason has 1 to {limits.REASON_CHARS_MAX} characters, not {len(reason)}"
        )


def exhausted(attempts: int, max_attempts: int) -> bool:
    """Whether a message that has had so many leases may have no other."""
    return 0 < max_attempts <= attempts


def expiry_delay_ms(settings: TopicSettings, message_id: str, attempts: int) -> int:
    """How long a message waits behind the end of a lost lease; chance is drawn from its id, so that all agree."""
    if not settings.expiry_backoff:
        return 0
    chance = crc32(f"{message_id}:{attempts}".encode()) / 2**32
    return Backoff.parse(settings.expiry_backoff).delay_ms(attempts, chance)


def _own(encoded: bytes) -> dict[str, str]:
    return {name: value for name, value in decode_headers(encoded).items() if not name.startswith(PREFIX)}
