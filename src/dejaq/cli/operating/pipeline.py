"""`dejaq pipeline`: updates the lake and runs jobs on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.operating.ingestion import current_lake, take_in, tell_state, warn_of
from dejaq.cli.operating.pipeline_options import (
    LakeSession,
    Watching,
    batch_option,
    fresh_option,
    job_options,
    journal_option,
    keep_option,
    lake_options,
    settle_option,
    topic_option,
    watch_options,
)
from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.progress import ProgressBar
from dejaq.cli.terminal.times import SECONDS

if TYPE_CHECKING:
    from dejaq.pipeline.lake.gaps import Gap
    from dejaq.pipeline.lake.lake import Lake
    from dejaq.pipeline.reporting.findings import Findings
    from dejaq.pipeline.spark.snapshot import TableSnapshot
    from dejaq.sdk.admin.cluster import ClusterInfo
    from dejaq.sdk.client import Client

ROWS_SHOWN = 20


@click.group(cls=Group)
def pipeline() -> None:
    """Store every message's life in a lake, with Spark, and run jobs on it: audit, accuracy, forecast and more."""


@contextmanager
def _opened(invocation: Invocation, where: LakeSession, *, journal: Path | None = None) -> Iterator[Lake]:
    """The lake, on a Spark session that ends with the command; with a journal to fill it from, it may be new."""
    from dejaq.pipeline.spark.session import EVENTS_FEW, cache_directory, session

    brief = _work(where.lake, journal) <= EVENTS_FEW
    invocation.output.note("starting Spark")
    log = None if invocation.debug else cache_directory() / "spark.log"
    with session(where.master, settings=where.settings, brief=brief, log=log) as spark:
        from dejaq.pipeline.lake.lake import Lake

        yield Lake(spark, where.lake) if journal is not None else Lake.existing(spark, where.lake)


def _work(lake: str, journal: Path | None) -> int:
    """About how many events there are to read. A missing journal is reported before Spark is started."""
    from dejaq.pipeline.intake.segments import new_segments
    from dejaq.pipeline.lake.lake import local_head, no_lake

    head = local_head(lake)
    if journal is not None:
        return sum(segment.events for segment in new_segments(journal, dict(head.records) if head else {}))
    if head is not None and not head.version:
        raise no_lake(lake)
    return head.events if head is not None else 0


# The lake itself


@pipeline.command()
@journal_option
@lake_options
@batch_option
@keep_option
@pass_invocation
def run(invocation: Invocation, journal: str, where: LakeSession, batch_events: int, keep: float | None) -> None:
    """Add every segment that is not yet in the lake, once. Spark is started only if there is one."""
    from dejaq.pipeline.intake.segments import journal_directory

    directory = journal_directory(journal)
    if (found := current_lake(where.lake, directory)) is not None:
        tell_state(invocation.output, found.address, found.head, found.missing, 0)
        return
    with _opened(invocation, where, journal=directory) as opened:
        taken = take_in(invocation, opened, directory, batch_events, _ms(keep))
        tell_state(invocation.output, opened.files.address, opened.head, taken.missing, taken.events)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


@pipeline.command()
@journal_option
@lake_options
@batch_option
@watch_options
@keep_option
@pass_invocation
def watch(
    invocation: Invocation,
    journal: str,
    where: LakeSession,
    batch_events: int,
    watching: Watching,
    keep: float | None,
) -> None:
    """Add new segments continuously, and report what is wrong, until Ctrl-C."""
    from dejaq.cli.operating.watching import watch_lake
    from dejaq.pipeline.intake.segments import journal_directory

    directory = journal_directory(journal)
    with _opened(invocation, where, journal=directory) as opened:
        watch_lake(invocation, opened, directory, watching, events_max=batch_events, keep_ms=_ms(keep))


