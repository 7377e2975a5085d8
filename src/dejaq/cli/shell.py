"""`dejaq shell`: the same commands without the prefix, with history and completion."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from dejaq.cli.terminal.invocation import Command, Group, Invocation, pass_invocation

LEAVE = frozenset({"exit", "quit"})
HISTORY_LINES = 1_000
GREETING = "dejaq shell on {url}: any dejaq command without 'dejaq', help, exit. Tab completes."


@click.command(cls=Command)
@pass_invocation
def shell(invocation: Invocation) -> int:
    """Type commands one after another; stdin may be a script."""
    interactive = sys.stdin.isatty()
    if interactive:
        _set_up_readline()
        invocation.output.note(GREETING.format(url=invocation.url))
    code = 0
    while True:
        try:
            line = input("dejaq> " if interactive else "")
        except EOFError:
            if interactive:
                click.echo("")
            break
        except KeyboardInterrupt:
            click.echo("")
            continue
        if line.strip() in LEAVE:
            break
        result = run_line(line, invocation)
        # The exit code of a script shows that one of its lines failed; an interactive user has seen it.
        code = code or (0 if interactive else result)
    return code


def run_line(line: str, invocation: Invocation) -> int:
    """Run one line; the exit code of its command."""
    from dejaq.cli.main import run

    try:
        words = shlex.split(line, comments=True)
    except ValueError as wrong:
        click.secho(f"dejaq: {wrong}; close the quotation", fg="red", err=True)
        return 2
    if not words:
        return 0
    if words[0] == "dejaq":
        words = words[1:]
    if words[:1] == ["shell"]:
        click.echo("dejaq: this is the shell already", err=True)
        return 2
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    # Each line starts from the shell's own options; what a line changes is gone with it.
    shared = Invocation(url=invocation.url, json=invocation.json, debug=invocation.debug)
    return run(words, shared)


def candidates(line: str, begun: str) -> list[str]:
    """The possible completions of `line`, whose last word begins with `begun`."""
    from dejaq.cli.main import root

    context = click.Context(root, info_name="dejaq")
    command: click.Command = root
    words = line[: len(line) - len(begun)].split()
    for word in words:
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            break
        command = inner
    if begun.startswith("-"):
        options = [name for param in command.params if isinstance(param, click.Option) for name in param.opts]
        return sorted(name for name in options if name.startswith(begun))
    names = command.list_commands(context) if isinstance(command, click.Group | Group) else []
    if command is root:
        names = [name for name in names if name != "shell"] + ["help", *sorted(LEAVE)]
    return [name for name in names if name.startswith(begun)]


def history_path() -> Path:
    """The file of the history, in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "dejaq" / "history"


def _set_up_readline() -> None:
    try:
        import readline
    except ImportError:
        return
    import atexit

    path = history_path()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer_delims(" \t\n")
    readline.set_completer(_completer(readline.get_line_buffer))
    readline.parse_and_bind("tab: complete")

    def save() -> None:
        with suppress(OSError):
            readline.write_history_file(path)

    atexit.register(save)


def _completer(buffer: Callable[[], str]) -> Callable[[str, int], str | None]:
    found: list[str] = []

    def complete(begun: str, number: int) -> str | None:
        if number == 0:
            found[:] = candidates(buffer(), begun)
        return f"{found[number]} " if number < len(found) else None

    return complete
