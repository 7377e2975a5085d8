"""Taking a journal into a lake, as the commands of `dejaq pipeline` do and report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dejaq.cli.terminal.invocation import Invocation
from dejaq.cli.terminal.output import Output, iso
from dejaq.cli.terminal.progress import ProgressBar

if TYPE_CHECKING:
    from dejaq.pipeline.intake.ingest import Ingested
    from dejaq.pipeline.lake.commit import Commit
    from dejaq.pipeline.lake.gaps import Gap
    from dejaq.pipeline.lake.lake import Lake

GAPS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TakenIn:
    """How many events were taken in, and which records the lake still lacks."""

    events: int
    missing: Sequence[Gap]


@dataclass(frozen=True, slots=True)
class CurrentLake:
    """A lake that has everything that is in its journal."""

    address: str
    head: Commit
    missing: Sequence[Gap]


def current_lake(root: str, journal: Path) -> CurrentLake | None:
    """A lake of this machine to which nothing is to be added, found without Spark; None if there is work to do."""
    from dejaq.journal.extents import journal_extents
    from dejaq.pipeline.intake.segments import new_segments
    from dejaq.pipeline.lake.files import LocalFiles, local_path
    from dejaq.pipeline.lake.gaps import gaps
    from dejaq.pipeline.lake.lake import is_published, local_head

    path, head = local_path(root), local_head(root)
    if path is None or head is None or not head.version:
        return None
    extents = journal_extents(journal)
    files = LocalFiles(path)
    if new_segments(journal, dict(head.records)) or not is_published(head, files):
        return None
    return CurrentLake(files.address, head, gaps(head, extents))


def take_in(invocation: Invocation, lake: Lake, journal: Path, events_max: int, keep_ms: int | None = None) -> TakenIn:
    """Take in what is new, and report each batch."""
    from dejaq.journal.extents import journal_extents
    from dejaq.pipeline.intake.ingest import run
    from dejaq.pipeline.intake.segments import new_segments
    from dejaq.pipeline.lake.gaps import gaps

    # Read before the segments are listed: what a broker writes meanwhile is no gap.
    extents = journal_extents(journal)
    waiting = sum(segment.events for segment in new_segments(journal, dict(lake.head.records)))
    if not waiting and lake.is_published:
        return TakenIn(0, gaps(lake.head, extents))
    steps = ("checking", "events", "messages", "facts")
    with ProgressBar("taking in", waiting * len(steps), quiet=invocation.json) as progress:
        before: list[int] = []

        def step(what: str, events: int) -> None:
            progress.advance(sum(before), f"{what} of {events:,} events")
            before[:] = [events]

        done = 0
        for batch in run(lake, journal, events_max=events_max, step=step, keep_ms=keep_ms):
            done += batch.events
            _tell_batch(invocation.output, batch)
    return TakenIn(done, gaps(lake.head, extents))


def _tell_batch(output: Output, batch: Ingested) -> None:
    rate = batch.events / batch.seconds if batch.seconds else 0.0
    values = {
        "version": batch.version,
        "segments": batch.segments,
        "events": batch.events,
        "late": batch.late,
        "seconds": round(batch.seconds, 3),
        "events_per_s": round(rate),
    }
    late = ", out of order" if batch.late else ""
    output.record(
        values,
        f"commit {batch.version}: {batch.events:,} events of {batch.segments} segments in {batch.seconds:.1f} s "
        f"({rate:,.0f}/s){late}",
    )


def tell_state(output: Output, address: str, head: Commit, missing: Sequence[Gap], events: int) -> None:
    """Report what a lake has and lacks, after `events` were taken in."""
    newest = max(head.newest_ms.values(), default=0)
    by_origin: dict[str, list[list[int]]] = {}
    for gap in missing:
        by_origin.setdefault(gap.origin, []).append([gap.first, gap.last])
    values = {
        "lake": address,
        "version": head.version,
        "taken_in": events,
        "events": head.events,
        "newest": iso(newest) if newest else None,
        "gaps": by_origin,
        "dropped": sum(gap.records for gap in missing if gap.dropped),
    }
    ends = f", up to {iso(newest)}" if newest else ""
    output.record(values, f"the lake {address} has {head.events:,} events{ends}")
    warn_of(output, missing)


def warn_of(output: Output, missing: Sequence[Gap]) -> None:
    """Name the records that the lake lacks, and say what to do about it."""
    dropped = [gap for gap in missing if gap.dropped]
    absent = [gap for gap in missing if not gap.dropped]
    if dropped:
        output.note(
            f"warning: retention has dropped records before the lake took them in: {_listed(dropped)}; what happened "
            "to their messages is unknown. Keep the journal longer (journal_max_age, journal_max_bytes) or run the "
            "pipeline more often"
        )
    if absent:
        output.note(
            f"warning: the lake lacks records: {_listed(absent)}; they are taken in when their segments are in the "
            "journal's directory"
        )


def _listed(missing: Sequence[Gap]) -> str:
    more = f" and {len(missing) - GAPS_SHOWN} more" if len(missing) > GAPS_SHOWN else ""
    return ", ".join(map(str, missing[:GAPS_SHOWN])) + more
