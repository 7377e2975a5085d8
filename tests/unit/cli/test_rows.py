"""Rows of a file that `dejaq produce` sends."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.cli.messages.message import message_values
from dejaq.cli.messages.rows import InputRow, RowError, parse_row
from dejaq.cli.terminal.times import When
from dejaq.domain.message import Message


def test_a_row_has_every_field_of_a_message() -> None:
    text = json.dumps(
        {"id": "a-1", "body": "grüß", "at": "+5m", "priority": -2, "headers": {"kind": "mail"}},
    )
    assert parse_row(text, 7) == InputRow(
        line=7,
        id="a-1",
        body="grüß".encode(),
        when=When(300_000, relative=True),
        priority=-2,
        headers={"kind": "mail"},
    )


def test_a_row_needs_only_a_body_and_is_then_due_at_once() -> None:
    assert parse_row('{"body": ""}', 1) == InputRow(line=1, body=b"", when=When(0, relative=True))


def test_bytes_that_are_no_text_are_written_as_base64() -> None:
    assert parse_row('{"body_base64": "/wA="}', 1).body == b"\xff\x00"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "one of 'body' and 'body_base64'"),
        ('{"body": "a", "body_base64": "YQ=="}', "one of 'body' and 'body_base64'"),
        ('{"body": 5}', "'body' must be a string"),
        ('{"body": "\\ud800"}', "surrogate"),
        ('{"body_base64": "*"}', "must be base64"),
        ('{"body_base64": 5}', "must be base64"),
        ('{"body": "a", "at": "2030-01-01T00:00:00"}', "no time zone"),
        ('{"body": "a", "at": 1.5}', "epoch milliseconds"),
        ('{"body": "a", "at": 1, "delay": 1}', "one of 'at' and 'delay'"),
        ('{"body": "a", "delay": "soon"}', "'delay' must be seconds"),
        ('{"body": "a", "delay": NaN}', "'delay' must be seconds"),
        ('{"body": "a", "delay": true}', "'delay' must be seconds"),
        ('{"body": "a", "priority": 1.5}', "'priority' must be an integer"),
        ('{"body": "a", "id": 5}', "'id' must be a string"),
        ('{"body": "a", "headers": {"a": 1}}', "'headers' must map strings"),
        ('{"body": "a", "dealy": 5}', "unknown field 'dealy'"),
    ],
)
def test_the_error_of_an_invalid_row_names_the_problem(text: str, complaint: str) -> None:
    with pytest.raises(RowError, match=complaint):
        parse_row(text, 1)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_every_line_is_a_row_or_a_row_error(text: str) -> None:
    with suppress(RowError):
        assert parse_row(text, 1).line == 1


@given(body=st.binary(max_size=50), priority=st.integers(-5, 5), ts=st.integers(0, 2**40))
def test_the_output_of_browse_can_be_produced_again(body: bytes, priority: int, ts: int) -> None:
    message = Message(
        id="m",
        topic="t",
        bucket=3,
        ts=ts,
        priority=priority,
        body=body,
        producer_group="g",
        lock_consumer="",
        version=9,
        attempts=1,
        headers={"k": "v"},
    )
    row = parse_row(json.dumps(message_values(message, now_ms=0)), 1)
    assert (row.id, row.body, row.priority, row.headers) == ("m", body, priority, {"k": "v"})
    assert row.when == When(ts)