@pipeline.command()
@click.argument("topic")
@lake_options
@click.option("--interval", type=SECONDS, help="Continue until Ctrl-C, and look for new messages so often.")
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="With --interval: stop after N looks.")
@click.option("--allow-loss", is_flag=True, help="Continue where retention removed messages that the lake lacks.")
@pass_invocation
def keep(
    invocation: Invocation, topic: str, where: LakeSession, interval: float | None, times: int | None, allow_loss: bool
) -> None:
    """Keep the messages of a log topic in the lake, by offset, exactly once."""
    from dejaq.pipeline.intake.logs import keep_log
    from dejaq.pipeline.lake.lake import Lake
    from dejaq.pipeline.spark.session import cache_directory, session

    invocation.output.note("starting Spark")
    log = None if invocation.debug else cache_directory() / "spark.log"
    with session(where.master, settings=where.settings, brief=True, log=log) as spark:
        lake = Lake(spark, where.lake)
        looks = 0
        with suppress(KeyboardInterrupt):
            while True:
                for kept in keep_log(lake, invocation.url, topic, allow_loss=allow_loss):
                    line = f"commit {kept.version}: {kept.messages:,} messages of {topic} in {kept.seconds:.1f} s"
                    invocation.output.record(asdict(kept), line)
                looks += 1
                if interval is None or looks == times:
                    break
                time.sleep(interval)


@pipeline.command()
@lake_options
@pass_invocation
def compact(invocation: Invocation, where: LakeSession) -> None:
    """Rewrite partitions that consist of many small files as a few large ones."""
    from dejaq.pipeline.lake.compaction import compact as compact_lake
    from dejaq.pipeline.spark.failures import explained

    with _opened(invocation, where) as opened, opened.writing(), explained():
        done = compact_lake(opened)
        rows = [{"table": one.table, "partitions": one.partitions, "files": one.files} for one in done]
        invocation.output.table(
            rows,
            ("table", "partitions", "files"),
            numbers=("partitions", "files"),
            empty="nothing to compact",
        )


# The jobs


@pipeline.command()
@job_options
@click.option("--slo-ms", type=float, default=100.0, show_default=True, help="The lateness that 99 % may not exceed.")
@pass_invocation
def accuracy(
    invocation: Invocation, where: LakeSession, topics: Sequence[str], plot: Path | None, slo_ms: float
) -> None:
    """Show how long after its time user code received each message: percentiles by topic and hour, and SLO breaches."""
    from dejaq.pipeline.reporting import findings

    with _opened(invocation, where) as opened:
        _tell(invocation, opened, findings.accuracy(opened, topics=topics, slo_ms=slo_ms), plot, topics)


@pipeline.command()
@job_options
@click.option("--live", is_flag=True, help="Compare with the live timeline of the broker at --url.")
@click.option("--snapshot", metavar="PATH", help="Compare with a snapshot stored as Parquet (topic, id).")
@click.option("--taken-ms", type=int, help="When that snapshot was taken, in epoch ms. Default: now.")
@fresh_option
@settle_option
@pass_invocation
def audit(
    invocation: Invocation,
    where: LakeSession,
    topics: Sequence[str],
    plot: Path | None,
    live: bool,
    snapshot: str | None,
    taken_ms: int | None,
    journal: str | None,
    settle: float,
) -> int:
    """Check that created = deleted + cancelled + dead-lettered + pending, by id; the exit code is 1 if it is not.

    If records of the journal are missing in the lake, the verdict is incomplete, and the exit code is 1.
    """
    if live and snapshot is not None:
        raise click.UsageError("Give one of --live and --snapshot.")
    from dejaq.pipeline.intake.segments import journal_directory

    directory = None if journal is None else journal_directory(journal)
    with _opened(invocation, where, journal=directory) as opened:
        taken = _snapshot(invocation, opened, topics, live=live, path=snapshot, taken_ms=taken_ms)
        found = _settled(invocation, opened, taken, directory, topics, settle)
        _tell(invocation, opened, found, plot, topics)
    if taken is None:
        invocation.output.note("not compared with a live timeline; --live or --snapshot does that")
    return 1 if found.failed else 0


def _snapshot(
    invocation: Invocation, lake: Lake, topics: Sequence[str], *, live: bool, path: str | None, taken_ms: int | None
) -> TableSnapshot | None:
    from dejaq.pipeline.spark import snapshot as snapshots

    if path is not None:
        now_ms = int(time.time() * 1000)
        return snapshots.from_parquet(lake.spark, path, now_ms if taken_ms is None else taken_ms)
    if not live:
        return None

    async def asked(client: Client) -> ClusterInfo:
        return await client.info()

    info = invocation.run(asked)
    wanted = [topic for topic in info.topics if not topics or topic.name in topics]
    for note in {note for broker in info.brokers for note in broker.notes}:
        invocation.output.note(f"the broker says: {note}")
    return snapshots.from_broker(
        lake.spark,
        invocation.url,
        [topic.name for topic in wanted if topic.settings.journal],
        silent=[topic.name for topic in wanted if not topic.settings.journal],
    )


