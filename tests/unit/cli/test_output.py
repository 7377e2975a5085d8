"""The results that commands print for people and for programs."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from dejaq.cli.terminal.output import Output, iso, printable, shown


def test_a_record_is_one_line_of_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=True).record({"id": "a", "body": "ü"}, "for people")
    assert capsys.readouterr().out == '{"id": "a", "body": "ü"}\n'


def test_a_table_is_one_object_per_line_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=True).table([{"a": 1, "b": 2}, {"a": 3, "b": 4}], ["a"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"a": 1, "b": 2},
        {"a": 3, "b": 4},
    ]


def test_markup_in_names_is_shown_and_not_interpreted(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=False).table([{"name": "[bold]x[/bold]"}], ["name"])
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_a_body_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in shown(b"\x1b[2Jgone")
    assert "\x1b" not in printable("\x1b]0;title\x07")


def test_a_long_body_is_cut_and_bytes_are_counted() -> None:
    assert shown(b"x" * 100, width=10) == "x" * 9 + "…"
    assert shown(b"\xff\xfe\xfd") == "<3 bytes>"


def test_times_are_iso_8601_in_utc() -> None:
    assert iso(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"


class Narrow(Output):
    @property
    def console(self) -> Console:
        return Console(width=20, force_terminal=True)


def test_a_table_that_is_wider_than_the_terminal_is_shown_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    """U23: `info` wrapped ids and addresses over several lines."""
    rows: list[dict[str, str | None]] = [
        {"id": "b1", "address": "dejaq://a-long-name:7654"},
        {"id": "b2", "address": None},
    ]
    Narrow(json=False).table(rows, ["id", "address"])
    assert capsys.readouterr().out.splitlines() == [
        "id       b1",
        "address  dejaq://a-long-name:7654",
        "",
        "id       b2",
        "address  ",
    ]
    Output(json=False).table([{"name": "x" * 200}], ["name"])
    assert "x" * 200 in capsys.readouterr().out, "without a terminal, nothing is wrapped"
