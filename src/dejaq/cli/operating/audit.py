"""`dejaq audit`: checks that a journal, or the security log, is complete and genuine."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso, printable

if TYPE_CHECKING:
    from dejaq.journal.security.events import SecurityEvent
    from dejaq.journal.verification import VerificationReport


@click.group(cls=Group)
def audit() -> None:
    """Check the journal and the security log of a broker."""


@audit.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A copy of the public key, stored elsewhere. Default: journal.pub in DIR, which proves less.",
)
@pass_invocation
def verify(invocation: Invocation, /, directory: Path, key: Path | None) -> int:
    """Check every segment of the journal in DIR, and their chain; the exit code is 1 if anything is wrong.

    Finds segments that were edited, truncated, moved, added or removed, signatures that are not genuine, and errors
    in the chain, and names the file.
    """
    if find_spec("cryptography") is None or find_spec("pyarrow") is None:
        raise click.UsageError("This needs what `pip install 'dejaq-mq[pipeline]'` installs.")
    from dejaq.cli.terminal.progress import ProgressBar
    from dejaq.journal.names import SEGMENT_SUFFIX
    from dejaq.journal.verification import verify as verify_journal

    total = sum(path.stat().st_size for path in directory.glob(f"*{SEGMENT_SUFFIX}"))
    with ProgressBar("verifying", total, quiet=invocation.json) as progress:
        report = verify_journal(directory, key=key, checked=progress.advance)
    _tell(invocation, directory, report)
    return 0 if report.whole else 1


@audit.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A copy of the public key, stored elsewhere. Default: journal.pub in DIR, which proves less.",
)
@click.option("--event", metavar="NAME", help="Only events of this name, such as refused or rule_added.")
@click.option("--principal", metavar="NAME", help="Only events of this caller.")
@click.option("--last", type=click.IntRange(0), default=100, show_default=True, help="Print the last events only.")
@pass_invocation
def security(
    invocation: Invocation, /, directory: Path, key: Path | None, event: str | None, principal: str | None, last: int
) -> int:
    """Check the security log in DIR, the directory `security` of a broker's data, and print its events.

    It has the refusals and logins of callers, and changes of rules, keys and topics. The exit code is 1 if an event was
    edited, removed, added or moved.
    """
    if find_spec("cryptography") is None or find_spec("pyarrow") is None:
        raise click.UsageError("This needs what `pip install 'dejaq-mq[pipeline]'` installs.")
    from collections import deque

    from dejaq.journal.security.events import read_events
    from dejaq.journal.verification import verify as verify_journal

    report = verify_journal(directory, key=key)
    chosen = deque(
        (one for one in read_events(directory) if event in (None, one.event) and principal in (None, one.principal)),
        maxlen=last,
    )
    for one in chosen:
        invocation.output.record({"at": iso(one.at_ms), **asdict(one)}, _event_line(one))
    _tell(invocation, directory, report)
    return 0 if report.whole else 1


def _event_line(event: SecurityEvent) -> str:
    times = f"  ({event.count} times)" if event.count > 1 else ""
    about = "  ".join(printable(text) for text in (event.target, event.reason) if text)
    caller = printable(f"{event.principal} at {event.peer}")
    return f"{iso(event.at_ms)}  {event.event:<14}  {event.outcome:<7}  {caller}  {about}{times}"


def _tell(invocation: Invocation, directory: Path, report: VerificationReport) -> None:
    output = invocation.output
    if output.json:
        output.object({**_values(report), "findings": [asdict(finding) for finding in report.findings]})
        return
    verdict = "whole and genuine" if report.whole else f"{len(report.findings)} faults"
    ranges = ", ".join(f"{origin} {first} to {last}" for origin, (first, last) in report.origins.items())
    output.line(
        f"{directory}: {verdict}; {report.segments} segments with {report.events} events are as they were signed"
        + (f" (records of {ranges})" if ranges else "")
    )
    # After the verdict: a person who reads only one line must not miss it.
    for finding in report.findings:
        output.line(f"{finding.fault}: {finding.file}: {finding.about}")


def _values(report: VerificationReport) -> dict[str, Any]:
    return {
        "whole": report.whole,
        "segments": report.segments,
        "events": report.events,
        "bytes": report.bytes,
        "origins": {origin: {"first": first, "last": last} for origin, (first, last) in report.origins.items()},
    }