def _settled(
    invocation: Invocation,
    lake: Lake,
    taken: TableSnapshot | None,
    journal: Path | None,
    topics: Sequence[str],
    seconds: float,
) -> Findings:
    """The audit when the journal has reached the snapshot; whatever is then missing is reported."""
    from dejaq.pipeline.intake.ingest import EVENTS_MAX_DEFAULT
    from dejaq.pipeline.lake.gaps import gaps
    from dejaq.pipeline.reporting import findings

    deadline = time.monotonic() + seconds
    while True:
        # The last look at the journal, not the end of the audit, must be behind the deadline: an audit may take long.
        looked = time.monotonic()
        missing: Sequence[Gap] = gaps(lake.head)
        if journal is not None:
            missing = take_in(invocation, lake, journal, EVENTS_MAX_DEFAULT).missing
        found = findings.audit(lake, taken, topics=topics, missing=missing)
        if not found.failed or journal is None or taken is None or looked >= deadline:
            warn_of(invocation.output, missing)
            return found
        invocation.output.note("not balanced yet; waiting until the journal has reached the timeline")
        time.sleep(1.0)


@pipeline.command()
@job_options
@click.option("--hours", type=click.IntRange(1, 168), default=6, show_default=True, help="How far to look ahead.")
@click.option("--lateness-ms", type=float, default=100.0, show_default=True, help="The lateness that is wanted.")
@click.option("--service-ms", type=float, help="The time that a consumer needs per message. Default: as measured.")
@click.option("--live", is_flag=True, help="Use the timeline of the broker at --url instead of the lake.")
@pass_invocation
def forecast(
    invocation: Invocation,
    where: LakeSession,
    topics: Sequence[str],
    plot: Path | None,
    hours: int,
    lateness_ms: float,
    service_ms: float | None,
    live: bool,
) -> None:
    """Show how many messages will be due in each of the next minutes, and how many consumers they need."""
    from dejaq.pipeline.reporting import findings

    with _opened(invocation, where) as opened:
        found = findings.forecast(
            opened,
            now_ms=int(time.time() * 1000),
            topics=topics,
            hours=hours,
            lateness_ms=lateness_ms,
            service_ms=service_ms,
            snapshot=_snapshot(invocation, opened, topics, live=live, path=None, taken_ms=None),
        )
        _tell(invocation, opened, found, plot, topics)


@pipeline.command()
@job_options
@click.option(
    "--attempts",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="From this number of attempts on, a message is suspect.",
)
@pass_invocation
def retries(
    invocation: Invocation, where: LakeSession, topics: Sequence[str], plot: Path | None, attempts: int
) -> None:
    """Show leases that expired or were released, messages that fail repeatedly, and slow consumers."""
    from dejaq.pipeline.reporting import findings

    with _opened(invocation, where) as opened:
        _tell(invocation, opened, findings.retries(opened, topics=topics, attempts_min=attempts), plot, topics)


@pipeline.command()
@job_options
@pass_invocation
def traffic(invocation: Invocation, where: LakeSession, topics: Sequence[str], plot: Path | None) -> None:
    """Show how much each group sends to each topic, the sizes, and how much of it is repeated content."""
    from dejaq.pipeline.reporting import findings

    with _opened(invocation, where) as opened:
        _tell(invocation, opened, findings.traffic(opened, topics=topics), plot, topics)


