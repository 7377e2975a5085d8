"""`dejaq transaction` as a user types it, against a broker process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import dejaq


def lines(*changes: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, changes))


def test_changes_take_effect_together(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        assert dejaq("produce", topic, "--id", name, "--body", "x", "--delay", "1h", url=broker.url).code == 0
    path = tmp_path / "changes.jsonl"
    path.write_text(
        lines(
            {"do": "send", "topic": topic, "id": "d", "body": "new", "delay": 7200, "headers": {"k": "v"}},
            {"do": "move", "topic": topic, "id": "a", "delay": 10_800},
            {"do": "edit", "topic": topic, "id": "b", "body_base64": "eXk=", "priority": 4},
            {"do": "cancel", "topic": topic, "id": "c"},
        )
    )
    counted = dejaq("transaction", str(path), "--dry-run", url=broker.url)
    assert counted.code == 0
    assert counted.out.startswith("1 sent, 1 moved, 1 edited, 1 cancelled would be asked for")
    assert dejaq("count", topic, url=broker.url).out == "3\n"
    done = dejaq("transaction", str(path), url=broker.url)
    assert (done.code, done.out.splitlines()[0]) == (0, f"sent d in {topic}")
    found = {m["id"]: m for m in dejaq("browse", topic, "--json", url=broker.url).objects}
    assert {key: (m["body"], m["priority"]) for key, m in found.items()} == {
        "a": ("x", 0),
        "b": ("yy", 4),
        "d": ("new", 0),
    }
    assert found["a"]["ts"] > found["d"]["ts"] > found["b"]["ts"]


def test_a_refusal_means_that_nothing_is_done(broker: BrokerProcess, topic: str) -> None:
    changes = lines({"do": "send", "topic": topic, "body": "x"}, {"do": "cancel", "topic": topic, "id": "gone"})
    refused = dejaq("transaction", "-", url=broker.url, stdin=changes)
    assert refused.code == 1
    assert "cancel of gone" in refused.err
    assert "NOT_FOUND" in refused.err
    assert dejaq("count", topic, url=broker.url).out == "0\n"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "1 to 10,000"),
        ("{", "line 1: not JSON"),
        ('{"do": "sing", "topic": "t"}', "send, edit, move, cancel"),
        ('{"do": "send", "body": "x"}', "'topic'"),
        ('{"do": "send", "topic": "t"}', "'body'"),
        ('{"do": "cancel", "topic": "t"}', "'id'"),
        ('{"do": "cancel", "topic": "t", "id": "x", "body": "y"}', "takes no 'body'"),
        ('{"do": "move", "topic": "t", "id": "x"}', "'at' or 'delay'"),
        ('{"do": "edit", "topic": "t", "id": "x", "version": 1}', "what changes"),
        ('{"do": "edit", "topic": "t", "id": "x", "body": "y", "version": "1"}', "'version'"),
    ],
)
def test_an_invalid_line_is_an_error_with_its_line_number(line: str, complaint: str) -> None:
    refused = dejaq("transaction", "-", stdin=line)
    assert refused.code == 2
    assert complaint in refused.err


def test_a_message_of_a_log_is_appended_with_other_changes(broker: BrokerProcess, topic: str) -> None:
    log = f"{topic}-log"
    assert dejaq("topic", "create", log, "--kind", "log", url=broker.url).code == 0
    changes = lines(
        {"do": "send", "topic": topic, "body": "x", "delay": 60},
        {"do": "append", "topic": log, "body": "paid", "key": "order-7", "headers": {"kind": "order"}},
    )
    done = dejaq("transaction", "-", url=broker.url, stdin=changes)
    assert (done.code, done.out.splitlines()[1]) == (0, f"appended to {log}")
    (message,) = dejaq("log", "read", log, "--json", url=broker.url).objects
    assert (message["body"], message["key"], message["headers"]) == ("paid", "order-7", {"kind": "order"})
    refused = dejaq(
        "transaction", "-", url=broker.url, stdin=lines({"do": "append", "topic": log, "id": "x", "body": "y"})
    )
    assert (refused.code, "a 'key'" in refused.err) == (2, True)
