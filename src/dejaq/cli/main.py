"""The entry point of `dejaq`: the commands, loaded when they are used, and what a failure looks like."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import click

from dejaq.cli.terminal.invocation import Group, Invocation

# Where each command is defined. A module is imported when its command is used, so that `dejaq` starts fast.
COMMANDS = {
    "serve": "dejaq.cli.operating.serve:serve",
    "topic": "dejaq.cli.messages.topic:topic",
    "produce": "dejaq.cli.messages.produce:produce",
    "log": "dejaq.cli.messages.log:log",
    "consume": "dejaq.cli.messages.consume:consume",
    "worker": "dejaq.cli.messages.worker:worker",
    "forward": "dejaq.cli.messages.forward:forward",
    "cron": "dejaq.cli.messages.cron:cron",
    "get": "dejaq.cli.messages.message:get",
    "move": "dejaq.cli.messages.message:move",
    "edit": "dejaq.cli.messages.message:edit",
    "cancel": "dejaq.cli.messages.message:cancel",
    "transaction": "dejaq.cli.messages.transaction:transaction",
    "dlq": "dejaq.cli.messages.dlq:dlq",
    "count": "dejaq.cli.messages.query:count",
    "histogram": "dejaq.cli.messages.query:histogram",
    "browse": "dejaq.cli.messages.query:browse",
    "history": "dejaq.cli.messages.history:history",
    "export": "dejaq.cli.messages.export:export",
    "info": "dejaq.cli.operating.info:info",
    "top": "dejaq.cli.operating.top:top",
    "shell": "dejaq.cli.shell:shell",
    "rights": "dejaq.cli.operating.rights:rights",
    "web": "dejaq.cli.operating.web:web",
    "audit": "dejaq.cli.operating.audit:audit",
    "pipeline": "dejaq.cli.operating.pipeline:pipeline",
    "backup": "dejaq.cli.operating.backup:backup",
    "restore": "dejaq.cli.operating.backup:restore",
    "storage": "dejaq.cli.operating.keys:storage",
    "cluster": "dejaq.cli.operating.cluster:cluster",
    "login": "dejaq.cli.access.login:login",
    "logout": "dejaq.cli.access.login:logout",
    "whoami": "dejaq.cli.access.whoami:whoami",
    "key": "dejaq.cli.access.key:key",
    "sessions": "dejaq.cli.access.sessions:sessions",
    "cert": "dejaq.cli.access.cert:cert",
    "bench": "dejaq.cli.operating.bench:bench",
}


class Root(Group):
    """The command `dejaq` itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a new user needs them."""
        return [name for name, where in COMMANDS.items() if find_spec(where.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        where = COMMANDS.get(cmd_name)
        if where is None or cmd_name not in self.list_commands(ctx):
            return None
        module, _, name = where.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    epilog=(
        "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no broker answered, 4 the broker answered and "
        "cannot serve now, 5 its store has failed or is damaged. Times: ISO 8601 with a zone, "
        "epoch milliseconds, or relative to now such as +90s, 5m, 2h, 1d, -5m."
    ),
)
@click.version_option(package_name="dejaq-mq", prog_name="dejaq")
def root() -> None:
    """DejaQ: delivers each message to one consumer at the millisecond that its producer chose."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str], shared: Invocation | None = None) -> int:
    """Run one command line; the exit code. `shared` holds options that are given already."""
    invocation = Invocation() if shared is None else shared
    try:
        with root.make_context("dejaq", list(arguments), obj=invocation) as context:
            result = root.invoke(context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as wrong:
        click.echo(wrong.format_message())
        return 2
    except click.ClickException as wrong:
        wrong.show()
        return wrong.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("", err=True)
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe, as in `dejaq browse ... | head`.
        sys.stdout = None
        return 0
    except Exception as error:  # noqa: BLE001 - the last place where an error can be reported
        from dejaq.cli.terminal.failures import report

        return report(error, invocation)
