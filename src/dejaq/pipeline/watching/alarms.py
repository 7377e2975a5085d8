"""Alarms: conditions that began or ended, each sent to every receiver at least once, with an id that does not change.

The state is a file below the lake. A notice is in the file before it is sent, and leaves it when every receiver has it;
so a pipeline that was killed in between sends it again under the same id.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dejaq.errors import PipelineError
from dejaq.pipeline.lake.files import Files
from dejaq.pipeline.reporting.results import FORMAT, RESULTS
from dejaq.pipeline.watching.conditions import Condition

log = logging.getLogger(__name__)
FIRING, RESOLVED = "firing", "resolved"
# What cannot be delivered for long is forgotten, the oldest first.
UNSENT_MAX = 1_000
RECENT_MAX = 100
# A condition ends when it was not found for so long.
QUIET_MS = 60_000


@dataclass(slots=True)
class Notice:
    """What a receiver gets of an alarm."""

    id: str
    state: str
    kind: str
    subject: str
    text: str
    at_ms: int
    # The receivers that have it.
    sent: list[str] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        """The notice as receivers get it."""
        return {name: value for name, value in asdict(self).items() if name != "sent"}


Receiver = Callable[[Notice], None]


@dataclass(slots=True)
class _Firing:
    since_ms: int
    seen_ms: int
    text: str


class AlarmState:
    """The alarms of a lake."""

    def __init__(self, files: Files, receivers: Mapping[str, Receiver]) -> None:
        self._files, self._receivers = files, receivers
        self._name = f"{RESULTS}/alarms.json"
        self._firing: dict[str, _Firing] = {}
        self._unsent: list[Notice] = []
        self._recent: list[Notice] = []
        self._read()

    @property
    def firing(self) -> Mapping[str, int]:
        """Since when each alarm is firing."""
        return {name: one.since_ms for name, one in self._firing.items()}

    def update(self, found: Sequence[Condition], now_ms: int) -> None:
        """Begin and end alarms by the conditions that hold now, and send what is to be sent."""
        changed = False
        for condition in found:
            if condition.name in self._firing:
                self._firing[condition.name].seen_ms = now_ms
                continue
            self._firing[condition.name] = _Firing(now_ms, now_ms, condition.text)
            self._tell(FIRING, condition.name, condition.text, now_ms, now_ms)
            changed = True
        names = {condition.name for condition in found}
        for name, one in list(self._firing.items()):
            if name not in names and now_ms - one.seen_ms >= QUIET_MS:
                del self._firing[name]
                self._tell(RESOLVED, name, one.text, one.since_ms, now_ms)
                changed = True
        if changed:
            self._write(now_ms)
        if self._send():
            self._write(now_ms)

    def _tell(self, state: str, name: str, text: str, since_ms: int, at_ms: int) -> None:
        kind, _, subject = name.partition("/")
        # The same id whenever the notice is sent; a topic takes each id once.
        digest = hashlib.sha256(f"{name}/{since_ms}/{state}".encode()).hexdigest()[:24]
        notice = Notice(f"alarm-{digest}", state, kind, subject, text, at_ms)
        self._unsent = [*self._unsent, notice][-UNSENT_MAX:]
        self._recent = [*self._recent, notice][-RECENT_MAX:]

    def _send(self) -> bool:
        """Send what receivers do not have yet; whether any got something."""
        before = sum(len(notice.sent) for notice in self._unsent)
        for name, receiver in self._receivers.items():
            for notice in self._unsent:
                if name in notice.sent:
                    continue
                try:
                    receiver(notice)
                except Exception as error:  # noqa: BLE001
                    # Whatever a receiver raises, the lake must be kept current; it is tried again at the next look.
                    log.warning("an alarm was not sent to %s: %s", name, error)
                    break
                notice.sent.append(name)
        after = sum(len(notice.sent) for notice in self._unsent)
        self._unsent = [notice for notice in self._unsent if set(notice.sent) < set(self._receivers)]
        return after > before

    def _read(self) -> None:
        try:
            values = json.loads(self._files.read(self._name))
            if values["format"] != FORMAT:
                return
            self._firing = {name: _Firing(**one) for name, one in values["firing"].items()}
            self._unsent = [Notice(**one) for one in values["unsent"]]
            self._recent = [Notice(**one) for one in values["recent"]]
        except (PipelineError, OSError, ValueError, KeyError, TypeError):
            # There is none yet, or it is damaged: conditions that still hold are reported again.
            return

    def _write(self, now_ms: int) -> None:
        content = {
            "format": FORMAT,
            "made_ms": now_ms,
            "firing": {name: asdict(one) for name, one in self._firing.items()},
            "unsent": [asdict(notice) for notice in self._unsent],
            "recent": [asdict(notice) for notice in self._recent],
        }
        self._files.make(RESULTS)
        self._files.put(self._name, json.dumps(content, indent=1).encode() + b"\n")
