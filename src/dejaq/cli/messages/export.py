"""`dejaq export`: the messages of a topic as Parquet files."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dejaq import limits
from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.times import SECONDS
from dejaq.errors import PipelineError

if TYPE_CHECKING:
    from pyspark_dejaq.exporting import ExportedFile
    from pyspark_dejaq.reading import BucketRange


@click.command(cls=Command)
@click.argument("topic")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--files",
    type=click.IntRange(1, limits.BUCKETS_MAX),
    default=8,
    show_default=True,
    help="How many files to write; at most one per bucket.",
)
@click.option("--column", "columns", multiple=True, help="Only this column; can be given several times.")
@click.option("--processes", type=click.IntRange(1, 64), help="How many files to write at once. Default: one per core.")
@click.option("--timeout", type=SECONDS, default=60.0, show_default=True, help="How long to wait for the broker.")
@pass_invocation
def export(
    invocation: Invocation,
    topic: str,
    directory: Path,
    files: int,
    columns: Sequence[str],
    processes: int | None,
    timeout: float,
) -> None:
    """Write the messages of TOPIC, as they are at one instant, to Parquet files in DIRECTORY.

    The directory must be new or empty. The broker keeps delivering: it reads for an export only in pauses, as for every
    scan.
    """
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise PipelineError("exports need the pipeline; run: pip install 'dejaq-mq[pipeline]'")
    from pyspark_dejaq.exporting import begin, finish, planned
    from pyspark_dejaq.options import OptionError

    begun = time.monotonic()
    place = directory.absolute()
    existed = place.exists()
    try:
        parts = planned(invocation.url, topic, columns=columns, files=files, timeout=timeout)
        statement = begin(place, topic, 0)
    except OptionError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise PipelineError(f"{place} cannot be written: {error.strerror}") from None
    try:
        made = _written(parts, place, columns, processes or os.cpu_count() or 1)
    except BaseException:
        _clear(place, existed)
        raise
    finish(place, statement, made)
    seconds = time.monotonic() - begun
    rows, size = sum(file.rows for file in made), sum(file.size for file in made)
    invocation.output.record(
        {"directory": str(place), "rows": rows, "bytes": size, "files": len(made), "seconds": round(seconds, 3)},
        f"{rows:,} messages of {topic} in {len(made)} files, {size / 1e6:,.1f} MB, in {seconds:.1f} s: {place}",
    )


def _written(parts: Sequence[BucketRange], place: Path, columns: Sequence[str], processes: int) -> list[ExportedFile]:
    from pyspark_dejaq.exporting import export_range

    write = partial(export_range, directory=str(place), columns=tuple(columns), durable=True)

    # Started and not forked: threads of the broker's connection would not survive a fork.
    with ProcessPoolExecutor(min(processes, len(parts)), mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(write, part) for part in parts]
        try:
            return [done.result() for done in as_completed(pending)]
        except OSError as error:
            raise PipelineError(f"{place} cannot be written: {error.strerror}") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _clear(place: Path, existed: bool) -> None:
    """Leave what was there before: nothing, or an empty directory."""
    shutil.rmtree(place, ignore_errors=True)
    if existed:
        place.mkdir(exist_ok=True)
