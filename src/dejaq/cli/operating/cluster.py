"""`dejaq cluster`: a complete cluster on this machine, for trials."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Command, Group, Invocation, pass_invocation
from dejaq.errors import Code, error_of

if TYPE_CHECKING:
    from dejaq.trial.cluster import TrialCluster

STATE = "cluster.json"


@dataclass(frozen=True, slots=True)
class State:
    """What `up` started: process ids by name, and the addresses of the brokers."""

    url: str
    brokers: list[dict[str, Any]]
    servers: dict[str, int]

    def save(self, directory: Path) -> None:
        """Write it to the file that `down` reads."""
        (directory / STATE).write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, directory: Path) -> State | None:
        """What `up` wrote, if anything."""
        path = directory / STATE
        return cls(**json.loads(path.read_text())) if path.exists() else None


def default_directory() -> Path:
    """Below the system's temporary directory, which the user that PostgreSQL runs as can enter."""
    return Path(tempfile.gettempdir()) / f"dejaq-cluster-{os.getuid()}"


def directory_option(function: Any) -> Any:
    """Where the cluster keeps its data and its state."""
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_directory,
        metavar="DIR",
        help="The directory for the cluster's data. Default: dejaq-cluster-UID in the temporary directory.",
    )(function)


@click.group(cls=Group)
def cluster() -> None:
    """Start and stop a trial cluster on this machine: etcd, PostgreSQL and brokers."""


@cluster.command(cls=Command)
@click.option("--brokers", default=3, show_default=True, type=click.IntRange(1, 20), help="The number of brokers.")
@click.option("--etcd", default=1, show_default=True, type=click.IntRange(1, 5), help="The number of etcd servers.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_000),
    default=None,
    help="Port of the first broker; the others take those behind it. Default: 7400 and on, or free ones.",
)
@directory_option
@pass_invocation
def up(invocation: Invocation, brokers: int, etcd: int, port: int | None, directory: Path) -> None:
    """Start a cluster and return when it is ready. It continues with the data of an earlier one in the same
    directory.
    """
    from dejaq.trial.cluster import TrialCluster, check_own, running

    check_own(directory)
    state = State.load(directory)
    if state is not None and running(state.servers | _pids(state), directory):
        raise error_of(
            Code.INVALID_ARGUMENT, f"a cluster runs in {directory} at {state.url}; end it with `dejaq cluster down`"
        )
    trial = TrialCluster(directory, brokers=brokers, etcd=etcd, port=port)
    try:
        for step in trial.start():
            invocation.output.note(step)
        told = State(url=trial.url, brokers=_told(trial), servers=trial.servers)
        told.save(directory)
    except BaseException:
        trial.stop()
        raise
    invocation.output.record(
        {"url": told.url, "brokers": told.brokers},
        f"{told.url}\n{brokers} brokers serve; `dejaq cluster down` ends them",
    )


def _told(trial: TrialCluster) -> list[dict[str, Any]]:
    return [{"address": address, "pid": pid} for address, pid in trial.brokers]


def _pids(state: State) -> dict[str, int]:
    return {f"broker-{number}": broker["pid"] for number, broker in enumerate(state.brokers)}


@cluster.command(cls=Command)
@click.option("--erase", is_flag=True, help="Remove the cluster's data, too; other files in the directory stay.")
@directory_option
@pass_invocation
def down(invocation: Invocation, erase: bool, directory: Path) -> None:
    """Stop the cluster that `up` started: brokers first, which let their clients finish, then the servers."""
    from dejaq.trial.cluster import end, remove

    state = State.load(directory)
    if state is None:
        raise error_of(Code.INVALID_ARGUMENT, f"no cluster was started in {directory}")
    ended = end(_pids(state), directory) + end(state.servers, directory)
    (directory / STATE).unlink()
    left = remove(directory) if erase else []
    kept = f"; {directory} stays, because it holds other files: {', '.join(left[:5])}" if left else ""
    invocation.output.record(
        {"ended": ended}, f"ended {', '.join(ended) or 'nothing; the cluster was not running'}{kept}"
    )
