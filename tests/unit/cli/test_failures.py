"""The error messages that a user reads."""

from __future__ import annotations

import json

import pytest

from dejaq.cli.terminal.failures import NEXT_STEPS, explain, report
from dejaq.cli.terminal.invocation import Invocation
from dejaq.errors import Code, error_of


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (Code.NO_BROKER, 3),
        (Code.UNAVAILABLE, 4),
        (Code.DRAINING, 4),
        (Code.CUT_OFF, 4),
        (Code.STORE_FAILED, 5),
        (Code.STORE_CORRUPT, 5),
        (Code.TOPIC_NOT_FOUND, 1),
        (Code.STORE_LOCKED, 1),
        (Code.INDEFINITE, 1),
    ],
)
def test_the_exit_codes_of_no_broker_a_refusal_and_a_broker_fault_differ(code: Code, exit_code: int) -> None:
    """U12: a full disk and a broker that is cut off had the exit code and the advice of NO_BROKER."""
    assert explain(error_of(code)).exit_code == exit_code


@pytest.mark.parametrize("code", [code for code in Code if not code.succeeded])
def test_every_error_names_the_problem_and_the_next_step(code: Code) -> None:
    failure = explain(error_of(code, "it went wrong"))
    assert "it went wrong" in failure.message
    assert failure.next


def test_every_error_code_has_a_next_step_of_its_own() -> None:
    assert [code for code in Code if code is not Code.OK and code not in NEXT_STEPS] == []


def test_a_failure_is_reported_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code = report(error_of(Code.TOPIC_NOT_FOUND, "no topic 'mail'"), Invocation())
    written = capsys.readouterr()
    assert code == 1
    assert written.out == ""
    assert "no topic 'mail' [TOPIC_NOT_FOUND]" in written.err
    assert "next: create it with `dejaq topic create NAME`" in written.err
    assert "Traceback" not in written.err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise error_of(Code.INTERNAL)
    except Exception as error:
        report(error, Invocation(debug=True))
    assert "Traceback" in capsys.readouterr().err


def test_a_program_reads_the_failure_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    report(error_of(Code.NO_BROKER, "no broker at x:1"), Invocation(json=True))
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "NO_BROKER"
    assert error["message"] == "no broker at x:1"
    assert "dejaq serve" in error["next"]


def test_a_fault_of_the_command_itself_is_reported_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ZeroDivisionError("division by zero"), Invocation()) == 1
    assert "--debug" in capsys.readouterr().err
