"""How long a message waits before its next attempt: pure, shared by the worker and by a topic's default.

A policy has a text form for settings and commands: `fixed:5s`, `exponential:1s:5m`; these may be followed by the
random share of the wait, and the factor: `exponential:1s:5m:0.5:3`. Lengths are written as 250ms, 5s, 1h30m or 1d.
"""

from __future__ import annotations

from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.durations import parse_length_ms
from dejaq.errors import Code, error_of

_FORMS = "write `fixed:5s`, `exponential:1s:5m` or `exponential:1s:5m:0.5`"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits from `first_ms`, multiplied by `factor` with every attempt, up to `longest_ms`.

    `jitter` is the random share of each wait, from 0 to 1, so that messages that failed together are not all due
    together.
    """

    first_ms: int
    longest_ms: int
    factor: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.first_ms <= self.longest_ms <= limits.BACKOFF_MS_MAX:
            raise _invalid(
                f"its waits are {self.first_ms} to {self.longest_ms} ms, and must rise within 0 to "
                f"{limits.BACKOFF_MS_MAX}"
            )
        if not 1 <= self.factor <= limits.BACKOFF_FACTOR_MAX:
            raise _invalid(f"its factor is {self.factor:g}, and must be from 1 to {limits.BACKOFF_FACTOR_MAX}")
        if not 0 <= self.jitter <= 1:
            raise _invalid(f"its jitter is {self.jitter:g}, and must be from 0 to 1")

    @classmethod
    def fixed(cls, seconds: float, *, jitter: float = 0.0) -> Backoff:
        """The same wait every time."""
        return cls(_ms(seconds), _ms(seconds), factor=1.0, jitter=jitter)

    @classmethod
    def exponential(
        cls, first: float = 1.0, longest: float = 300.0, *, factor: float = 2.0, jitter: float = 0.5
    ) -> Backoff:
        """Waits of `first` seconds that grow by `factor` up to `longest`."""
        return cls(_ms(first), _ms(longest), factor=factor, jitter=jitter)

    def delay_ms(self, attempts: int, chance: float) -> int:
        """The wait after this number of attempts (1 or more); `chance` is a random number from 0 to 1."""
        longest = float(self.longest_ms)
        try:
            wait = min(self.first_ms * self.factor ** max(attempts - 1, 0), longest)
        except OverflowError:
            wait = longest
        return round(wait * (1 - self.jitter * chance))

    @classmethod
    def parse(cls, text: str) -> Backoff:
        """The policy that a text describes; raises INVALID_SETTING, with the valid forms, for any other text."""
        kind, _, rest = text.partition(":")
        parts = rest.split(":")
        if kind == "fixed" and len(parts) in (1, 2):
            wait = _length(parts[0], text)
            return cls(wait, wait, factor=1.0, jitter=_number(parts, 1, text))
        if kind == "exponential" and len(parts) in (2, 3, 4):
            return cls(
                _length(parts[0], text),
                _length(parts[1], text),
                jitter=_number(parts, 2, text),
                factor=2.0 if len(parts) < 4 else _number(parts, 3, text),
            )
        raise _invalid(f"{text!r} is none; {_FORMS}")

    def __str__(self) -> str:
        if self.factor == 1.0 and self.first_ms == self.longest_ms:
            return f"fixed:{self.first_ms}ms" + (f":{self.jitter!r}" if self.jitter else "")
        return f"exponential:{self.first_ms}ms:{self.longest_ms}ms:{self.jitter!r}:{self.factor!r}"


def _ms(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise _invalid(f"{seconds!r} is not a wait in seconds")
    return round(seconds * 1_000)


def _length(text: str, whole: str) -> int:
    ms = parse_length_ms(text)
    if ms is None:
        raise _invalid(f"{text!r} in {whole!r} is not a length of time; {_FORMS}")
    return ms


def _number(parts: list[str], place: int, whole: str) -> float:
    if place >= len(parts):
        return 0.0
    try:
        return float(parts[place])
    except ValueError:
        raise _invalid(f"{parts[place]!r} in {whole!r} is not a number; {_FORMS}") from None


def _invalid(why: str) -> Exception:
    return error_of(Code.INVALID_SETTING, f"not a back-off policy: {why}")
