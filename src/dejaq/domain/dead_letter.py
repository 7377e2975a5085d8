"""Dead letters: when a message becomes a dead letter, under which id, and the headers with its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from traceback import format_exception
from zlib import crc32

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.domain.topic import TopicSettings
from dejaq.errors import Code, error_of

# The broker reserves headers with this prefix: a move to or from a dead-letter topic writes or removes them.
PREFIX = "dejaq-dead-"
REASON, TOPIC, ID = PREFIX + "reason", PREFIX + "topic", PREFIX + "id"
ERROR, TRACEBACK = PREFIX + "error", PREFIX + "traceback"
ATTEMPTS, AT, DUE = PREFIX + "attempts", PREFIX + "at", PREFIX + "due"
FIRST_LEASE, LAST_LEASE, CONSUMER = PREFIX + "first-lease", PREFIX + "last-lease", PREFIX + "consumer"

# The reason for a message that was leased too often.
EXHAUSTED = "max_attempts"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a message became a dead letter: a short reason for filters, and the consumer's last error, if any."""

    reason: str
    error: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, reason: str, error: BaseException | str | None = None) -> Cause:
        """A cause with the text and the traceback of an error, cut to their limits; raises INVALID_ARGUMENT."""
        check_reason(reason)
        if error is None:
            return cls(reason)
        if isinstance(error, str):
            return cls(reason, _readable(error)[: limits.ERROR_CHARS_MAX])
        # The end of a traceback is the part nearest to the error.
        trace = _readable("".join(format_exception(error)))[-limits.TRACEBACK_CHARS_MAX :]
        return cls(reason, _readable(f"{type(error).__name__}: {error}")[: limits.ERROR_CHARS_MAX], trace)

    def check(self) -> None:
        """Raise INVALID_ARGUMENT when a part is too long."""
        check_reason(self.reason)
        for name, text, most in (
            ("error", self.error, limits.ERROR_CHARS_MAX),
            ("traceback", self.traceback, limits.TRACEBACK_CHARS_MAX),
        ):
            if len(text) > most:
                raise error_of(Code.INVALID_ARGUMENT, f"the {name} has at most {most} characters, not {len(text)}")


EXHAUSTION = Cause(EXHAUSTED)


@dataclass(frozen=True, slots=True)
class DeadLetterHistory:
    """How a message became a dead letter: times in UTC ms; 0 or empty if unknown."""

    topic: str
    cause: Cause
    attempts: int
    at: int
    due: int
    first_lease: int = 0
    last_lease: int = 0
    consumer: str = ""

    def headers(self, encoded: bytes, *, renamed_from: str = "") -> bytes:
        """The message's headers with its history, which replaces any earlier history."""
        fields = {
            REASON: self.cause.reason,
            ERROR: self.cause.error,
            TRACEBACK: self.cause.traceback,
            TOPIC: self.topic,
            ID: renamed_from,
            ATTEMPTS: str(self.attempts),
            AT: str(self.at),
            DUE: str(self.due),
            FIRST_LEASE: str(self.first_lease or ""),
            LAST_LEASE: str(self.last_lease or ""),
            CONSUMER: self.consumer,
        }
        return encode_headers(_own(encoded) | {name: value for name, value in fields.items() if value})


def without_history(encoded: bytes) -> bytes:
    """The message's headers as they were before it became a dead letter."""
    return encode_headers(_own(encoded)) if encoded else encoded


def id_before(message_id: str, encoded: bytes) -> str:
    """The id that a dead letter had in its original topic."""
    return decode_headers(encoded).get(ID, message_id) if encoded else message_id


def free_id(message_id: str, now: int, taken: Callable[[str], bool]) -> str:
    """The id that a dead letter gets: its own, or, if that is taken, its own with the time of the move."""
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
    """Whether a message with this number of leases has had all its attempts."""
    return 0 < max_attempts <= attempts


def expiry_delay_ms(settings: TopicSettings, message_id: str, attempts: int) -> int:
    """How long a message waits after an expired lease; the random part depends on its id, so all brokers agree."""
    if not settings.expiry_backoff:
        return 0
    chance = crc32(f"{message_id}:{attempts}".encode()) / 2**32
    return Backoff.parse(settings.expiry_backoff).delay_ms(attempts, chance)


def _readable(text: str) -> str:
    """The text without characters that UTF-8 cannot represent."""
    return text.encode("utf-8", "replace").decode()


def _own(encoded: bytes) -> dict[str, str]:
    return {name: value for name, value in decode_headers(encoded).items() if not name.startswith(PREFIX)}
