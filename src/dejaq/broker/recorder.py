"""The broker's journal: whether there is one, where, and its exporter from start to stop."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dejaq.broker import metrics as specs
from dejaq.broker.doctor import Doctor
from dejaq.broker.metrics import Labels, Metrics
from dejaq.config import JOURNAL_OFF, BrokerConfig
from dejaq.errors import Code, error_of
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    from dejaq.journal.exporter import Exporter

log = logging.getLogger(__name__)

# What the segments are written and signed with: the extra `pipeline`.
NEEDED = ("numpy", "pyarrow", "cryptography")


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """Where the journal goes; without a directory there is none, and `note` says why."""

    directory: Path | None
    note: str = ""


def journal_place(config: BrokerConfig) -> JournalPlace:
    """Where a config wants the journal, on this machine."""
    if config.journal == JOURNAL_OFF:
        return JournalPlace(None, "the journal is off")
    if config.data is None:
        why = "messages live in memory only" if config.storage is None else "its files need a directory, given as data"
        return JournalPlace(None, f"the journal is off: {why}")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        return JournalPlace(Path(config.journal or Path(config.data) / "journal"))
    needs = f"it needs {' and '.join(missing)}, which dejaq-mq[pipeline] installs"
    if config.journal is not None:
        raise error_of(Code.INVALID_ARGUMENT, f"journal={config.journal!r} cannot be written: {needs}")
    return JournalPlace(None, f"the journal is off: {needs}")


class Recorder:
    """Runs the exporter of one broker, if it has a journal."""

    def __init__(
        self, *, config: BrokerConfig, storage: Storage, clock: Clock, doctor: Doctor, metrics: Metrics
    ) -> None:
        self._config = config
        self._storage = storage
        self._clock = clock
        self._doctor = doctor
        self._metrics = metrics
        self.place = journal_place(config)
        self._exporter: Exporter | None = None
        metrics.gauge(specs.JOURNAL_LAG, self._lag)
        metrics.gauge(specs.JOURNAL_SEGMENTS, lambda: self._figure("segments"))
        metrics.gauge(specs.JOURNAL_BYTES, lambda: self._figure("segment_bytes"))

    async def start(self) -> None:
        """Go on with the journal where it ended; raises when its directory is not to be used."""
        config, directory = self._config, self.place.directory
        if directory is None or config.data is None:
            log.info("%s", self.place.note)
            return
        from dejaq.journal.exporter import Exporter
        from dejaq.journal.retention import RetentionPolicy

        exporter = Exporter(
            storage=self._storage,
            clock=self._clock,
            directory=directory,
            home=Path(config.data),
            interval_ms=config.journal_interval_ms,
            policy=RetentionPolicy(age_ms_max=config.journal_max_age * 1_000, bytes_max=config.journal_max_bytes),
            on_problem=lambda sentence: self._doctor.report("journal", sentence),
            on_exported=lambda events: self._metrics.add(specs.JOURNAL_EVENTS, events),
        )
        try:
            await exporter.start()
        except OSError as cause:
            raise error_of(
                Code.STORE_FAILED, f"the journal cannot be kept in {directory}", details=str(cause)
            ) from None
        self._exporter = exporter

    async def stop(self) -> None:
        """Export the rest."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            await exporter.stop()

    def held(self) -> AbstractAsyncContextManager[None]:
        """A block in which nothing is exported."""
        return self._exporter.held() if self._exporter is not None else nullcontext()

    def _lag(self) -> Mapping[Labels, float]:
        if self._exporter is None:
            return {}
        records, size = self._exporter.lag()
        return {("records",): records, ("bytes",): size}

    def _figure(self, name: str) -> Mapping[Labels, float]:
        return {(): float(getattr(self._exporter.figures, name))} if self._exporter is not None else {}
