"""The command line itself: names, usage, start-up, and the lines of the shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from dejaq.cli.main import COMMANDS, root, run
from dejaq.cli.shell import candidates, run_line
from dejaq.cli.terminal.invocation import Invocation

NAMES = ["serve", "topic", "produce", "consume", "get", "move", "edit", "cancel", "count", "histogram"]
NAMES += ["browse", "info", "top", "shell"]


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += every_command(command, (*path, name))
    return found


def test_every_command_of_the_manual_exists() -> None:
    assert set(NAMES) <= {path[0] for path, _ in every_command(root)}
    assert set(NAMES) <= set(COMMANDS)


@pytest.mark.parametrize("option", ["--json", "--url", "--debug"])
def test_every_command_takes_the_shared_options(option: str) -> None:
    without = [
        " ".join(path)
        for path, command in every_command(root)
        if not any(option in parameter.opts for parameter in command.params)
    ]
    assert without == []


def test_every_command_and_option_has_a_help_text() -> None:
    silent = []
    for path, command in every_command(root):
        if not command.help:
            silent.append(" ".join(path))
        silent += [
            f"{' '.join(path)} {parameter.opts[0]}"
            for parameter in command.params
            if isinstance(parameter, click.Option) and not parameter.help
        ]
    assert silent == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["count"],
        ["count", "mail", "--status", "lost"],
        ["count", "mail", "--from", "yesterday"],
        ["produce", "mail"],
        ["produce", "mail", "--body", "a", "--file", "rows.jsonl"],
        ["produce", "mail", "--body", "a", "--at", "5m", "--delay", "5"],
        ["produce", "mail", "--body", "a", "--header", "novalue"],
        ["produce", "mail", "--file", "rows.jsonl", "--id", "a"],
        ["move", "mail", "a"],
        ["edit", "mail", "a"],
        ["cancel", "mail"],
        ["consume", "mail", "--max", "0"],
        ["topic"],
    ],
)
def test_wrong_usage_exits_with_2_before_any_broker_is_asked(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    written = capsys.readouterr()
    assert "Traceback" not in written.err
    assert written.err or written.out


def test_help_and_version_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert run(["topic", "create", "--help"]) == 0
    assert run(["--version"]) == 0
    assert "Exit codes" in capsys.readouterr().out


def test_url_of_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEJAQ_URL", "dejaq://from-environment:1")
    seen: list[str] = []

    def note_url(self: Invocation, work: object) -> int:
        seen.append(self.url)
        return 0

    monkeypatch.setattr(Invocation, "run", note_url)
    run(["count", "mail"])
    run(["--url", "dejaq://before:1", "count", "mail"])
    run(["count", "mail", "--url", "dejaq://behind:1"])
    assert seen == ["dejaq://from-environment:1", "dejaq://before:1", "dejaq://behind:1"]


def test_start_up_loads_neither_grpc_nor_rich_nor_the_store() -> None:
    code = (
        "import sys; from dejaq.cli.main import run; run(['--help']); "
        "heavy = {'grpc', 'rich', 'rocksdict', 'google.protobuf', 'prometheus_client'} & set(sys.modules); "
        "sys.exit(f'loaded: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_installed_command_is_this_one() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("dejaq"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("dejaq, version ")


def test_the_shell_completes_commands_and_their_options() -> None:
    assert candidates("co", "co") == ["consume", "count"]
    assert candidates("topic cr", "cr") == ["create"]
    assert candidates("count mail --st", "--st") == ["--status"]
    assert "exit" in candidates("e", "e")


def test_a_line_of_the_shell_runs_like_a_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_line("help topic create", Invocation()) == 0
    assert "--buckets" in capsys.readouterr().out
    assert run_line("  # a comment", Invocation()) == 0
    assert run_line("produce 'open", Invocation()) == 2
    assert run_line("shell", Invocation()) == 2
    assert run_line("dejaq nonsense", Invocation()) == 2