@pipeline.command()
@lake_options
@topic_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
    help="The file to write.",
)
@click.option("--live", is_flag=True, help="Audit against the live timeline of the broker at --url.")
@fresh_option
@settle_option
@click.option("--slo-ms", type=float, default=100.0, show_default=True, help="The lateness that 99 % may not exceed.")
@pass_invocation
def report(
    invocation: Invocation,
    where: LakeSession,
    topics: Sequence[str],
    output: Path,
    live: bool,
    journal: str | None,
    settle: float,
    slo_ms: float,
) -> int:
    """Write one page with the figures and pictures of every job, which needs no server; the exit code is that of
    audit.
    """
    from dejaq.pipeline.intake.segments import journal_directory
    from dejaq.pipeline.reporting import findings
    from dejaq.pipeline.reporting.report import page

    directory = None if journal is None else journal_directory(journal)
    now_ms = int(time.time() * 1000)
    with _opened(invocation, where, journal=directory) as opened:
        taken = _snapshot(invocation, opened, topics, live=live, path=None, taken_ms=None)
        found = [_settled(invocation, opened, taken, directory, topics, settle)]
        jobs: list[Callable[[], Findings]] = [
            lambda: findings.accuracy(opened, topics=topics, slo_ms=slo_ms),
            lambda: findings.forecast(opened, now_ms=now_ms, topics=topics, snapshot=taken),
            lambda: findings.retries(opened, topics=topics),
            lambda: findings.traffic(opened, topics=topics),
        ]
        # Two at once: while one is planned, the tasks of another run.
        with (
            ProgressBar("asking", len(jobs), quiet=invocation.json) as progress,
            ThreadPoolExecutor(2, thread_name_prefix="dejaq-job") as threads,
        ):
            for one in threads.map(lambda job: job(), jobs):
                found.append(one)
                progress.advance(1, one.job)
        for one in found:
            _keep(invocation, opened, one, topics)
        text = page(found, lake=opened.files.address, made_ms=now_ms, newest_ms=opened.head.reached_ms or None)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    if not invocation.json:
        _show(invocation, found[0])
    figures = {one.job: one.figures for one in found}
    invocation.output.record({"report": str(output.resolve()), **figures}, str(output.resolve()))
    return 1 if found[0].failed else 0


# The columns that fit a terminal; --json has every column.
COLUMNS = {
    "hours": ("topic", "hour_ms", "delivered", "p50_ms", "p99_ms", "max_ms", "late", "early", "breached"),
    "balance": ("topic", "created", "deleted", "cancelled", "dead_lettered", "dropped", "pending", "on_timeline"),
    "minutes": ("topic", "minute_ms", "due", "expected", "peak_second", "consumers"),
    "topics": ("topic", "leased", "retried", "expiries", "releases", "attempts_max", "dead_lettered"),
    "poison_candidates": ("topic", "id", "owner", "attempts", "expiries", "releases", "outcome"),
    "groups": ("topic", "owner", "created", "bytes", "size_p50", "size_max", "duplicates"),
    "duplicates": ("topic", "hour_ms", "body_crc", "body_bytes", "copies", "owners"),
}


def _worth_seeing(name: str, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The rows to show: the busiest of many minutes, and otherwise the first."""
    if name != "minutes" or len(rows) <= ROWS_SHOWN:
        return rows[:ROWS_SHOWN]
    busiest = sorted(rows, key=lambda row: -(row["due"] + row["expected"]))[:ROWS_SHOWN]
    return [row for row in rows if row in busiest]


def _keep(invocation: Invocation, lake: Lake, found: Findings, topics: Sequence[str]) -> None:
    """Keep the result below the lake for other programs. That of some topics would hide that of all."""
    from dejaq.pipeline.reporting.results import RESULTS, keep_findings

    if not topics and not keep_findings(lake, found, made_ms=int(time.time() * 1000)):
        invocation.output.note(f"the result is not kept: {lake.files.path(RESULTS)} cannot be written")


def _tell(invocation: Invocation, lake: Lake, found: Findings, plot: Path | None, topics: Sequence[str]) -> None:
    """Keep the result, draw it, and print one JSON object with everything, or the tables and the figures."""
    _keep(invocation, lake, found, topics)
    if plot is not None:
        from dejaq.pipeline.reporting.plots import png

        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_bytes(png(found.draw()))
    if invocation.output.json:
        drawn = {"plot": str(plot)} if plot is not None else {}
        invocation.output.object({"job": found.job, **found.figures, **found.tables, **drawn})
        return
    _show(invocation, found)
    if plot is not None:
        invocation.output.note(f"drawn in {plot}")


def _show(invocation: Invocation, found: Findings) -> None:
    """Print the tables and the figures."""
    from dejaq.pipeline.reporting.report import shown, words

    output = invocation.output
    for name, rows in found.tables.items():
        if not rows:
            continue
        columns = [column for column in COLUMNS.get(name, tuple(rows[0])) if column in rows[0]]
        output.line(f"{words(name)}:")
        texts = [{words(column): shown(column, row[column]) for column in columns} for row in _worth_seeing(name, rows)]
        numbers = [words(column) for column in columns if isinstance(rows[0][column], int | float)]
        output.table(texts, [words(column) for column in columns], numbers=numbers)
        if len(rows) > ROWS_SHOWN:
            output.note(f"{ROWS_SHOWN} of {len(rows):,}; --json shows all")
        output.line("")
    told = {words(name): shown(name, value) for name, value in found.figures.items() if value is not None}
    output.record(told)
