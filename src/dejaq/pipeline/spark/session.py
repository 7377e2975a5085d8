"""A Spark session for the lake: quiet, in UTC, started as fast as the machine allows."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dejaq.errors import PipelineError
from dejaq.pipeline.spark.java import Java, find_java, put_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*]"
# Rows are sorted by message in memory; more makes fewer of them spill.
_MEMORY_SHARE, _MEMORY_MB_MIN, _MEMORY_MB_MAX = 0.25, 1024, 8192

# The only Java whose archives were tried; the wheel's 21 refuses them.
_ARCHIVE_JAVA = 17
# An archive that has not grown for this long is complete.
_ARCHIVE_WRITTEN_S = 15.0
# One of another Spark or Java, or one that was never finished, is removed after a day.
_ARCHIVE_UNUSED_S = 86_400.0

# A heap, and room for classes, that have their size from the beginning: neither is collected to find out whether it
# should grow.
_FIXED_HEAP = (f"-XX:InitialRAMPercentage={100 * _MEMORY_SHARE:.1f}", "-XX:MetaspaceSize=256m")
# One compiler stage: what the second would make faster is over before. Alone it has a fifth of the usual room for its
# code, which some hundred queries fill; then it stops permanently.
_BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
# Spark compiles each query; on little data that takes longer than the query.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# Up to here a batch is taken in faster by queries that are interpreted.
EVENTS_FEW = 100_000

_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # Queries of a thread that asks for it share the cores with the others, instead of following them.
    "spark.scheduler.mode": "FAIR",
    # Days and states are names, not numbers or dates to be guessed.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # A task writes so many partitions at once. It sorts its rows by partition only if there are more.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # A table is read from the files its commit names; no job is needed to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Segments are small: several go to one task.
    "spark.sql.files.openCostInBytes": str(512 * 1024),
    "spark.sql.files.maxPartitionBytes": str(32 * 1024 * 1024),
    # The queries of a batch are some hundred classes. Those that are still known need not be compiled again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # A small batch is one task and one file a partition, a large one uses every core.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(24 * 1024 * 1024),
}


def cache_directory() -> Path:
    """Where what makes the next start faster is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dejaq"


def start(
    master: str = MASTER_DEFAULT,
    *,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
    brief: bool = False,
    cache: Path | None = None,
    log: Path | None = None,
) -> SparkSession:
    """A new session; raises PipelineError when Spark cannot start.

    A `brief` session is for little work: it saves what the JVM spends on making long work fast. What the JVM writes
    beside the results goes to `log`, or where the driver's own stderr goes.
    """
    from pyspark.sql import SparkSession

    cache = cache or cache_directory()
    java = find_java(cache)
    os.environ["JAVA_HOME"] = str(java.home)
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", str(_worker(cache)))
        # Otherwise Spark looks the host's name up, and warns of what it finds.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    cores = os.cpu_count() or 2
    builder = SparkSession.builder.master(master).appName("dejaq pipeline")
    chosen = {
        **_SETTINGS,
        "spark.driver.memory": f"{_memory_mb()}m",
        "spark.sql.shuffle.partitions": str(max(8, 4 * cores)),
        "spark.driver.extraJavaOptions": " ".join(
            [*_java_options(java, cache), *(_BRIEF if brief else _FIXED_HEAP), *java_options]
        ),
        **(_INTERPRETED if brief else {}),
        **(settings or {}),
    }
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        with _stderr_to(log):
            started = builder.getOrCreate()
        started.sparkContext.setLogLevel("ERROR")
    except Exception as error:
        # Py4J passes on whatever the JVM threw.
        raise PipelineError(f"Spark does not start on {master}: {_first_line(error)}") from error
    return started


@contextmanager
def suited_to(spark: SparkSession, events: int) -> Iterator[None]:
    """Let queries on few events be interpreted instead of compiled."""
    wanted = _INTERPRETED if events <= EVENTS_FEW else {}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


@contextmanager
def session(master: str, **options: Any) -> Iterator[SparkSession]:
    """The running session, or one that is started as by `start` and ends here."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        # Also one that another thread has started.
        yield SparkSession.active()
        return
    except PySparkRuntimeError as error:
        if error.getCondition() != "NO_ACTIVE_OR_DEFAULT_SESSION":
            raise
    found = start(master, **options)
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Let the processes that are started here write to a file what they would write to stderr."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _worker(cache: Path) -> Path:
    """A script that runs this Python without Spark's zipped self, whose modules are compiled at every start."""
    script = cache / f"worker-{hashlib.sha256(sys.executable.encode()).hexdigest()[:16]}"
    text = _WORKER.format(python=shlex.quote(sys.executable))
    try:
        put_script(script, text)
    except OSError:
        return Path(sys.executable)
    return script


_WORKER = """#!/bin/sh
kept=
IFS=:
for path in $PYTHONPATH; do
    case "$path" in */pyspark.zip) ;; *) kept="$kept:$path" ;; esac
done
PYTHONPATH="${{kept#:}}" exec {python} "$@"
"""


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "Exception:" in line), lines[0] if lines else type(error).__name__)
    return told.removeprefix(": ")[:300]


def _memory_mb() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)
    except (ValueError, OSError):
        total = 4 * _MEMORY_MB_MIN
    return int(min(max(total * _MEMORY_SHARE, _MEMORY_MB_MIN), _MEMORY_MB_MAX))


def _java_options(java: Java, cache: Path) -> list[str]:
    log = Path(__file__).with_name("log4j2.properties")
    # Pauses do not matter here, and this collector saves a tenth of the processor time.
    return [f"-Dlog4j2.configurationFile={log.as_uri()}", "-XX:+UseParallelGC", *_archive_options(java, cache)]


def _archive_options(java: Java, cache: Path) -> list[str]:
    """Options that use an archive of loaded classes, or make one at this session's end: starts take half the time.

    The archive is made under another name and takes its own in the next start, so that none is used half-written.
    """
    import pyspark

    if java.version[0] != _ARCHIVE_JAVA or os.environ.get("DEJAQ_NO_CLASS_ARCHIVE"):
        return []
    name = f"spark-{pyspark.__version__}-java-{'.'.join(map(str, java.version))}"
    archive = cache / f"{name}.jsa"
    quiet = ["-Xshare:auto", "-Xlog:disable", "-Xlog:all=off"]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for made in cache.glob(f"{name}.*.made"):
            if time.time() - made.stat().st_mtime > _ARCHIVE_WRITTEN_S:
                made.replace(archive)
        # One takes some 190 MB: of other releases of Spark or Java none is kept.
        for other in (*cache.glob("spark-*.jsa"), *cache.glob("spark-*.made")):
            if other != archive and time.time() - other.stat().st_mtime > _ARCHIVE_UNUSED_S:
                other.unlink(missing_ok=True)
    except OSError:
        return []
    if archive.exists():
        return [f"-XX:SharedArchiveFile={archive}", *quiet]
    return [f"-XX:ArchiveClassesAtExit={cache / f'{name}.{os.getpid()}.made'}", *quiet]
