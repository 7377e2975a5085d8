"""The options that the commands of `dejaq pipeline` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from dejaq.cli.terminal.times import SECONDS
from dejaq.errors import PipelineError

Function = TypeVar("Function", bound=Callable[..., Any])

lake_option = click.option(
    "--lake",
    default="lake",
    show_default=True,
    envvar="DEJAQ_LAKE",
    show_envvar=True,
    metavar="PATH",
    help="The lake: a directory, or any address that Spark can reach.",
)
master_option = click.option("--master", default="local[*]", show_default=True, metavar="URL", help="The Spark master.")
conf_option = click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; can be given several times."
)
journal_option = click.option(
    "--journal",
    required=True,
    envvar="DEJAQ_JOURNAL",
    show_envvar=True,
    metavar="DIR",
    help="The directory with the segments of a broker, or with such directories of several brokers.",
)
batch_option = click.option(
    "--batch-events",
    type=click.IntRange(min=1),
    default=10_000_000,
    show_default=True,
    help="About how many events are added at once; fewer need less memory.",
)
keep_option = click.option(
    "--keep",
    type=SECONDS,
    help="How long to keep what a later commit replaces, for time travel; the lake remembers it. Default: 0.",
)
plot_option = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw it, as PNG."
)
fresh_option = click.option(
    "--journal", envvar="DEJAQ_JOURNAL", metavar="DIR", help="First add what is new in this journal."
)
settle_option = click.option(
    "--settle", type=SECONDS, default=10.0, show_default=True, help="How long to wait until the journal is complete."
)
topic_option = click.option("--topic", "topics", multiple=True, help="Only this topic; can be given several times.")


@dataclass(frozen=True, slots=True)
class LakeSession:
    """The lake and the Spark session."""

    lake: str
    master: str
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Watching:
    """How a journal is watched, and who gets alarms."""

    interval_s: float
    times: int | None
    objective: float
    silent_s: float
    webhook: str | None
    alarm_topic: str | None
    metrics: str | None


def watch_options(function: Function) -> Function:
    """The options of `watch`."""

    @click.option("--interval", type=SECONDS, default=2.0, show_default=True, help="How often to look for what is new.")
    @click.option("--times", type=click.IntRange(min=1), metavar="N", help="Stop after looking N times.")
    @click.option(
        "--objective",
        type=click.FloatRange(50, 99.999),
        default=99.9,
        show_default=True,
        help="The percentage of deliveries that must be less than a second late.",
    )
    @click.option(
        "--silent",
        type=SECONDS,
        default=60.0,
        show_default=True,
        help="For how long a journal may have nothing new while messages are due.",
    )
    @click.option("--webhook", metavar="URL", help="Post each alarm there, as JSON.")
    @click.option("--alarm-topic", metavar="TOPIC", help="Send each alarm to this topic of the broker at --url.")
    @click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
    @wraps(function)
    def chosen(
        *args: Any,
        interval: float,
        times: int | None,
        objective: float,
        silent: float,
        webhook: str | None,
        alarm_topic: str | None,
        metrics: str | None,
        **kwargs: Any,
    ) -> Any:
        found = Watching(interval, times, objective / 100, silent, webhook, alarm_topic, metrics)
        return function(*args, watching=found, **kwargs)

    return cast("Function", chosen)


def _parsed(settings: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in settings]
    wrong = [key for key, equals, _ in pairs if not key or not equals]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not KEY=VALUE", param_hint="--conf")
    return {key: value for key, _, value in pairs}


def lake_options(function: Function) -> Function:
    """The options of every command that reads or writes a lake, and the check that it can be done at all."""

    @wraps(function)
    def checked(*args: Any, lake: str, master: str, settings: Sequence[str], **kwargs: Any) -> Any:
        if find_spec("pyspark") is None or find_spec("pyarrow") is None:
            raise PipelineError("the pipeline is not installed; run: pip install 'dejaq-mq[pipeline]'")
        return function(*args, where=LakeSession(lake, master, _parsed(settings)), **kwargs)

    return cast("Function", lake_option(master_option(conf_option(checked))))


def job_options(function: Function) -> Function:
    """The options of every job."""
    return lake_options(topic_option(plot_option(function)))
