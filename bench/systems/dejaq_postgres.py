"""DejaQ on PostgreSQL: a broker and a server of its own, with the settings that the plain table's server has."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.systems.base import System
from bench.systems.dejaq_broker import BUCKETS, DejaqClient, DejaqServer, create_topic
from bench.systems.postgres_server import PostgresServer, postgres_missing, postgres_version

NATURAL = frozenset({"reminders", "falling_due", "single_sends", "by_id"})
GENERATED = frozenset({"generated_ids"})


class DejaqPostgresServer(DejaqServer):
    """A broker whose store is a PostgreSQL server; the CPU time and the memory of both count."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.postgres = PostgresServer(folder)

    def command(self) -> Sequence[str]:
        return [*super().command(), "--storage", self.postgres.address]

    def start(self) -> None:
        self.postgres.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self.postgres.stop()

    def discard(self) -> None:
        """Remove the data of the PostgreSQL server."""
        self.postgres.discard()

    @property
    def pids(self) -> Sequence[int]:
        return [self.pid, self.postgres.pid]

    def fsyncs(self) -> int | None:
        """Unknown: the server syncs."""
        return None


def _generated(address: str) -> DejaqClient:
    return DejaqClient(address, natural=False)


def _natural(address: str) -> DejaqClient:
    return DejaqClient(address, natural=True)


def system(name: str, *, natural: bool) -> System:
    """DejaQ on PostgreSQL with generated or with natural ids."""
    return System(
        name=name,
        durable=True,
        server=DejaqPostgresServer,
        client=_natural if natural else _generated,
        version=lambda: f"{version('dejaq-mq')}, PostgreSQL {postgres_version()}",
        missing=postgres_missing,
        benches=NATURAL if natural else GENERATED,
        settings={
            "server": f"PostgreSQL store, fsync and synchronous_commit on, shared_buffers 512MB, journal, {BUCKETS} "
            "buckets; CPU and memory of broker and server together",
            "client": "SDK, send_batch of 1000, 8 in flight; batches(1000), 8 deletes in flight",
            "ids": "natural" if natural else "generated",
        },
        changes=("cancel", "move", "edit"),
        buckets=create_topic,
    )
