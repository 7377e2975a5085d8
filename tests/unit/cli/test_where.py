"""The messages that a command changes: by ids, by a filter, or all of them after a confirmation."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from dejaq.cli.main import root

NOWHERE = ("--url", "dejaq://127.0.0.1:1")


def invoke(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(root, [*NOWHERE, *arguments], input=answer)


@pytest.mark.parametrize(
    "command",
    [
        ("cancel", "mail"),
        ("move", "mail", "--shift", "+1h"),
        ("edit", "mail", "--priority", "1"),
        ("dlq", "purge", "mail"),
        ("dlq", "redrive", "mail"),
    ],
    ids=" ".join,
)
def test_a_change_of_everything_needs_all_and_waits_for_an_answer(command: tuple[str, ...]) -> None:
    """U18: a bulk command without a condition changed every message without a confirmation."""
    assert invoke(*command, "--yes").exit_code == 2, "neither ids nor a filter nor --all"
    unanswered = invoke(*command, "--all", answer="n\n")
    assert (unanswered.exit_code, "[y/N]" in unanswered.output) == (1, True)
    program = invoke("--json", *command, "--all")
    assert (program.exit_code, "add --yes" in program.output) == (2, True)
