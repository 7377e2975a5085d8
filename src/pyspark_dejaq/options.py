"""The options of format `dejaq`: checked once, on the driver, with an error that says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote, urlparse

from dejaq import limits
from dejaq.domain.message import Status
from dejaq.sdk.session.address import parse_url

TS_END = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"-?[0-9]{1,30}")
OPERATIONS = ("create", "move", "cancel")
MODES = ("failfast", "collect")
CONTENTS = ("events", "segments")
KNOWN = frozenset(
    {
        "dejaq.url",
        "subscribe",
        "topic",
        "group",
        "startingtimestamp",
        "endingtimestamp",
        "statuses",
        "ids",
        "includebody",
        "minpartitions",
        "operation",
        "mode",
        "badrowspath",
        "outcomespath",
        "timeout",
        "journal",
        "content",
        "startingoffsets",
        "endingoffsets",
        "maxoffsetspertrigger",
        "failondataloss",
        # Spark's own options, which it passes along.
        "path",
        "checkpointlocation",
        "queryname",
    }
)


class OptionError(ValueError):
    """An option is missing, unknown or has an invalid value."""


@dataclass(frozen=True)
class Options:
    """The options of a query."""

    # One URL for each broker.
    urls: tuple[str, ...] = ()
    subscribe: str = ""
    topic: str = ""
    group: str = "spark"
    start: int = 0
    end: int = TS_END
    statuses: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    include_body: bool = True
    min_partitions: int = 8
    operation: str = "create"
    mode: str = "failfast"
    bad_rows_path: str = ""
    outcomes_path: str = ""
    timeout: float = 60.0
    journal: str = ""
    # What a stream of the journal has one row for.
    content: str = "events"
    # "earliest", "latest", or for each origin the last sequence before the first one to read.
    starting_offsets: str | dict[str, int] = "earliest"
    # Of a log: "latest", or for each bucket the offset before which to end.
    ending_offsets: str | dict[str, int] = "latest"
    max_per_trigger: int = 0
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """The options from Spark, which passes their names in lower case."""
        values = {key.lower(): str(value) for key, value in given.items()}
        unknown = sorted(set(values) - KNOWN)
        if "via" in unknown:
            raise OptionError(
                "format dejaq has no option 'via', since a Python data source cannot return files; for an export, "
                "call pyspark_dejaq.exporting.export(spark, url, topic, directory)"
            )
        if unknown:
            raise OptionError(f"option {unknown[0]!r} is unknown to format dejaq; known: {', '.join(sorted(KNOWN))}")
        statuses = _listed(values, "statuses")
        for status in statuses:
            if status not in set(Status):
                raise OptionError(f"statuses={status!r} is not one of {', '.join(Status)}")
        return cls(
            urls=parse_url(values["dejaq.url"]).urls if "dejaq.url" in values else (),
            subscribe=values.get("subscribe", ""),
            topic=values.get("topic", ""),
            group=values.get("group", cls.group),
            start=_time(values, "startingTimestamp", 0),
            end=_time(values, "endingTimestamp", TS_END),
            statuses=statuses,
            ids=_listed(values, "ids"),
            include_body=_flag(values, "includeBody", default=True),
            min_partitions=_number(values, "minPartitions", cls.min_partitions, low=1, high=limits.BUCKETS_MAX),
            operation=_choice(values, "operation", OPERATIONS),
            mode=_choice(values, "mode", MODES),
            bad_rows_path=_directory(values, "badRowsPath"),
            outcomes_path=_directory(values, "outcomesPath"),
            timeout=float(_number(values, "timeout", 60, low=1, high=3_600)),
            journal=values.get("journal", ""),
            content=_choice(values, "content", CONTENTS),
            starting_offsets=_offsets(values, "startingOffsets", "earliest"),
            ending_offsets=_ending(values),
            max_per_trigger=_number(values, "maxOffsetsPerTrigger", 0, low=0, high=2**62),
            fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
        )

    def need(self, name: str) -> str:
        """The value of an option that this use requires."""
        value = self.urls[0] if name == "dejaq.url" and self.urls else getattr(self, _field(name), "")
        if not value:
            raise OptionError(f"format dejaq needs .option({name!r}, ...) here")
        return str(value)


def _field(name: str) -> str:
    """The field that an option sets: badRowsPath sets bad_rows_path."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _directory(values: Mapping[str, str], name: str) -> str:
    """A directory that every executor can write: a path, or an address that begins with `file:`."""
    text = values.get(name.lower(), "")
    parts = urlparse(text)
    if parts.scheme not in ("", "file"):
        raise OptionError(f"{name}={text!r} is not a path of the executors' machines; mount it there")
    return unquote(parts.path) if parts.scheme else text


def _listed(values: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The entries of a list that is separated by commas, without repetitions."""
    parts = (part.strip() for part in values.get(name, "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _offsets(values: Mapping[str, str], name: str, default: str) -> str | dict[str, int]:
    text = values.get(name.lower(), default)
    if text in ("earliest", "latest"):
        return text
    try:
        given = json.loads(text)
        return {str(origin): int(sequence) for origin, sequence in given.items()}
    except (ValueError, TypeError, AttributeError):
        form = '{"origin": sequence, ...}, or {"bucket": offset, ...} for a log'
        raise OptionError(f"{name}={text!r} is not earliest, latest or {form}") from None


def _ending(values: Mapping[str, str]) -> str | dict[str, int]:
    found = _offsets(values, "endingOffsets", "latest")
    if found == "earliest":
        raise OptionError("endingOffsets='earliest' would read nothing; give latest or offsets")
    return found


def _time(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        if _NUMBER.fullmatch(text):
            at = int(text)
        else:
            moment = datetime.fromisoformat(text)
            at = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise OptionError(f"{name}={text!r} is neither epoch milliseconds nor an ISO 8601 time") from None
    if not -TS_END <= at <= TS_END:
        raise OptionError(f"{name}={text!r} is beyond every time that a message may have")
    return at


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name.lower(), str(default)).lower()
    if text not in {"true", "false"}:
        raise OptionError(f"{name}={text!r} is not true or false")
    return text == "true"


def _number(values: Mapping[str, str], name: str, default: int, *, low: int, high: int) -> int:
    text = values.get(name.lower(), str(default))
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise OptionError(f"{name}={text!r} is not a whole number from {low} to {high}")
    return int(text)


def _choice(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = values.get(name.lower(), choices[0])
    if text not in choices:
        raise OptionError(f"{name}={text!r} is not one of {', '.join(choices)}")
    return text
