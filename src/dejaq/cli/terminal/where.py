"""Selects the messages that a command changes: by ids, `--where` or `--all`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.progress import ProgressBar
from dejaq.cli.terminal.times import parse_when

if TYPE_CHECKING:
    from dejaq.cli.terminal.invocation import Invocation
    from dejaq.sdk.changing.bulk import BulkResult, OnProgress, Where
    from dejaq.sdk.client import Client
    from dejaq.sdk.producing.producer import Producer

FORMS = "from=TIME, to=TIME, priority=N, priority=LOW..HIGH or header.NAME=VALUE"


def confirm_all(invocation: Invocation, question: str, *, yes: bool) -> None:
    """Ask before everything is changed; a program cannot answer and says --yes."""
    if yes:
        return
    if invocation.json:
        raise click.UsageError("--all with --json does not ask; add --yes.")
    click.confirm(question, abort=True, err=True)


all_option = click.option("--all", "everything", is_flag=True, help="Select everything, instead of ids or a filter.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and options that make a `Choice`."""
    for option in (
        click.option("--dry-run", is_flag=True, help="With --where or --all: only count; change nothing."),
        yes_option,
        all_option,
        click.option(
            "--where",
            "conditions",
            multiple=True,
            metavar="CONDITION",
            help=f"Select every message of the group that matches, not ids: {FORMS}. Can be given several times.",
        ),
        click.argument("ids", metavar="[ID...]", nargs=-1),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Choice:
    """The messages that a command changes: those of `ids`, those that match `conditions`, or everything."""

    ids: tuple[str, ...]
    conditions: tuple[str, ...]
    everything: bool
    dry_run: bool
    yes: bool

    @property
    def many(self) -> bool:
        """Whether the messages are found by the broker, and not named by ids."""
        return not self.ids

    def check(self) -> None:
        """Raise a usage error unless there is exactly one of ids, --where and --all."""
        if sum(map(bool, (self.ids, self.conditions, self.everything))) != 1:
            raise click.UsageError("Give ids, or --where, or --all for every message of the group, and not both.")
        if self.dry_run and self.ids:
            raise click.UsageError("--dry-run counts what --where or --all matches; ids need no counting.")


def parse_where(conditions: Sequence[str], now_ms: int) -> Where:
    """The filter that all conditions describe."""
    from dejaq.sdk.changing.bulk import Where

    chosen: dict[str, Any] = {}
    headers: dict[str, str] = {}
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals:
            raise _wrong(condition)
        if name in ("from", "to"):
            try:
                chosen["start" if name == "from" else "end"] = max(0, parse_when(value).at(now_ms))
            except ValueError as wrong:
                raise click.BadParameter(f"{value!r} is not a time; {wrong}", param_hint="--where") from None
        elif name == "priority":
            chosen["priorities"] = _range(condition, value)
        elif name.startswith("header.") and len(name) > len("header."):
            headers[name.removeprefix("header.")] = value
        else:
            raise _wrong(condition)
    return Where(**chosen, headers=headers or None)


def _range(condition: str, value: str) -> tuple[int, int]:
    low, dots, high = value.partition("..")
    try:
        return int(low), int(high if dots else low)
    except ValueError:
        raise _wrong(condition) from None


def _wrong(condition: str) -> click.BadParameter:
    return click.BadParameter(f"{condition!r} is none of {FORMS}", param_hint="--where")


def change_many(
    invocation: Invocation,
    topic: str,
    group: str,
    choice: Choice,
    change: Callable[[Producer, Where, OnProgress], Awaitable[BulkResult]],
    *,
    done: str,
) -> int:
    """Count the matching messages, change them and show the progress; returns the exit code."""
    from dejaq.cli.messages.dlq import report_bulk

    if choice.everything and not choice.dry_run:
        question = f"Every message of {group} in {topic} that is not leased will be {done}. Continue?"
        confirm_all(invocation, question, yes=choice.yes)

    async def work(client: Client) -> tuple[int, BulkResult | None]:
        where = parse_where(choice.conditions, client.now_ms())
        async with client.producer(topic, group=group) as producer:
            matched = await producer.count_where(where)
            if choice.dry_run or not matched:
                return matched, None
            with ProgressBar(done, matched, quiet=invocation.json) as bar:
                return matched, await change(producer, where, bar.follow(matched))

    matched, result = invocation.run(work)
    values = {"topic": topic, "group": group}
    if result is None:
        told = f"{matched:,} messages of {group} in {topic} match; nothing was changed"
        if not matched:
            told = f"no messages of {group} in {topic} match"
        invocation.output.record({**values, "matched": matched, done: 0, "dry_run": choice.dry_run}, told)
        return 0
    return report_bulk(invocation, values, result, done)
